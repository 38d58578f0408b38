"""Pretraining in several processes: they are one, and none waits for a dead one."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from tiny_pretraining import STEPS, TINY, WITHOUT_DROPOUT, pretrain, shards, tiny
from training_runs import assert_close, finished, forked_for, log, one_thread, until, weights

from headway.bench.tasks.pretrain import Intervals
from headway.bench.tasks.training import checkpoint

_one_thread = pytest.fixture(scope="module", autouse=True)(one_thread)
data, forked = shards, forked_for("headway.bench.tasks.pretrain")


def test_a_batch_that_processes_cannot_share(tmp_path, data, forked):
    started = forked.pair(tiny(data, batch=7), tmp_path / "run")
    for process, errors in started:
        process.join(60)
        assert process.exitcode == 1
        assert "batch: expected a multiple of 2 (2 processes x 1 accumulated parts), got 7" in errors.read_text()


@pytest.mark.parametrize("fsdp", [False, True])
def test_two_processes_are_one_and_resume(tmp_path, data, forked, fsdp):
    config = tiny(data, model=WITHOUT_DROPOUT, steps=12)
    pretrain(config, tmp_path / "one")
    started = forked.pair(config, tmp_path / "two", fsdp=fsdp)
    until(lambda: checkpoint.steps(tmp_path / "two" / "checkpoints"), started[0][1])
    for process, _ in started:
        process.kill()
    finished(forked.pair(config, tmp_path / "two", fsdp=fsdp, resume=True))
    for name in ("loss", "gradient_norm", "evaluation_loss", "masked_accuracy"):
        one, two = (np.array(log(tmp_path / run, name)) for run in ("one", "two"))
        np.testing.assert_allclose(two, one, rtol=2e-4)
    assert_close(weights(tmp_path / "one"), weights(tmp_path / "two"))


@pytest.mark.parametrize("victim", [0, 1])
def test_a_dead_process_stops_the_others(tmp_path, data, forked, victim):
    config = tiny(data, steps=100_000, intervals=Intervals(log=10, evaluate=100_000, checkpoint=10))
    started = forked.pair(config, tmp_path / "run")
    until(lambda: checkpoint.steps(tmp_path / "run" / "checkpoints"), started[0][1])
    started[victim][0].kill()
    survivor, errors = started[1 - victim]
    survivor.join(60)
    assert survivor.exitcode == 1
    said = errors.read_text()
    assert f"process {1 - victim} of 2: another process died or hangs" in said
    assert "The last good checkpoint is" in said
    assert "--resume" in said


@pytest.mark.slow  # three processes import everything; test_two_processes_are_one_and_resume is the quick one
def test_the_command_under_torchrun_follows_one_process(tmp_path, data):
    pretrain(tiny(data, model=WITHOUT_DROPOUT), tmp_path / "one")
    sizes = [f"--set=model.changes.{name}={value}" for name, value in {**TINY, **WITHOUT_DROPOUT}.items()]
    asked = (
        *("--model", "tiny", "--encoding", "diet-rel", *sizes, "--data", data, "--length", "32"),
        *("--steps", str(STEPS), "--batch", "8", "--learning-rate", "0.01", "--set", "optimisation.warmup=0.1"),
        *("--set", "intervals.log=4", "--set", "intervals.evaluate=8", "--set", "intervals.checkpoint=4"),
        *("--cpu", "--out", str(tmp_path / "two")),
    )
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*torchrun, "-m", "headway", "pretrain", *asked], capture_output=True, text=True, env=environment, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count(f"wrote {tmp_path / 'two'}") == 1
    one, two = (np.array(log(tmp_path / run, "loss")) for run in ("one", "two"))
    np.testing.assert_allclose(two, one, rtol=2e-4)
    assert_close(weights(tmp_path / "one"), weights(tmp_path / "two"))
