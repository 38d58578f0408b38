"""Which run of a sweep leads, and whose model stays."""

from __future__ import annotations

import os
import signal
from dataclasses import asdict

import pytest

from headway.bench.tasks.finetune import Data, FinetuneConfig, Grid, Protocol, Start, workers
from headway.bench.tasks.finetune.trial import RunResult
from headway.bench.tasks.finetune.workers import Sweep
from headway.bench.tasks.training.run_folder import RunFolder, RunStopped
from headway.storage import write_json


@pytest.fixture
def sweep(tmp_path):
    config = FinetuneConfig(
        task="rte",
        start=Start(model="m"),
        data=Data(train=("glue",)),
        grid=Grid(rates=(1e-5, 2e-5), seeds=(0, 1)),
        protocol=Protocol(epochs=1, length=64),
    )
    return Sweep(config=config, folder=RunFolder(tmp_path), tokenizer=None, data=None)


def finish(sweep, rate, seed, score):
    folder = sweep.run_folder(rate, seed)
    folder.model.mkdir(parents=True)
    result = RunResult(
        rate=rate, seed=seed, score=score, metrics={}, step=1, steps=1, history=[], parameters=1, seconds=1.0
    )
    write_json(folder.result_file, asdict(result))


def models(sweep):
    return [pair for pair in sweep.config.grid.runs if sweep.run_folder(*pair).model.exists()]


def test_the_first_run_leads(sweep):
    assert sweep.leads((2e-5, 1), 0.0)
    assert sweep.finished() == {}


def test_a_higher_score_leads_and_of_equal_ones_the_first_of_the_grid(sweep):
    finish(sweep, 1e-5, 1, 0.7)
    assert sweep.leads((2e-5, 0), 0.8) and not sweep.leads((2e-5, 0), 0.6)
    assert sweep.leads((1e-5, 0), 0.7) and not sweep.leads((2e-5, 0), 0.7)
    finish(sweep, 2e-5, 0, 0.7)
    assert sweep.leader() == (1e-5, 1)
    assert list(sweep.finished()) == [(1e-5, 1), (2e-5, 0)]


def test_of_finished_runs_only_the_leader_keeps_its_model(sweep):
    finish(sweep, 1e-5, 0, 0.6)
    finish(sweep, 2e-5, 0, 0.9)
    sweep.run_folder(2e-5, 1).model.mkdir(parents=True)  # of a run that is just saving it
    sweep.drop_models()
    assert models(sweep) == [(2e-5, 0), (2e-5, 1)]
    finish(sweep, 1e-5, 1, 0.95)
    sweep.drop_models()
    assert models(sweep) == [(1e-5, 1), (2e-5, 1)]


def test_a_run_that_ends_while_models_are_dropped_keeps_its_own(sweep, monkeypatch):
    finish(sweep, 1e-5, 0, 0.6)
    finish(sweep, 1e-5, 1, 0.5)
    read = Sweep.finished

    def and_then_another_ends(self):
        done = read(self)
        if not self.run_folder(2e-5, 0).model.exists():
            finish(self, 2e-5, 0, 0.9)
        return done

    monkeypatch.setattr(Sweep, "finished", and_then_another_ends)
    sweep.drop_models()
    assert models(sweep) == [(1e-5, 0), (2e-5, 0)]


def prepare_dying(sweeps, number, cpu, graphs):
    return lambda number, pair: os.kill(os.getpid(), signal.SIGKILL)


def test_a_run_whose_process_dies_is_named(sweep, monkeypatch):
    monkeypatch.setattr(workers, "prepare_runner", prepare_dying)
    monkeypatch.setattr(workers, "steps_of", lambda config, data: 1)
    with pytest.raises(RunStopped, match=r"run 'rte, rate 1e-05, seed 0' stopped: .*signal 9.*finished ones are kept"):
        list(workers.run_in_workers([sweep], [(0, (1e-5, 0))], jobs=1, cpu=True, graphs=False))
