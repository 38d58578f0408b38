"""Fine-tuning and zero-shot transfer: `run(config) -> Result`."""

from headway.bench.tasks.finetune.config import Data, FinetuneConfig, Grid, Protocol, Spans, Start
from headway.bench.tasks.finetune.sweep import Result, run, run_all
from headway.bench.tasks.training.run_folder import RunStopped

__all__ = ["Data", "FinetuneConfig", "Grid", "Protocol", "Result", "RunStopped", "Spans", "Start", "run", "run_all"]
