"""Translation: `run(config) -> Result` trains, `Translator` translates text, `score` and `compare` judge it."""

from headway.bench.tasks.training.plan import Rhythm
from headway.bench.tasks.training.runs import RunStopped
from headway.bench.tasks.translate.config import Optimisation, ParallelData, TranslateConfig, TranslatorChoice
from headway.bench.tasks.translate.decode import Translation, Translator
from headway.bench.tasks.translate.score import Scores, compare, score
from headway.bench.tasks.translate.training import Result, run

__all__ = [
    "Optimisation",
    "ParallelData",
    "Result",
    "Rhythm",
    "RunStopped",
    "Scores",
    "TranslateConfig",
    "Translation",
    "Translator",
    "TranslatorChoice",
    "compare",
    "run",
    "score",
]
