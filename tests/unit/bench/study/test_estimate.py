"""Estimates of time and disk: by what was measured, else by what is stated."""

from __future__ import annotations

import pytest

from headway.bench.study.estimate import Estimates, free_bytes, wall_time, work
from headway.bench.study.job import Job
from headway.bench.study.store import Store
from headway.bench.study.view import duration
from headway.bench.tasks.finetune import Data, FinetuneConfig, Grid, Protocol, Start
from headway.storage import plain_settings, write_json

PRETRAIN = {"optimisation": {"steps": 10, "batch": 4}, "text": {"length": 8}}


def pretrain(steps=10, weights=1e6, alone=False):
    config = {**PRETRAIN, "optimisation": {"steps": steps, "batch": 4}}
    return Job(kind="pretrain", config=config, label=f"{steps} steps", weights=weights, alone=alone)


def done(store, job, *, seconds, size):
    store.write_request(job)
    record = {"key": job.key, "result": {}, "seconds": seconds, "cpu_seconds": seconds, "bytes": size}
    write_json(store.folder(job.key) / "result.json", record)


def tune(task, limit):
    config = FinetuneConfig(
        task=task,
        start=Start(model="m"),
        data=Data(train=("x",), limit=limit),
        grid=Grid(rates=(1.0, 2.0), seeds=(0, 1, 2)),
        protocol=Protocol(epochs=3, length=16),
    )
    return Job(kind="finetune", config=plain_settings(config))


def test_work_is_tokens():
    assert work(pretrain(10)) == 10 * 4 * 8
    assert work(tune("rte", 100)) == 6 * 3 * 100 * 16
    assert work(tune("rte", None)) == 6 * 3 * 2490 * 16
    assert work(tune("rte", 20_000)) == 6 * 3 * 2490 * 16  # all there are
    assert work(tune("xnli", 20_000)) == 6 * 3 * 20_000 * 16
    assert work(Job(kind="analyse", config={})) == 1


def test_what_was_measured_is_scaled_by_work(tmp_path):
    store = Store(tmp_path)
    done(store, pretrain(10), seconds=3.0, size=1000)
    found = Estimates(store, gpu=False).of(pretrain(50))
    assert found.measured and found.seconds == pytest.approx(15.0) and found.bytes == 1000
    assert not Estimates(store, gpu=False).of(pretrain(50, weights=1e8)).measured  # another size of model


def test_without_measures_assumptions_are_stated(tmp_path):
    estimates = Estimates(Store(tmp_path), gpu=False)
    found = estimates.of(pretrain(10))
    assert not found.measured
    assert found.seconds == pytest.approx(5 + 6 * 1e6 * 320 / 1e10)
    assert "1e+10 floating-point operations a second" in estimates.assumptions()
    assert Estimates(Store(tmp_path), gpu=True).of(pretrain(10)).seconds < found.seconds


def test_small_steps_of_a_gpu_take_their_time_all_the_same(tmp_path):
    estimates = Estimates(Store(tmp_path), gpu=True)
    assert estimates.of(pretrain(1000, weights=1e3)).seconds == pytest.approx(5 + 1000 * 0.01)
    assert estimates.of(pretrain(1000, weights=1e13)).seconds == pytest.approx(5 + 6 * 1e13 * 32_000 / 1.5e14)
    assert "10 ms a step at the least" in estimates.assumptions()


def test_an_unreadable_result_is_left_out_of_estimates(tmp_path):
    store = Store(tmp_path)
    done(store, pretrain(10), seconds=3.0, size=1000)
    (store.folder(pretrain(10).key) / "result.json").write_text("{")
    assert not Estimates(store, gpu=False).of(pretrain(10)).measured


def test_wall_time_shares_slots_but_not_with_jobs_that_run_alone(tmp_path):
    store = Store(tmp_path)
    done(store, pretrain(10), seconds=10.0, size=1)
    estimates = Estimates(store, gpu=False)
    jobs = [pretrain(10), pretrain(20), pretrain(30)]
    assert wall_time(jobs, estimates, 1) == pytest.approx(60.0)
    assert wall_time(jobs, estimates, 3) == pytest.approx(30.0)  # no less than the longest
    assert wall_time([*jobs, pretrain(40, alone=True)], estimates, 3) == pytest.approx(70.0)
    assert wall_time([], estimates, 2) == 0.0


def test_free_bytes_of_a_folder_that_is_not_there_yet(tmp_path):
    assert free_bytes(tmp_path / "a" / "b") > 0


@pytest.mark.parametrize(
    ("seconds", "said"), [(4.4, "4 s"), (99, "99 s"), (600, "10 min"), (12_000, "3 h 20 min"), (187_200, "2 d 4 h")]
)
def test_durations_are_said_as_people_say_them(seconds, said):
    assert duration(seconds) == said
