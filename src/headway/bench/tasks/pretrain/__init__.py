"""Masked-language-model pretraining: `run(config) -> Result`."""

from headway.bench.tasks.pretrain.config import EncoderChoice, PretrainConfig, Start, Text
from headway.bench.tasks.pretrain.pretraining import Result, evaluate, load_checkpoint, run
from headway.bench.tasks.training.run_folder import RunStopped
from headway.bench.tasks.training.settings import Intervals, Optimisation

__all__ = [
    "EncoderChoice",
    "Intervals",
    "Optimisation",
    "PretrainConfig",
    "Result",
    "RunStopped",
    "Start",
    "Text",
    "evaluate",
    "load_checkpoint",
    "run",
]
