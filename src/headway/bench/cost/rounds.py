"""`measure`: rows in processes of their own, which prepare side by side and are then timed in turns, round by round.

Separate processes keep each row's memory apart, let torch compile several rows at once, and keep a row that crashes
from ending the others. While one row is timed, the others wait for a request. While torch's compiler times variants of
a kernel for one row, a lock keeps the others off the GPU, because work of theirs could make it choose a slower variant.
"""

from __future__ import annotations

import math
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from headway.bench.cost.config import CostConfig
from headway.bench.cost.parity import parity_problem
from headway.bench.cost.steps import Case, CaseFacts, StepTime, TimedModel
from headway.bench.cost.table import CostTable, Measurement, Timing
from headway.bench.processes import Worker, WorkerDied, WorkerLate, available_cores, ending, seconds_until, wait_for
from headway.storage import environment

# Seconds of steps of the baseline in a round; all rows take the number of steps that the baseline takes in that time.
SECONDS_IN_A_ROUND = {"cpu": 0.25, "cuda": 0.3}
MOST_STEPS = 200
GRACE = 60.0  # seconds after the deadline until a row that does not answer is taken to hang
NOT_READY = "not ready in time"
PRELOAD = ("headway.bench.cost.rounds",)  # imports torch and transformers once for all rows
NEW_LINE = "\n"


def measure(config: CostConfig, progress: Callable[[str], None] = lambda text: None) -> CostTable:
    """Measure time, memory, parameters and FLOPs of every row, in every model and at every length.

    Rows of one model and length are timed in turns, round after round, each in its own process. A row whose output or
    gradients are wrong, or that fails, is in the table with its problem and without times. In a script, call it under
    `if __name__ == "__main__":`, like everything that starts processes.

    Args:
        progress: function that is called with a line about each stage.
    """
    cores = available_cores()
    config = config.resolved(cores)
    assert config.models is not None and config.together is not None
    groups = [(model, length) for model in config.models for length in config.lengths]
    seconds_each = None if config.minutes is None else 60 * config.minutes / len(groups)
    start = time.monotonic()
    threads = torch.get_num_threads() if config.device == "cpu" else max(1, cores // config.together)
    measurements: list[Measurement] = []
    for number, (model, length) in enumerate(groups):
        cases = [Case(config=config, row=row, model=model, length=length, threads=threads) for row in config.encodings]
        deadline = None if seconds_each is None else start + (number + 1) * seconds_each

        def report_group(text: str, model: str = model, length: int = length) -> None:
            progress(f"{model}, n = {length}: {text}")

        measurements += _measure_group(cases, deadline, report_group)
    return CostTable(config=config, environment={**environment(), "threads": threads}, measurements=tuple(measurements))


def _measure_group(cases: Sequence[Case], deadline: float | None, progress: Callable[[str], None]) -> list[Measurement]:
    """Prepare and time all rows of one model and length."""
    config = cases[0].config
    assert config.together is not None
    with running_rows(cases, config.together, _preparation_deadline(deadline), progress) as rows:
        for row in rows:
            if row.facts is not None:
                row.problem = parity_problem(row.facts.parity)
        times: dict[str, dict[str, list[StepTime]]] = {row.case.row: {} for row in rows}
        for mode in config.modes:
            steps = _choose_steps(rows, mode, deadline)
            for number in range(config.rounds):
                if number > 0 and deadline is not None and time.monotonic() > deadline:
                    break
                progress(f"{mode}, round {number + 1} of {config.rounds}")
                working = [row for row in rows if row.problem is None]
                first = number % max(1, len(working))  # each round begins with another row
                for row in working[first:] + working[:first]:
                    step_time = _time_row(row, mode, steps, deadline)
                    if step_time is not None:
                        times[row.case.row].setdefault(mode, []).append(step_time)
        return [_measurement(row, times[row.case.row]) for row in rows]


def _preparation_deadline(deadline: float | None) -> float | None:
    """Return the deadline for preparing rows; a quarter of the remaining time is reserved for timing."""
    now = time.monotonic()
    return None if deadline is None else now + 0.75 * (deadline - now)


def _choose_steps(rows: Sequence[RowProcess], mode: str, deadline: float | None) -> int:
    """Choose the number of steps that each row takes in a round, from the time of a step of the baseline."""
    working = [row for row in rows if row.problem is None]
    working.sort(key=lambda row: row.case.row != row.case.config.baseline)
    for row in working:
        step_time = _time_row(row, mode, 1, deadline)
        if step_time is not None:
            seconds = SECONDS_IN_A_ROUND[torch.device(row.case.config.device).type]
            return min(MOST_STEPS, math.ceil(seconds / step_time.seconds))
    return 1


def _time_row(row: RowProcess, mode: str, steps: int, deadline: float | None) -> StepTime | None:
    """Time a row; end it and return None if it fails."""
    limit = None if deadline is None else max(deadline, time.monotonic()) + GRACE
    try:
        return row.time(mode, steps, limit)
    except RowFailed as problem:
        row.end_now(str(problem))
        return None


def _measurement(row: RowProcess, times: dict[str, list[StepTime]]) -> Measurement:
    case, facts = row.case, row.facts
    timings = {}
    if facts is not None and row.problem is None:
        for mode, step_times in times.items():
            timings[mode] = Timing(
                seconds=tuple(each.seconds for each in step_times),
                launched=tuple(each.launched for each in step_times),
                flops=facts.flops[mode],
                peak_bytes=facts.peak_bytes[mode],
            )
    return Measurement(
        row=case.row,
        model=case.model,
        length=case.length,
        batch=case.config.batch_of(case.length),
        parameters=None if facts is None else facts.parameters,
        parity=None if facts is None else facts.parity,
        problem=row.problem,
        **timings,
    )


class RowFailed(Exception):
    """Raised where a row cannot be prepared or timed; the message says why."""


class RowProcess:
    """A case in its own process, seen from the process that measures."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.facts: CaseFacts | None = None
        self.problem: str | None = None
        self.worker: Worker | None = None

    def start(self, gpu_lock: Path) -> Worker:
        """Start the process, which prepares at once; `gpu_lock` is the lock file of whoever uses the GPU."""
        gpu = torch.device(self.case.config.device).type == "cuda"
        self.worker = Worker(serve_row, self.case, gpu_lock, gpu=gpu, preload=PRELOAD)
        self.worker.ask("prepare")
        return self.worker

    def receive(self, deadline: float | None) -> Any:
        """Return the next answer; raise RowFailed if the process reports an error, has ended, or is late."""
        assert self.worker is not None
        try:
            return self.worker.answer(deadline)
        except WorkerLate:
            raise RowFailed(NOT_READY) from None
        except WorkerDied as death:
            raise RowFailed(str(death)) from None
        except Exception as error:
            traceback.print_exception(error)
            raise RowFailed(f"{type(error).__name__}: {str(error).partition(NEW_LINE)[0]}") from None

    def time(self, mode: str, steps: int, deadline: float | None) -> StepTime:
        """Time some steps in the process."""
        assert self.worker is not None
        self.worker.ask("time", mode, steps)
        answer = self.receive(deadline)
        assert isinstance(answer, StepTime)
        return answer

    def end_now(self, problem: str) -> None:
        """Kill the process, whose work would slow the rows that are timed, and note the problem."""
        self.problem = problem
        if self.worker is not None:
            self.worker.kill()


@contextmanager
def running_rows(
    cases: Sequence[Case], together: int, deadline: float | None, progress: Callable[[str], None]
) -> Iterator[list[RowProcess]]:
    """Start a process for each case and yield them, ready to be timed or with a problem; end them with the block."""
    rows, workers = [RowProcess(case) for case in cases], list[Worker]()
    with ending(workers):  # processes that used a GPU take seconds to end; all end at the same time
        with tempfile.TemporaryDirectory(prefix="headway-cost-") as folder:
            _prepare_rows(rows, workers, together, Path(folder) / "gpu-lock", deadline, progress)
        yield rows


def _prepare_rows(
    rows: Sequence[RowProcess],
    workers: list[Worker],
    together: int,
    gpu_lock: Path,
    deadline: float | None,
    progress: Callable[[str], None],
) -> None:
    """Start the processes of all rows, at most `together` at a time, and receive their facts.

    Args:
        workers: list to which each process is added when it is started.
    """
    waiting, busy = list(rows), dict[Worker, RowProcess]()
    while waiting or busy:
        while waiting and len(busy) < together:
            # From both ends in turn, because neighbours are alike and would need most memory at the same time.
            row = waiting.pop(0 if len(waiting) % 2 else -1)
            workers.append(row.start(gpu_lock))
            busy[workers[-1]] = row
        progress(f"preparing: {', '.join(row.case.row for row in busy.values())}")
        done = wait_for(busy, seconds_until(deadline))
        for worker in done:
            row = busy.pop(worker)
            try:
                row.facts = row.receive(deadline)
            except RowFailed as problem:
                row.end_now(str(problem))
        if not done:
            for row in (*busy.values(), *waiting):
                row.end_now(NOT_READY)
            return


def serve_row(case: Case, gpu_lock: Path) -> Callable[..., Any]:
    """Build the model of a row in its process, and return the function that answers requests.

    It answers ("prepare",) with the facts of the case, and ("time", MODE, STEPS) with a `StepTime`.
    """
    model = TimedModel(case)

    def answer(request: str, *arguments: Any) -> Any:
        return model.prepare(FileLock(gpu_lock)) if request == "prepare" else model.time(*arguments)

    return answer
