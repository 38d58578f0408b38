"""Translation: `run(config) -> Result` trains, `Translator` translates text, `score` and `compare` judge it."""

from headway.bench.tasks.training.run_folder import RunStopped
from headway.bench.tasks.training.settings import Intervals
from headway.bench.tasks.translate.config import Optimisation, ParallelData, TranslateConfig, TranslatorChoice
from headway.bench.tasks.translate.decode import Translation, Translator
from headway.bench.tasks.translate.score import Scores, compare, score
from headway.bench.tasks.translate.training import Result, run

__all__ = [
    "Intervals",
    "Optimisation",
    "ParallelData",
    "Result",
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
