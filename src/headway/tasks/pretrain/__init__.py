"""Masked-language-model pretraining: `run(config) -> Result`."""

from headway.tasks.pretrain.config import ModelChoice, PretrainConfig, Text
from headway.tasks.pretrain.pretraining import Result, run
from headway.tasks.training.plan import Optimisation, Rhythm
from headway.tasks.training.runs import RunStopped

__all__ = ["ModelChoice", "Optimisation", "PretrainConfig", "Result", "Rhythm", "RunStopped", "Text", "run"]
