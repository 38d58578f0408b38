"""Rows in processes of their own, which get ready side by side and then take turns.

So a row's memory is its own, torch compiles several at once, and one that breaks, by whatever, takes no other with it.
While one is timed, the others wait for a message. While torch's compiler times variants of a kernel in one of them, the
others keep off the GPU: a variant that was chosen beside other work may be the slow one, for that row alone.
"""

from __future__ import annotations

import multiprocessing
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

from headway.bench.cost.bench import Bench, Case, Prepared, Turn

NEW_LINE = "\n"
LATE = "not ready in time"


class Lost(Exception):
    """A row that cannot go on, and why."""


class Player:
    """A case in its own process."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.prepared: Prepared | None = None
        self.problem: str | None = None
        self.process: Any = None

    def start(self, alone: Path) -> None:
        """Get ready in a process; `alone` is the file that is locked by whoever must have the GPU for itself."""
        method = start_method(self.case.config.device)
        context: Any = multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload([__name__])  # torch and transformers are loaded once for all rows
        self.connection, theirs = context.Pipe()
        process = context.Process(target=_play, args=(self.case, alone, theirs))
        process.start()
        self.process = process
        theirs.close()  # so that the end of the process is the end of the connection

    def receive(self, deadline: float | None) -> Any:
        """What the process answers; Lost where it breaks, ends or is too late."""
        try:
            if not self.connection.poll(_until(deadline)):
                raise Lost(LATE)
            answer = self.connection.recv()
        except EOFError:
            self.process.join()
            raise Lost(f"its process ended with status {self.process.exitcode}") from None
        if isinstance(answer, str):
            raise Lost(answer)
        return answer

    def turn(self, mode: str, steps: int, deadline: float | None) -> Turn:
        with suppress(OSError):  # it has ended; `receive` says how
            self.connection.send((mode, steps))
        answer = self.receive(deadline)
        assert isinstance(answer, Turn)
        return answer

    def dismiss(self) -> None:
        """Tell the process to end."""
        if self.process is None or self.connection.closed:
            return  # it was not started, or given up
        with suppress(OSError):  # it may have ended already
            self.connection.send(None)
        self.connection.close()

    def stop(self) -> None:
        """Wait for its end."""
        if self.process is None:
            return
        self.process.join(0.0 if self.prepared is None else 10.0)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def give_up(self, problem: str) -> None:
        """End its process now: what it still does would slow those that are timed."""
        self.problem = problem
        if self.process is not None:
            self.connection.close()
            self.process.kill()
            self.process.join()


@contextmanager
def players(
    cases: Sequence[Case], together: int, deadline: float | None, tell: Callable[[str], None]
) -> Iterator[list[Player]]:
    """All cases, ready or with a problem; their processes end with the block."""
    everybody = [Player(case) for case in cases]
    try:
        with tempfile.TemporaryDirectory(prefix="headway-cost-") as folder:
            _prepare(everybody, together, Path(folder) / "alone", deadline, tell)
        yield everybody
    finally:
        for player in everybody:
            player.dismiss()
        for player in everybody:  # a process of a GPU takes seconds to end, all of them no longer than one
            player.stop()


def _prepare(
    everybody: Sequence[Player], together: int, alone: Path, deadline: float | None, tell: Callable[[str], None]
) -> None:
    left, busy = list(everybody), dict[Any, Player]()
    while left or busy:
        while left and len(busy) < together:
            player = left.pop(0 if len(left) % 2 else -1)  # from both ends: neighbours are alike, and peak together
            player.start(alone)
            busy[player.connection] = player
        tell(f"getting ready: {', '.join(player.case.row for player in busy.values())}")
        done = wait(list(busy), _until(deadline))
        for connection in done:
            player = busy.pop(connection)
            try:
                player.prepared = player.receive(deadline)
            except Lost as problem:
                player.give_up(str(problem))
        if not done:
            for player in (*busy.values(), *left):
                player.give_up(LATE)
            return


def _until(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def start_method(device: str) -> str:
    """A process of a GPU begins anew: what CUDA had been told would not survive a fork."""
    methods = multiprocessing.get_all_start_methods()
    return "forkserver" if "forkserver" in methods and torch.device(device).type == "cpu" else "spawn"


def _play(case: Case, alone: Path, connection: Connection) -> None:
    """What a row's process does: answers, or a text that says why there is none."""
    try:
        bench = Bench(case)
        connection.send(bench.prepare(FileLock(alone)))
        while (order := connection.recv()) is not None:
            connection.send(bench.turn(*order))
    except (EOFError, BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        return  # the process that asks has gone, or no longer waits
    except Exception as error:
        traceback.print_exc()
        connection.send(f"{type(error).__name__}: {str(error).partition(NEW_LINE)[0]}")
