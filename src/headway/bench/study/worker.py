"""A process that does jobs, each in a fork of itself: what every job imports is imported once.

Reads folders on standard input, a line each; answers each with the exit status of its job. It ends with its input.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from pathlib import Path

from headway.bench.study.job import main

PRELOAD = "--preload"


def preload() -> None:
    """Import what jobs import. Nothing here may start a thread or touch a GPU: neither would survive the fork."""


def fork(folder: Path) -> int:
    """Begin a job in a new process, with its own log; its number comes back."""
    child = os.fork()
    if child:
        return child
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.setsid()  # a job's own processes are in its group, and go with it
    status = 1
    try:
        print(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} begins, process {os.getpid()}", flush=True)
        status = main(folder)
    finally:
        with contextlib.suppress(OSError):  # a full disk must not change the status
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def waited(child: int) -> int:
    """The job's status when it is done. When the input ends, because the study was killed, the job is killed too."""
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            _kill_group(child)
            return os.waitstatus_to_exitcode(status)
        if select.select([0], [], [], 0.02)[0]:  # nobody asks for a second job before the answer: it is the end
            _kill_group(child)
            sys.exit(1)


def _kill_group(child: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)


def serve() -> None:
    if PRELOAD in sys.argv[1:]:
        preload()
    for line in sys.stdin.buffer:
        status = waited(fork(Path(os.fsdecode(line.rstrip(b"\n")))))
        print(status, flush=True)


if __name__ == "__main__":
    serve()
