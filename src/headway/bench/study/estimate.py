"""How long a study will take and how much disk it needs: from finished jobs, else from stated assumptions."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from headway.bench.study.job import Job
from headway.bench.study.store import Store, Unreadable
from headway.storage import restore

# Assumed as long as nothing was measured: floating-point operations a second in training.
CPU_FLOPS, GPU_FLOPS = 1e10, 1.5e14
GPU_STEP = 0.01  # least seconds of a step on a GPU, because small models wait for the launches of their kernels
SECONDS = {  # of jobs that do not train
    "text": 20.0,
    "pairs": 20.0,
    "analyse": 20.0,
    "lengths": 20.0,
    "simple": 5.0,
    "parameters": 1.0,
    "rates": 1.0,
    "minimal-pairs": 40.0,
    "held-out": 10.0,
    "masked-words": 10.0,
    "cost": 120.0,
}
TRAINED = ("pretrain", "trial", "further", "finetune", "translate")
START = 5.0  # seconds in which a job starts
BYTES = {
    "text": 50e6,
    "pairs": 50e6,
    "convert": 50e6,
    "masked-words": 100e6,
    "analyse": 5e6,
    "simple": 1e3,
    "parameters": 1e3,
    "rates": 1e4,
    "minimal-pairs": 1e5,
    "held-out": 1e3,
    "cost": 1e5,
}
EXAMPLES = 10_000  # assumed of a task whose size is not published


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Cost of one job; `measured` if it follows from finished jobs of its kind and model."""

    seconds: float
    bytes: float
    measured: bool


class Estimates:
    """Estimates for jobs, from what the finished jobs of a store took."""

    def __init__(self, store: Store, *, gpu: bool) -> None:
        self._flops = GPU_FLOPS if gpu else CPU_FLOPS
        self._step = GPU_STEP if gpu else 0.0
        self._speeds: dict[Any, list[float]] = {}
        self._sizes: dict[Any, list[float]] = {}
        for path in sorted(store.path.glob("*/result.json")):
            try:
                record = store.result(path.parent.name)
                if record is not None:
                    self.learn(_read_job(store, path.parent.name), record)
            except (Unreadable, ValueError, OSError):
                continue  # the runner reports it

    def learn(self, job: Job, record: dict[str, Any]) -> None:
        """Record what a finished job took."""
        self._speeds.setdefault(_similarity(job), []).append(record["seconds"] / work(job))
        self._sizes.setdefault(_similarity(job), []).append(record["bytes"])

    def of(self, job: Job) -> Estimate:
        """Estimate a job."""
        speeds = self._speeds.get(_similarity(job))
        if speeds:
            size = median(self._sizes[_similarity(job)])
            return Estimate(seconds=median(speeds) * work(job), bytes=size, measured=True)
        if job.kind not in TRAINED:
            return Estimate(seconds=SECONDS.get(job.kind, 60.0), bytes=BYTES.get(job.kind, 1e6), measured=False)
        seconds = START + max(6 * job.weights * work(job) / self._flops, self._step * steps(job))
        return Estimate(seconds=seconds, bytes=3 * 4 * job.weights, measured=False)

    def assumptions(self) -> str:
        """Describe what is assumed about jobs of which nothing was measured."""
        return (
            f"Where nothing was measured: {self._flops:.0e} floating-point operations a second in training, six for "
            f"every parameter and token"
            + (f", {1000 * self._step:.0f} ms a step at the least" if self._step else "")
            + f", and {START:.0f} s to begin."
        )


def wall_time(jobs: Sequence[Job], estimates: Estimates, slots: int) -> float:
    """Return the seconds that all jobs take with `slots` at once, which is at least the time of the longest one."""
    shared = [estimates.of(job).seconds for job in jobs if not job.alone]
    alone = sum(estimates.of(job).seconds for job in jobs if job.alone)
    return max([sum(shared) / slots, *shared], default=0.0) + alone


def work(job: Job) -> float:
    """Return the number of tokens that all runs of a job train on; 1 for jobs that do not train."""
    config = job.config
    if job.kind in ("pretrain", "trial", "further"):
        return float(config["optimisation"]["steps"] * config["optimisation"]["batch"] * config["text"]["length"])
    if job.kind == "finetune":
        return float(_examples_seen(config) * config["protocol"]["length"])
    if job.kind == "translate":
        return float(config["optimisation"]["steps"] * config["optimisation"]["step_tokens"])
    return 1.0


def steps(job: Job) -> float:
    """Return the number of steps of all runs of a job that trains."""
    if job.kind == "finetune":
        return float(_examples_seen(job.config) / job.config["protocol"]["batch"])
    return float(job.config["optimisation"]["steps"])


def _examples_seen(config: Mapping[str, Any]) -> int:
    """Return the number of examples that all runs of a sweep train on together."""
    from headway.bench.tasks.finetune import FinetuneConfig

    sweep = restore(FinetuneConfig, config)
    sizes = [size for size in (sweep.data.limit, sweep.task_spec.train_size()) if size is not None]
    return len(sweep.grid.runs) * sweep.protocol.epochs * min(sizes, default=EXAMPLES)


def _similarity(job: Job) -> Any:
    """Return the kind, size of the model and task of a job; jobs that agree in these are taken to be equally fast."""
    return job.kind, round(math.log2(job.weights), 1) if job.weights else 0, job.config.get("task", "")


def _read_job(store: Store, key: str) -> Job:
    from headway.storage import read_json

    request = read_json(store.folder(key) / "job.json")
    return Job(**{name: value for name, value in request.items() if name != "key"})


def free_bytes(path: os.PathLike[str]) -> int:
    """Return the free bytes of the disk of a path, which need not exist yet."""
    import shutil
    from pathlib import Path

    here = Path(path).resolve()
    return shutil.disk_usage(next(each for each in (here, *here.parents) if each.exists())).free
