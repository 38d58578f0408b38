"""Pretraining that is killed, interrupted or stopped, anywhere: it goes on to the same bits."""

from __future__ import annotations

import math
import random
import resource
import shutil
import signal
import time
from dataclasses import replace

import pytest
from safetensors.torch import load_file
from tiny_pretraining import WITHOUT_DROPOUT, plan, pretrain, shards, tiny
from training_runs import (
    assert_close,
    assert_same_bits,
    assert_same_run,
    finished,
    forked_for,
    log,
    one_thread,
    saved_step,
    until,
    weights,
)

from headway.bench.tasks.pretrain import Intervals, RunStopped, Text
from headway.bench.tasks.training import checkpoint
from headway.bench.tasks.training.objective import MaskedWords

_one_thread = pytest.fixture(scope="module", autouse=True)(one_thread)
data, forked = shards, forked_for("headway.bench.tasks.pretrain")


def test_killed_anywhere_it_ends_with_the_same_bits(tmp_path, data, forked):
    often = Intervals(log=3, evaluate=8, checkpoint=2)
    config, killed = tiny(data, intervals=often), tmp_path / "killed"
    pretrain(config, tmp_path / "whole")
    draw = random.Random()
    points = []
    for checkpoints in (0, 0, 1, 2, 1, 3, 2):  # how many more there must be, before a moment at random
        process, errors = forked(config, killed, resume=True)
        saved = saved_step(killed)
        until(
            lambda p=process, s=saved, c=checkpoints: p.exitcode == 0 or saved_step(killed) >= s + 2 * c,
            errors,
        )
        time.sleep(draw.uniform(0.0, 0.05 if checkpoints else 0.2))
        process.kill()
        process.join()
        points.append(saved_step(killed))
        assert process.exitcode in (-signal.SIGKILL, 0), errors.read_text()[-2000:]
    assert len(set(points)) > 2, points
    finished([forked(config, killed, resume=True)])
    assert_same_run(tmp_path / "whole", tmp_path / "killed")
    assert not list((tmp_path / "killed").rglob("*.tmp")), points


def interrupted(config, folder, monkeypatch, module, name, calls):
    """A run that ends within a function, after some calls of it, with no chance to clean up behind it."""
    real, left = getattr(module, name), iter(range(calls))

    def dying(*arguments, **options):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(module, name, dying)
        with pytest.raises(KeyboardInterrupt):
            pretrain(config, folder)


@pytest.mark.parametrize(("name", "calls"), [("save_file", 3), ("save_file", 2 * 6 - 1), ("prune", 2), ("prune", 5)])
def test_interrupted_around_a_checkpoint(tmp_path, data, monkeypatch, name, calls):
    pretrain(tiny(data), tmp_path / "whole")
    interrupted(tiny(data), tmp_path / "run", monkeypatch, checkpoint, name, calls)
    pretrain(tiny(data), tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_interrupted_between_the_model_and_the_result(tmp_path, data, monkeypatch):
    from headway.bench.tasks.pretrain import pretraining as module

    interrupted(tiny(data), tmp_path / "run", monkeypatch, module, "write_json", 0)
    saved = weights(tmp_path / "run")
    result = pretrain(tiny(data), tmp_path / "run", resume=True)
    assert_same_bits(saved, weights(tmp_path / "run"))
    assert result.evaluation_loss == log(tmp_path / "run", "evaluation_loss")[-1][1]


def test_a_finished_run_returns_its_result_at_once(tmp_path, data):
    result = pretrain(tiny(data), tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.name != ".lock"}
    assert pretrain(tiny(data), tmp_path / "run", resume=True) == result
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*") if path.name != ".lock"}
    assert before == after
    with pytest.raises(FileExistsError, match=r"finished run\. Add --resume"):
        pretrain(tiny(data), tmp_path / "run")


def test_resuming_with_another_configuration(tmp_path, data, monkeypatch):
    interrupted(tiny(data, model=WITHOUT_DROPOUT), tmp_path / "run", monkeypatch, checkpoint, "prune", 2)
    with pytest.raises(FileExistsError, match=r"stopped run\. Add --resume"):
        pretrain(tiny(data, model=WITHOUT_DROPOUT), tmp_path / "run")
    with pytest.raises(ValueError, match=r"learning_rate was 0\.01 and is 0\.02; seed was 0 and is 1"):
        pretrain(tiny(data, model=WITHOUT_DROPOUT, learning_rate=0.02, seed=1), tmp_path / "run", resume=True)
    # How often it reports, and in how many parts it computes, is free.
    freed = tiny(data, model=WITHOUT_DROPOUT, accumulate=2, intervals=Intervals(log=3, keep=1))
    pretrain(freed, tmp_path / "run", resume=True)
    pretrain(tiny(data, model=WITHOUT_DROPOUT), tmp_path / "whole")
    assert_close(weights(tmp_path / "whole"), weights(tmp_path / "run"))


def test_resuming_with_data_that_changed(tmp_path, data, monkeypatch):
    """Other words of the same vocabulary: nothing but the record tells."""
    mine = shutil.copytree(data, tmp_path / "data")
    config = tiny(str(mine))
    interrupted(config, tmp_path / "run", monkeypatch, checkpoint, "prune", 2)
    shutil.rmtree(mine)
    text = Text(corpus=("builtin:2000:1",), length=32, validation=0.1, evaluation_rows=48)
    pretrain(replace(config, text=text, optimisation=plan(steps=1)), tmp_path / "other")
    shutil.copytree(tmp_path / "other" / "data", mine)
    with pytest.raises(ValueError, match=r"resume: .*run began with other data than .*data has now"):
        pretrain(config, tmp_path / "run", resume=True)
    shutil.rmtree(mine)
    shutil.copytree(data, mine)
    pretrain(config, tmp_path / "run", resume=True)
    pretrain(config, tmp_path / "whole")
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_two_runs_do_not_share_a_folder(tmp_path, data, forked):
    config = tiny(data, steps=100_000, intervals=Intervals(log=1, checkpoint=1000))
    process, errors = forked(config, tmp_path / "run")
    try:
        until(lambda: (tmp_path / "run" / "log.jsonl").exists(), errors)
        with pytest.raises(RunStopped, match="another process is training"):
            pretrain(config, tmp_path / "run", resume=True)
    finally:
        process.kill()


@pytest.mark.parametrize("intervals", [Intervals(log=100, checkpoint=2), Intervals(log=5, checkpoint=2)])
def test_a_loss_that_is_not_finite_stops_it_before_it_is_saved(tmp_path, data, monkeypatch, intervals):
    real, calls = MaskedWords.forward, iter(range(6))

    def broken(self, batch, count):
        return real(self, batch, count) * (math.nan if self.training and next(calls, None) is None else 1.0)

    config = tiny(data, intervals=intervals)
    with monkeypatch.context() as patched:
        patched.setattr(MaskedWords, "forward", broken)
        with pytest.raises(RunStopped, match=r"NaN or infinite at step 7 .*last good checkpoint is .*step-00000006"):
            pretrain(config, tmp_path / "run")
    last = checkpoint.steps(tmp_path / "run" / "checkpoints")[-1]
    assert last.name == "step-00000006"
    assert all(value.isfinite().all() for value in load_file(last / "model.safetensors").values())
    pretrain(config, tmp_path / "run", resume=True)  # without the fault
    pretrain(config, tmp_path / "whole")
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_a_full_disk_stops_it_and_the_last_checkpoint_stays(tmp_path, data, monkeypatch):
    real, calls = checkpoint.save_file, iter(range(3))

    def on_a_full_disk(tensors, path):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        if next(calls, None) is None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))  # bytes; Python ignores the signal
        try:
            real(tensors, path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save_file", on_a_full_disk)
        with pytest.raises(
            RunStopped, match=r"step-00000008 could not be written: .*File too large.*step-00000004. Make room"
        ):
            pretrain(tiny(data), tmp_path / "run")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000004"]
    pretrain(tiny(data), tmp_path / "run", resume=True)
    pretrain(tiny(data), tmp_path / "whole")
    assert_same_run(tmp_path / "whole", tmp_path / "run")
