"""`measure`: rows in processes of their own, which prepare side by side and are then timed in turns, round by round.

Separate processes keep each row's memory apart, let torch compile several rows at once, and keep a row that crashes
from ending the others. While one row is timed, the others wait for a message. While torch's compiler times variants of
a kernel for one row, the others keep off the GPU; a variant that was chosen while other work ran may be the slow one,
and only for that row.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from headway.bench.cost.config import CostConfig
from headway.bench.cost.parity import parity_problem
from headway.bench.cost.steps import Case, CaseFacts, StepTime, TimedModel
from headway.bench.cost.table import CostTable, Measurement, Timing
from headway.storage import environment

SECONDS_IN_A_ROW = {"cpu": 0.25, "cuda": 0.3}  # a row takes as many steps at a time as the baseline does in these
MOST_STEPS = 200
GRACE = 60.0  # seconds after the deadline at which a row that does not answer counts as hanging
NOT_READY = "not ready in time"
NEW_LINE = "\n"


def measure(config: CostConfig, tell: Callable[[str], None] = lambda text: None) -> CostTable:
    """Measure time, memory, parameters and FLOPs of every row, in every model and at every length.

    Rows of one model and length are timed in turns, round after round, each in its own process. A row whose output or
    gradients are wrong, or that fails, is in the table with its problem and without times. In a script, call it under
    `if __name__ == "__main__":`, like everything that starts processes.

    Args:
        tell: called with a line about each stage.
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

        def tell_of_group(text: str, model: str = model, length: int = length) -> None:
            tell(f"{model}, n = {length}: {text}")

        measurements += _measure_group(cases, deadline, tell_of_group)
    return CostTable(config=config, environment={**environment(), "threads": threads}, measurements=tuple(measurements))


def _measure_group(cases: Sequence[Case], deadline: float | None, tell: Callable[[str], None]) -> list[Measurement]:
    """Prepare and time all rows of one model and length."""
    config = cases[0].config
    assert config.together is not None
    with running_rows(cases, config.together, _preparation_deadline(deadline), tell) as rows:
        for row in rows:
            if row.facts is not None:
                row.problem = parity_problem(row.facts.parity)
        times: dict[str, dict[str, list[StepTime]]] = {row.case.row: {} for row in rows}
        for mode in config.modes:
            steps = _choose_steps(rows, mode, deadline)
            for number in range(config.rounds):
                if number > 0 and deadline is not None and time.monotonic() > deadline:
                    break
                tell(f"{mode}, round {number + 1} of {config.rounds}")
                working = [row for row in rows if row.problem is None]
                first = number % max(1, len(working))  # another row begins each round
                for row in working[first:] + working[:first]:
                    found = _time_row(row, mode, steps, deadline)
                    if found is not None:
                        times[row.case.row].setdefault(mode, []).append(found)
        return [_measurement(row, times[row.case.row]) for row in rows]


def _preparation_deadline(deadline: float | None) -> float | None:
    """Deadline for preparing rows; a quarter of the remaining time is reserved for timing."""
    now = time.monotonic()
    return None if deadline is None else now + 0.75 * (deadline - now)


def _choose_steps(rows: Sequence[RowProcess], mode: str, deadline: float | None) -> int:
    """Choose how many steps a row takes at a time, the same for all, from the time of the baseline."""
    working = [row for row in rows if row.problem is None]
    working.sort(key=lambda row: row.case.row != row.case.config.baseline)
    for row in working:
        found = _time_row(row, mode, 1, deadline)
        if found is not None:
            seconds = SECONDS_IN_A_ROW[torch.device(row.case.config.device).type]
            return min(MOST_STEPS, math.ceil(seconds / found.seconds))
    return 1


def _time_row(row: RowProcess, mode: str, steps: int, deadline: float | None) -> StepTime | None:
    """Time a row; one that fails is ended and has no time."""
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
        for mode, found in times.items():
            timings[mode] = Timing(
                seconds=tuple(each.seconds for each in found),
                launched=tuple(each.launched for each in found),
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
    """A row cannot go on, and why."""


class RowProcess:
    """A case in its own process, seen from the process that measures."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.facts: CaseFacts | None = None
        self.problem: str | None = None
        self.process: Any = None

    def start(self, gpu_lock: Path) -> None:
        """Start the process, which prepares at once; `gpu_lock` is the lock file of whoever uses the GPU."""
        method = start_method(self.case.config.device)
        context: Any = multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload([__name__])  # torch and transformers are loaded once for all rows
        self.connection, far_end = context.Pipe()
        process = context.Process(target=serve_row, args=(self.case, gpu_lock, far_end))
        process.start()
        self.process = process
        far_end.close()  # so that the connection ends with the process

    def receive(self, deadline: float | None) -> Any:
        """Return the next answer; raise RowFailed if the process reports an error, has ended, or is late."""
        try:
            if not self.connection.poll(_seconds_until(deadline)):
                raise RowFailed(NOT_READY)
            answer = self.connection.recv()
        except EOFError:
            self.process.join()
            raise RowFailed(f"its process ended with status {self.process.exitcode}") from None
        if isinstance(answer, str):
            raise RowFailed(answer)
        return answer

    def time(self, mode: str, steps: int, deadline: float | None) -> StepTime:
        with suppress(OSError):  # the process has ended; `receive` says how
            self.connection.send((mode, steps))
        answer = self.receive(deadline)
        assert isinstance(answer, StepTime)
        return answer

    def ask_to_end(self) -> None:
        """Tell the process to end, if it was started and still runs."""
        if self.process is None or self.connection.closed:
            return
        with suppress(OSError):  # it may have ended already
            self.connection.send(None)
        self.connection.close()

    def wait_for_end(self) -> None:
        """Wait for the process to end, and kill it if it does not."""
        if self.process is None:
            return
        self.process.join(0.0 if self.facts is None else 10.0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def end_now(self, problem: str) -> None:
        """Kill the process, whose work would slow the rows that are timed, and note the problem."""
        self.problem = problem
        if self.process is not None:
            self.connection.close()
            self.process.kill()
            self.process.join()


@contextmanager
def running_rows(
    cases: Sequence[Case], together: int, deadline: float | None, tell: Callable[[str], None]
) -> Iterator[list[RowProcess]]:
    """Start a process for each case and yield them, ready to be timed or with a problem; end them with the block."""
    rows = [RowProcess(case) for case in cases]
    try:
        with tempfile.TemporaryDirectory(prefix="headway-cost-") as folder:
            _prepare_rows(rows, together, Path(folder) / "gpu-lock", deadline, tell)
        yield rows
    finally:
        for row in rows:
            row.ask_to_end()
        for row in rows:  # a process that used a GPU takes seconds to end; all end at the same time
            row.wait_for_end()


def _prepare_rows(
    rows: Sequence[RowProcess], together: int, gpu_lock: Path, deadline: float | None, tell: Callable[[str], None]
) -> None:
    waiting, busy = list(rows), dict[Any, RowProcess]()
    while waiting or busy:
        while waiting and len(busy) < together:
            # From both ends in turn: neighbours are alike, and would need most memory at the same time.
            row = waiting.pop(0 if len(waiting) % 2 else -1)
            row.start(gpu_lock)
            busy[row.connection] = row
        tell(f"preparing: {', '.join(row.case.row for row in busy.values())}")
        done = wait(list(busy), _seconds_until(deadline))
        for connection in done:
            row = busy.pop(connection)
            try:
                row.facts = row.receive(deadline)
            except RowFailed as problem:
                row.end_now(str(problem))
        if not done:
            for row in (*busy.values(), *waiting):
                row.end_now(NOT_READY)
            return


def _seconds_until(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def start_method(device: str) -> str:
    """Choose how processes start: on a GPU afresh, because the state of CUDA does not survive a fork."""
    methods = multiprocessing.get_all_start_methods()
    return "forkserver" if "forkserver" in methods and torch.device(device).type == "cpu" else "spawn"


def serve_row(case: Case, gpu_lock: Path, connection: Connection) -> None:
    """Prepare a row, then time it whenever asked; runs in the row's process. A text in place of an answer is an error.

    Answers are the facts of the case, then a `StepTime` for each (mode, steps); None ends the process.
    """
    try:
        model = TimedModel(case)
        connection.send(model.prepare(FileLock(gpu_lock)))
        while (order := connection.recv()) is not None:
            connection.send(model.time(*order))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return  # the measuring process has ended, or no longer waits for this row
    except Exception as error:
        traceback.print_exc()
        connection.send(f"{type(error).__name__}: {str(error).partition(NEW_LINE)[0]}")


def available_cores() -> int:
    """Number of CPU cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
