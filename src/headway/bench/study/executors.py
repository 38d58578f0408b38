"""Where jobs run: processes of this machine, or the machines of a Ray cluster."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from headway.bench.processes import Worker, WorkerDied, available_cores, end, wait_for
from headway.bench.study.job import run_and_report

KILLED = -9  # exit code of a job whose process or machine is gone
PRELOAD = (  # modules that jobs import; none may start a thread or touch a GPU, because neither survives a fork
    "headway.pretrained.analysis",
    "headway.pretrained.conversion",
    "headway.bench.tasks.finetune",
    "headway.bench.tasks.pretrain",
    "headway.bench.tasks.translate",
)


class Executor(Protocol):
    """Starts jobs and reports which have ended."""

    slots: int  # number of jobs that run at once

    def start(self, folder: Path) -> None:
        """Start the job of a folder; call it only while fewer than `slots` jobs run."""
        ...

    def ended(self, seconds: float) -> list[tuple[Path, int]]:
        """Wait for at most `seconds` until jobs end; return the folder and exit code of each (0 for success)."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None: ...


class LocalExecutor:
    """Processes of this machine, a new one for each job.

    Args:
        jobs: number of jobs that run at once; on a machine with GPUs each gets one, in turn.
        gpus: GPUs, as CUDA_VISIBLE_DEVICES names them; without any, jobs run on the CPU and share its cores.
    """

    def __init__(self, jobs: int, gpus: Sequence[str] = ()) -> None:
        if jobs < 1:
            raise ValueError(f"jobs: expected at least 1, got {jobs}.")
        self.slots = jobs
        self._gpus = list(gpus)
        self._threads = int(os.environ.get("OMP_NUM_THREADS") or max(1, available_cores() // jobs))
        self._running: dict[int, tuple[Worker, Path]] = {}  # by slot

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker, _ in self._running.values():
            worker.kill()

    def start(self, folder: Path) -> None:
        slot = next(slot for slot in range(self.slots) if slot not in self._running)
        worker = Worker(
            job_process,
            gpu=bool(self._gpus),
            preload=PRELOAD,
            threads=self._threads,
            environment={"CUDA_VISIBLE_DEVICES": self._gpus[slot % len(self._gpus)] if self._gpus else ""},
            log=folder / "log.txt",
        )
        worker.ask(folder)
        self._running[slot] = worker, folder

    def ended(self, seconds: float) -> list[tuple[Path, int]]:
        ready = wait_for([worker for worker, _ in self._running.values()], seconds)
        slots = [slot for slot, (worker, _) in self._running.items() if worker in ready]
        return [self._end(slot) for slot in slots]

    def _end(self, slot: int) -> tuple[Path, int]:
        worker, folder = self._running.pop(slot)
        try:
            status = worker.answer()
        except WorkerDied as death:
            return folder, death.status
        end([worker])
        return folder, status


def job_process() -> Callable[[Path], int]:
    """Prepare a worker process that does a job; its answer is the job's exit code."""
    print(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} begins, process {os.getpid()}", flush=True)
    return run_and_report


class RayExecutor:
    """The machines of a running Ray cluster; all must have headway installed and see the study's folder at one path.

    Args:
        jobs_per_gpu: number of jobs that share a GPU, if the cluster has any.
    """

    def __init__(self, address: str = "auto", *, jobs_per_gpu: int = 1) -> None:
        try:
            ray: Any = importlib.import_module("ray")  # optional
        except ModuleNotFoundError:
            raise ImportError("The package ray is not installed. Install it with pip install 'headway[ray]'.") from None
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
        except ConnectionError as error:
            raise ValueError(
                f"No Ray cluster runs at {address}: {error}. Start one with `ray start --head`, and with "
                f"`ray start --address` on other machines."
            ) from None
        self._ray = ray
        resources = ray.cluster_resources()
        gpus = resources.get("GPU", 0)
        self.slots = int(gpus * jobs_per_gpu if gpus else resources.get("CPU", 1))
        needs = {"num_gpus": 1 / jobs_per_gpu, "num_cpus": 1} if gpus else {"num_cpus": 1}
        self._remote = ray.remote(max_retries=0, **needs)(_do_in_new_process)
        self._running: dict[Any, Path] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._ray.shutdown()

    def start(self, folder: Path) -> None:
        self._running[self._remote.remote(str(folder.resolve()))] = folder

    def ended(self, seconds: float) -> list[tuple[Path, int]]:
        done, _ = self._ray.wait(list(self._running), num_returns=1, timeout=seconds)
        return [(self._running.pop(reference), self._status(reference)) for reference in done]

    def _status(self, reference: Any) -> int:
        try:
            return int(self._ray.get(reference))
        except self._ray.exceptions.RayError:  # its machine or its process is gone
            return KILLED


def _do_in_new_process(folder: str) -> int:
    """Do a job on whatever machine this is called on, and return its exit code."""
    threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": "1"}
    with (Path(folder) / "log.txt").open("ab") as log:
        command = [sys.executable, "-m", "headway.bench.study.job", folder]
        return subprocess.run(command, stdout=log, stderr=log, env={**os.environ, **threads}).returncode
