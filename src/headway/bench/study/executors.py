"""Where jobs run: processes of this machine, or the machines of a Ray cluster."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from headway.bench.study.worker import PRELOAD

DIED = -9  # status of a job whose worker is gone


class Executor(Protocol):
    """Begins jobs and says which have ended."""

    slots: int  # jobs at once

    def start(self, folder: Path) -> None: ...

    def ended(self, seconds: float) -> list[tuple[Path, int]]:
        """Jobs that ended, with their status, 0 for success; waits for the first one, so many seconds at most."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None: ...


class Worker:
    """A process that does one job at a time."""

    def __init__(self, environment: dict[str, str], *, preload: bool) -> None:
        self.complaints = tempfile.TemporaryFile()  # noqa: SIM115  closed with the worker
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headway.bench.study.worker", *([PRELOAD] if preload else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            env={**os.environ, **environment},
        )
        self.folder: Path | None = None

    def start(self, folder: Path) -> None:
        assert self.process.stdin is not None
        self.folder = folder
        with contextlib.suppress(BrokenPipeError):  # it died; its output ends too, which `answer` reports
            self.process.stdin.write(os.fsencode(folder) + b"\n")
            self.process.stdin.flush()

    def answer(self) -> tuple[Path, int]:
        """The job that ended and its status; call it when there is output."""
        assert self.process.stdout is not None and self.folder is not None
        folder, self.folder = self.folder, None
        line = self.process.stdout.readline()
        if line:
            return folder, int(line)
        self.complaints.seek(0)
        with (folder / "log.txt").open("ab") as log:
            log.write(b"the process that does jobs died:\n" + self.complaints.read())
        return folder, DIED

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it ended before
            self.process.stdin.close()  # it kills its job and ends
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.complaints.close()


class LocalExecutor:
    """Processes of this machine.

    Args:
        jobs: how many; on a machine with GPUs each has one, in turn.
        gpus: names of GPUs as CUDA_VISIBLE_DEVICES has them; none for the CPU, whose cores are shared out.
    """

    def __init__(self, jobs: int, gpus: Sequence[str] = ()) -> None:
        if jobs < 1:
            raise ValueError(f"jobs: expected at least 1, got {jobs}.")
        self.slots = jobs
        self._gpus = list(gpus)
        self._workers: list[Worker | None] = [None] * jobs

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._workers:
            if worker is not None:
                worker.close()

    def start(self, folder: Path) -> None:
        for slot, worker in enumerate(self._workers):
            if worker is None or (worker.folder is None and not worker.alive):
                if worker is not None:
                    worker.close()
                worker = self._workers[slot] = self._hired(slot)
            if worker.folder is None:
                worker.start(folder)
                return
        raise RuntimeError(f"jobs: expected at most {self.slots} at once.")

    def ended(self, seconds: float) -> list[tuple[Path, int]]:
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                if worker is not None and worker.folder is not None:
                    assert worker.process.stdout is not None
                    selector.register(worker.process.stdout, selectors.EVENT_READ, worker)
            return [key.data.answer() for key, _ in selector.select(seconds)]

    def _hired(self, slot: int) -> Worker:
        environment = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(max(1, cores() // self.slots))}
        if self._gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self._gpus[slot % len(self._gpus)]
        else:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        # A GPU must be new to every job's process; on macOS, forks of processes that imported much are not safe.
        return Worker(environment, preload=not self._gpus and sys.platform == "linux")


class RayExecutor:
    """Machines of a Ray cluster that is running. All must see the study's folder under one path, and have headway.

    Args:
        jobs_per_gpu: jobs that share a GPU, where the cluster has any.
    """

    def __init__(self, address: str = "auto", *, jobs_per_gpu: int = 1) -> None:
        try:
            ray: Any = importlib.import_module("ray")  # optional
        except ModuleNotFoundError:
            raise ImportError("executor: expected the package ray, got none. pip install 'headway[ray]'.") from None
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
        except ConnectionError as error:
            raise ValueError(
                f"executor: expected a Ray cluster that is running, got none at {address}: {error}. "
                f"Start one with `ray start --head`, and `ray start --address` on other machines."
            ) from None
        self._ray = ray
        found = ray.cluster_resources()
        gpus = found.get("GPU", 0)
        self.slots = int(gpus * jobs_per_gpu if gpus else found.get("CPU", 1))
        needs = {"num_gpus": 1 / jobs_per_gpu, "num_cpus": 1} if gpus else {"num_cpus": 1}
        self._remote = ray.remote(max_retries=0, **needs)(_in_a_process)
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
            return DIED


def _in_a_process(folder: str) -> int:
    """Do a job, on whatever machine this is."""
    threads = {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": "1"}
    with (Path(folder) / "log.txt").open("ab") as log:
        command = [sys.executable, "-m", "headway.bench.study.job", folder]
        return subprocess.run(command, stdout=log, stderr=log, env={**os.environ, **threads}).returncode


def cores() -> int:
    """That this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
