"""Worker processes: start one, ask it for something, learn why it did not answer, and end it.

Studies, fine-tuning sweeps and cost tables run their work this way. `concurrent.futures` does not fit: its pool queues
more work than it has processes and cannot take it back, one dead process breaks the pool, and its processes outlive a
parent that is killed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

Request = tuple[Any, ...]


class WorkerDied(RuntimeError):
    """A worker process ended before it answered.

    Args:
        status: its exit code, or the negative number of the signal that killed it.
        request: what it was asked last.
    """

    def __init__(self, status: int, request: Request = ()) -> None:
        super().__init__(f"its process ended ({describe_exit(status)})")
        self.status, self.request = status, request


class WorkerLate(RuntimeError):
    """A worker process did not answer before its deadline."""


def describe_exit(status: int) -> str:
    """Describe how a process ended, by its exit code or the negative number of the signal that killed it."""
    if status >= 0:
        return f"exit code {status}"
    return f"killed by signal {-status}" + (", perhaps for lack of memory" if status == -signal.SIGKILL else "")


class Worker:
    """A process that answers requests, one at a time, and ends with the process that started it.

    The process calls `prepare(*arguments)`, which returns the function that answers requests. Everything that passes
    between the processes is pickled. A script that starts workers must guard its main part
    (`if __name__ == "__main__"`), as for all of `multiprocessing`.

    Args:
        gpu: whether the work may use a GPU, see `start_method`.
        preload: modules to import once, in the process that CPU workers are forked from.
        threads: CPU threads of the worker; None leaves that to its libraries.
        environment: environment variables to set in the worker.
        log: file that gets what the worker and its own processes print; None is this process's output.
    """

    def __init__(
        self,
        prepare: Callable[..., Callable[..., Any]],
        *arguments: Any,
        gpu: bool,
        preload: Sequence[str] = (),
        threads: int | None = None,
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
    ) -> None:
        method = start_method(gpu=gpu)
        context: Any = multiprocessing.get_context(method)
        if method == "forkserver":
            _start_fork_server(preload)
        self.connection, far_end = context.Pipe()
        setting = _Setting(
            variables={**(environment or {}), **({} if threads is None else {"OMP_NUM_THREADS": str(threads)})},
            threads=threads,
            log=log,
            work=pickle.dumps((prepare, arguments)),  # unpickled, and so imported, after the variables are set
        )
        self.process = context.Process(target=_serve, args=(setting, far_end))
        try:
            with nullcontext() if method == "forkserver" else _interrupts_blocked():
                self.process.start()
        except BaseException:
            self.connection.close()  # so that the process, if it was started, ends
            raise
        self.request: Request = ()
        far_end.close()  # so that the connection ends with the process

    def ask(self, *request: Any) -> None:
        """Send a request; `answer` returns its answer."""
        self.request = request
        with suppress(OSError):  # the process has ended: `answer` says how
            self.connection.send(request)

    def answer(self, deadline: float | None = None) -> Any:
        """Wait for the answer to the last request, and return it; raise what the worker raised.

        Args:
            deadline: in the time of `time.monotonic`; after it `WorkerLate` is raised.
        """
        try:
            if not self.connection.poll(seconds_until(deadline)):
                raise WorkerLate("its process did not answer in time")
            answer = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            raise WorkerDied(self.process.exitcode, self.request) from None
        if isinstance(answer, _Failure):
            raise answer.error
        return answer

    def kill(self) -> None:
        """End the process, and all that it started, at once."""
        self.connection.close()
        self._kill_group()
        self.process.kill()
        self.process.join()

    def _kill_group(self) -> None:
        if hasattr(os, "killpg"):
            with suppress(ProcessLookupError, PermissionError):  # it has no group yet, or all of it has ended
                os.killpg(self.process.pid, signal.SIGKILL)

    def _end(self, seconds: float) -> None:
        self.process.join(seconds)
        if self.process.is_alive():
            self.kill()
        self._kill_group()  # what the worker started and left behind


def end(workers: Collection[Worker], seconds: float = 10.0) -> None:
    """End workers; those that are busy, or still end, after so many seconds are killed."""
    for worker in workers:
        worker.connection.close()
    deadline = time.monotonic() + seconds
    for worker in workers:
        worker._end(max(0.0, deadline - time.monotonic()))


@contextmanager
def ending(workers: Collection[Worker]) -> Iterator[None]:
    """End workers with the block; kill them where it raises."""
    try:
        yield
    except BaseException:
        for worker in workers:
            worker.kill()
        raise
    end(workers)


def wait_for(workers: Collection[Worker], seconds: float | None = None) -> list[Worker]:
    """Wait until workers have an answer or have ended, at most so many seconds, and return them."""
    waiting = {worker.connection: worker for worker in workers}
    return [waiting[ready] for ready in wait(list(waiting), seconds)]


def share_out(workers: Sequence[Worker], requests: Iterable[Request]) -> Iterator[tuple[Request, Any]]:
    """Hand requests out in their order, and yield each with its answer as soon as there is one.

    After a failure no other request is handed out. Those under way are finished, then the failure is raised.
    """
    left, idle = deque(requests), list(workers)
    busy: dict[Worker, Request] = {}
    failure: Exception | None = None
    while busy or (left and failure is None):
        while left and idle and failure is None:
            worker = idle.pop()
            busy[worker] = left.popleft()
            worker.ask(*busy[worker])
        for worker in wait_for(busy):
            request = busy.pop(worker)
            try:
                answer = worker.answer()
            except Exception as error:
                failure = failure or error
                continue
            idle.append(worker)
            yield request, answer
    if failure is not None:
        raise failure


def start_method(*, gpu: bool) -> str:
    """Choose how workers start.

    CUDA's state does not survive a fork, so workers that may use a GPU are new interpreters. Others are forked from a
    process that has imported what they need; only on Linux, because on macOS libraries do not survive that.
    """
    return "forkserver" if sys.platform == "linux" and not gpu else "spawn"


def _start_fork_server(preload: Sequence[str]) -> None:
    """Start the process that CPU workers are forked from, unless it runs, so that Ctrl-C does not interrupt it.

    It ignores Ctrl-C by itself only once it has imported the modules of `preload`, which takes seconds.
    """
    from multiprocessing import forkserver

    forkserver.set_forkserver_preload(list(preload))
    with _interrupts_blocked():
        forkserver.ensure_running()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C in this thread, and in the processes that it starts until they allow it again."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # it would unblock the signal when it is started later
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _allow_interrupts() -> None:
    """Unblock Ctrl-C in this process, and discard one that came while it was blocked."""
    if hasattr(signal, "pthread_sigmask"):
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # discards a pending one
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.signal(signal.SIGINT, handler)


def available_cores() -> int:
    """Return the number of CPU cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def seconds_until(deadline: float | None) -> float | None:
    """Return the seconds that are left until a deadline, at least 0."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def end_with_parent() -> None:
    """End this process, with all processes of its group if it leads one, when the process that started it ends.

    A parent that is killed can tell nobody; what it started must not go on writing where its successor will.
    """
    parent, number = multiprocessing.parent_process(), os.getppid()

    def follow() -> None:
        if parent is not None:
            parent.join()
        else:
            while os.getppid() == number:
                time.sleep(0.2)
        if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
            os.killpg(os.getpid(), signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=follow, daemon=True, name="parent").start()


@dataclass(frozen=True, kw_only=True)
class _Setting:
    """What a worker process begins with."""

    variables: dict[str, str]
    threads: int | None
    log: Path | None
    work: bytes


@dataclass(frozen=True)
class _Failure:
    error: Exception


def _serve(setting: _Setting, connection: Connection) -> None:
    """Answer requests until the connection ends; runs in the worker process."""
    if hasattr(os, "setsid"):
        os.setsid()  # a group of its own: Ctrl-C in the terminal is for the parent, which then ends its workers
    _allow_interrupts()
    end_with_parent()
    if setting.log is not None:
        log = os.open(setting.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(log, 1)
        os.dup2(log, 2)
    os.environ.update(setting.variables)
    if setting.threads is not None and (torch := sys.modules.get("torch")) is not None:  # it read the variable before
        torch.set_num_threads(setting.threads)
    with suppress(EOFError, ConnectionResetError, BrokenPipeError):  # the parent ended, or waits no longer
        try:
            prepare, arguments = pickle.loads(setting.work)
            answer = prepare(*arguments)
        except Exception as error:
            connection.send(_failure(error))
            return
        while True:
            request = connection.recv()
            try:
                answered = answer(*request)
            except Exception as error:
                answered = _failure(error)
            with contextlib.suppress(OSError):  # a full disk must not change the answer
                sys.stdout.flush()
                sys.stderr.flush()
            connection.send(answered)


def _failure(error: Exception) -> _Failure:
    """Return an error in a form that can be pickled, with its traceback as a note."""
    error.add_note(f"In worker process {os.getpid()}:\n{traceback.format_exc()}")
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        plain = RuntimeError(f"{type(error).__name__}: {error}")
        plain.__notes__ = error.__notes__
        return _Failure(plain)
    return _Failure(error)
