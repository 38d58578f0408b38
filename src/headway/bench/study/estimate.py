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

# Assumed of a machine on which nothing has been done yet: products of matrices in floating point a second, in training.
CPU_FLOPS, GPU_FLOPS = 1e10, 1.5e14
GPU_STEP = 0.01  # seconds, at the least: a small model's step on a GPU waits for the launches of its kernels
SECONDS = {
    "text": 20.0,
    "pairs": 20.0,
    "analyse": 20.0,
    "lengths": 20.0,
    "simple": 5.0,
    "parameters": 1.0,
    "cost": 120.0,
}  # of jobs that are not training
TRAINED = ("pretrain", "finetune", "translate")
START = 5.0  # seconds until a job begins to work
BYTES = {"text": 50e6, "pairs": 50e6, "convert": 50e6, "analyse": 5e6, "simple": 1e3, "parameters": 1e3, "cost": 1e5}
EXAMPLES = 10_000  # of a task whose size is not published


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """Cost of one job; `measured` if this store has a finished job of its kind and model."""

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
                    self.learn(_asked(store, path.parent.name), record)
            except (Unreadable, ValueError, OSError):
                continue  # an estimate does without; the runner names it

    def learn(self, job: Job, record: dict[str, Any]) -> None:
        """Record what a finished job took."""
        self._speeds.setdefault(_alike(job), []).append(record["seconds"] / work(job))
        self._sizes.setdefault(_alike(job), []).append(record["bytes"])

    def of(self, job: Job) -> Estimate:
        """Estimate a job."""
        speeds = self._speeds.get(_alike(job))
        if speeds:
            size = median(self._sizes[_alike(job)])
            return Estimate(seconds=median(speeds) * work(job), bytes=size, measured=True)
        if job.kind not in TRAINED:
            return Estimate(seconds=SECONDS.get(job.kind, 60.0), bytes=BYTES.get(job.kind, 1e6), measured=False)
        seconds = START + max(6 * job.weights * work(job) / self._flops, self._step * steps(job))
        return Estimate(seconds=seconds, bytes=3 * 4 * job.weights, measured=False)

    def assumptions(self) -> str:
        """Say what is assumed of jobs that nothing was measured of."""
        return (
            f"Where nothing was measured: {self._flops:.0e} floating-point operations a second in training, six for "
            f"every parameter and token"
            + (f", {1000 * self._step:.0f} ms a step at the least" if self._step else "")
            + f", and {START:.0f} s to begin."
        )


def wall_time(jobs: Sequence[Job], estimates: Estimates, slots: int) -> float:
    """Return the seconds until all jobs are done, `slots` at once: no less than the longest of them."""
    shared = [estimates.of(job).seconds for job in jobs if not job.alone]
    alone = sum(estimates.of(job).seconds for job in jobs if job.alone)
    return max([sum(shared) / slots, *shared], default=0.0) + alone


def work(job: Job) -> float:
    """Return the tokens of all runs of a training; 1 for other kinds."""
    config = job.config
    if job.kind == "pretrain":
        return float(config["optimisation"]["steps"] * config["optimisation"]["batch"] * config["text"]["length"])
    if job.kind == "finetune":
        return float(_seen(config) * config["protocol"]["length"])
    if job.kind == "translate":
        return float(config["optimisation"]["steps"] * config["optimisation"]["step_tokens"])
    return 1.0


def steps(job: Job) -> float:
    """Return the steps of all runs of a training."""
    if job.kind == "finetune":
        return float(_seen(job.config) / job.config["protocol"]["batch"])
    return float(job.config["optimisation"]["steps"])


def _seen(config: Mapping[str, Any]) -> int:
    """Return how many examples all runs of a sweep see together."""
    from headway.bench.tasks.finetune import FinetuneConfig

    asked = restore(FinetuneConfig, config)
    sizes = [size for size in (asked.data.limit, asked.task_spec.train_size()) if size is not None]
    return len(asked.grid.runs) * asked.protocol.epochs * min(sizes, default=EXAMPLES)


def _alike(job: Job) -> Any:
    """Return what two jobs must have in common to take alike: kind, size of the model, task."""
    return job.kind, round(math.log2(job.weights), 1) if job.weights else 0, job.config.get("task", "")


def _asked(store: Store, key: str) -> Job:
    from headway.storage import read_json

    asked = read_json(store.folder(key) / "job.json")
    return Job(**{name: value for name, value in asked.items() if name != "key"})


def free_bytes(path: os.PathLike[str]) -> int:
    """Return the free bytes of the disk of a path, which need not exist yet."""
    import shutil
    from pathlib import Path

    here = Path(path).resolve()
    return shutil.disk_usage(next(each for each in (here, *here.parents) if each.exists())).free
