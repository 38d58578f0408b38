"""Masked-language-model pretraining: `run(config) -> Result`."""

from headway.bench.tasks.pretrain.config import EncoderChoice, PretrainConfig, Text
from headway.bench.tasks.pretrain.pretraining import Result, run
from headway.bench.tasks.training.plan import Optimisation, Rhythm
from headway.bench.tasks.training.runs import RunStopped

__all__ = ["EncoderChoice", "Optimisation", "PretrainConfig", "Result", "Rhythm", "RunStopped", "Text", "run"]
