"""Measuring from end to end: rows in processes that take turns, and what happens when one breaks."""

import os
import time

import pytest
import torch

from headway.bench.cost import CostConfig, measure, rounds
from headway.bench.cost.steps import Case, CaseFacts, StepTime

SMALL = {"models": ("tiny",), "batch": 2, "device": "cpu", "rounds": 2}
fork = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 warns where threads are


def by_row(table):
    return {measurement.row: measurement for measurement in table.measurements}


def test_every_row_is_measured_in_turns(monkeypatch):
    monkeypatch.setitem(rounds.SECONDS_IN_A_ROUND, "cpu", 0.01)
    said = []
    table = measure(CostConfig(encodings=("diet-rel", "transformers"), lengths=(16,), **SMALL), said.append)
    assert [m.row for m in table.measurements] == ["none", "diet-rel", "transformers"]
    for measurement in table.measurements:
        assert measurement.problem is None
        assert measurement.parameters > 4_000_000
        assert all(0 < error <= 1 for error in measurement.parity.values())
        for mode in ("training", "inference"):
            timing = measurement.timing(mode)
            assert len(timing.seconds) == 2 and all(second > 0 for second in timing.seconds)
            assert timing.peak_bytes is None or timing.peak_bytes > 10 * 2**20
            assert table.ratio(measurement, mode).median > 0
        assert measurement.training.median > measurement.inference.median
        assert measurement.training.flops > measurement.inference.flops
    assert table.config.together == 1 and table.environment["threads"] == torch.get_num_threads()
    assert said[-1] == "tiny, n = 16: inference, round 2 of 2"


class PretendedModel:
    """A TimedModel without a model; rows behave as their names tell."""

    def __init__(self, case):
        self.case = case
        if case.row == "t5":
            raise RuntimeError("CUDA out of memory\nand much more")
        if case.row == "tisa":
            os._exit(7)  # as a crash would
        if case.row == "alibi":
            time.sleep(60)

    def prepare(self, gpu_lock):
        wrong = self.case.row == "rope"
        return CaseFacts(
            parameters=1,
            parity={"output": 3.25 if wrong else 0.5, "inference": None if wrong else 0.5},
            peak_bytes={"training": 2, "inference": 1},
            flops={"training": 4, "inference": 3},
        )

    def time(self, mode, steps):
        if self.case.row == "shaw" and mode == "inference":
            os._exit(9)
        seconds = {"none": 0.01, "learned": 0.02}.get(self.case.row, 0.03)
        return StepTime(seconds=seconds, launched=float(steps))


@pytest.fixture
def pretended(monkeypatch):
    monkeypatch.setattr("headway.bench.processes.start_method", lambda gpu: "fork")  # they inherit the pretence
    monkeypatch.setattr("headway.bench.cost.rounds.TimedModel", PretendedModel)

    def run(*rows, **given):
        return by_row(measure(CostConfig(encodings=rows, lengths=(16,), **{**SMALL, **given})))

    return run


@fork
def test_rows_that_break_do_not_stop_the_others(pretended, capfd):
    rows = pretended("none", "t5", "tisa", "shaw", "learned", together=3)
    assert rows["t5"].problem == "RuntimeError: CUDA out of memory"
    assert "Traceback" in capfd.readouterr().err
    assert rows["tisa"].problem == "its process ended (exit code 7)"
    assert rows["shaw"].problem == "its process ended (exit code 9)"
    assert rows["shaw"].training is None and rows["shaw"].parameters == 1
    for name in ("none", "learned"):
        assert rows[name].problem is None
        assert (rows[name].training.flops, rows[name].inference.peak_bytes) == (4, 1)
    assert rows["learned"].training.seconds == (0.02, 0.02)


@fork
def test_all_rows_do_the_same_number_of_steps(pretended):
    rows = pretended("none", "learned")
    assert rows["none"].training.launched == rows["learned"].training.launched == (25.0, 25.0)  # 0.25 s of the baseline


@fork
def test_a_wrong_row_is_not_timed(pretended):
    rows = pretended("none", "rope")
    assert rows["rope"].problem == (
        "wrong, so it is not timed; error over what is allowed: output 3.25, inference not finite"
    )
    assert rows["rope"].training is None and rows["rope"].inference is None
    assert rows["rope"].parity == {"output": 3.25, "inference": None}
    assert rows["none"].training is not None


@fork
def test_without_its_baseline_a_table_has_times_and_no_ratios(pretended):
    table_rows = pretended("learned", "t5", baseline="t5")
    assert table_rows["learned"].training is not None and table_rows["t5"].training is None


@fork
def test_rows_that_are_late_are_left_out(pretended):
    begin = time.monotonic()
    rows = pretended("none", "alibi", together=2, minutes=0.05)
    assert time.monotonic() - begin < 30
    assert rows["alibi"].problem == "not ready in time"
    assert rows["none"].problem is None and len(rows["none"].training.seconds) >= 1


@fork
def test_a_row_that_is_late_does_nothing_while_others_are_timed(monkeypatch):
    monkeypatch.setattr("headway.bench.processes.start_method", lambda gpu: "fork")
    monkeypatch.setattr(rounds, "TimedModel", PretendedModel)
    config = CostConfig(encodings=("none", "alibi"), lengths=(16,), **SMALL).resolved(cores=2)
    cases = [Case(config=config, row=row, model="tiny", length=16, threads=1) for row in ("none", "alibi")]
    with rounds.running_rows(cases, 2, time.monotonic() + 2, lambda said: None) as (ready, late):
        assert ready.problem is None and late.problem == rounds.NOT_READY
        assert late.worker.process.exitcode is not None
        assert ready.time("training", 1, None).seconds == 0.01
