"""What tests of training share: what a run wrote, whether two are the same, and runs in processes to be killed."""

from __future__ import annotations

import json
import multiprocessing
import runpy
import socket
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from headway.bench.tasks.training import checkpoint

SCRIPT = """
import os
os.environ.update(ENVIRONMENT)
os.dup2(os.open(ERRORS, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
import torch
torch.set_num_threads(1)
from MODULE import run
run(CONFIG, OUT, progress=False, cpu=True, **OPTIONS)
"""


def one_thread():
    """For an autouse fixture. Models this small are slower on several; and the same bits need the same number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def weights(folder):
    return load_file(Path(folder) / "model" / "model.safetensors")


def log(folder, *names):
    lines = [json.loads(line) for line in (Path(folder) / "log.jsonl").read_text().splitlines()]
    return [tuple(line[name] for name in ("step", *names)) for line in lines if names[0] in line]


def saved_step(folder):
    kept = checkpoint.steps(Path(folder) / "checkpoints")
    return int(kept[-1].name.removeprefix("step-")) if kept else 0


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    for name in one:
        assert torch.equal(one[name], other[name]), name


def assert_same_run(one, other, accuracy="masked_accuracy"):
    """The same weights, and the same numbers on the way to them."""
    assert_same_bits(weights(one), weights(other))
    for names in (("loss", "gradient_norm", "learning_rate"), ("evaluation_loss", accuracy)):
        assert log(one, *names) == log(other, *names)


def assert_close(one, other):
    """Up to rounding: Adam divides by the size of gradients, so that noise in tiny ones moves a weight."""
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], atol=2e-4, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}")


class Forked:
    """Runs in processes of their own, forked from one that has imported everything, so that each starts at once."""

    def __init__(self, folder, module):
        self.script = folder / "script.py"
        self.script.write_text(SCRIPT.replace("MODULE", module))
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([module])
        self.started = []

    def __call__(self, config, out, environment=None, **options):
        """A process that runs it, and the file with its standard error."""
        errors = self.script.with_name(f"errors-{time.monotonic_ns()}")
        given = {
            "CONFIG": config,
            "OUT": str(out),
            "ENVIRONMENT": environment or {},
            "ERRORS": str(errors),
            "OPTIONS": options,
        }
        process = self.context.Process(target=runpy.run_path, args=(str(self.script), given), daemon=True)
        process.start()
        self.started.append(process)
        return process, errors

    def pair(self, config, out, **options):
        """The run in two connected processes."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks = ({**shared, "RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": "1"} for rank in ("0", "1"))
        return [self(config, out, environment, **options) for environment in ranks]

    def kill(self):
        for process in self.started:
            process.kill()


def forked_for(module):
    """A fixture: runs of this module, killed when a file's tests are done."""

    @pytest.fixture(scope="module")
    def forked(tmp_path_factory):
        processes = Forked(tmp_path_factory.mktemp("processes"), module)
        yield processes
        processes.kill()

    return forked


def finished(processes, seconds=120):
    for process, errors in processes:
        process.join(seconds)
        assert process.exitcode == 0, errors.read_text()[-2000:]


def until(condition, errors, seconds=60):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, errors.read_text()[-2000:] if errors.exists() else "nothing happened"
        time.sleep(0.005)
