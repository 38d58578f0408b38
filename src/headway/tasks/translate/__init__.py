"""Translation: `run(config) -> Result` trains, `Translator` translates text, `score` and `compare` judge it."""

from headway.tasks.training.plan import Rhythm
from headway.tasks.training.runs import RunStopped
from headway.tasks.translate.config import ModelChoice, Optimisation, ParallelData, TranslateConfig
from headway.tasks.translate.decode import Translation, Translator
from headway.tasks.translate.score import Scores, compare, score
from headway.tasks.translate.training import Result, run

__all__ = [
    "ModelChoice",
    "Optimisation",
    "ParallelData",
    "Result",
    "Rhythm",
    "RunStopped",
    "Scores",
    "TranslateConfig",
    "Translation",
    "Translator",
    "compare",
    "run",
    "score",
]
