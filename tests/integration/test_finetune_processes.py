"""Processes that share the runs of a sweep, and what ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

SHARED = """
import os, signal, sys, time
from pathlib import Path
from types import SimpleNamespace
from headway.bench.tasks.finetune import workers

class Stub:
    def __init__(self, sweeps, **options):
        pass

    def __call__(self, number, pair):
        Path(sys.argv[1], f"run-{pair[1]}").write_text(str(os.getpid()))
        time.sleep(600)

workers.SweepRunner, workers.steps_of = Stub, lambda config, data: 1  # in worker processes, too

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    todo = [(0, (1e-3, seed)) for seed in range(6)]
    sweep = SimpleNamespace(config=None, data=None)
    list(workers.run_in_workers([sweep], todo, jobs=2, cpu=True, graphs=False))
"""


def is_alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def soon(true, seconds=60):
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.02)
    return true()


@pytest.mark.parametrize("sent", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL])
def test_processes_that_share_runs_end_with_the_one_that_shares_them_out(tmp_path, sent):
    """And begin no other run before they do."""
    (tmp_path / "shared.py").write_text(SHARED)
    runs = tmp_path / "runs"
    runs.mkdir()
    command = [sys.executable, str(tmp_path / "shared.py"), str(runs)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        assert soon(lambda: sum(bool(each.read_text()) for each in runs.iterdir()) == 2)
        process.send_signal(sent)
        process.wait(60)
        shared = [int(each.read_text()) for each in runs.iterdir()]
        assert soon(lambda: not any(map(is_alive, shared)))
        assert len(list(runs.iterdir())) == 2
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
