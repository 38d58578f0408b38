"""Measuring from end to end: rows in processes that take turns, and what happens when one breaks."""

import multiprocessing
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._inductor.output_code import CompiledFxGraph

from headway.attention.call import self_attention
from headway.bench.cost import CostConfig, measure, turns
from headway.bench.cost.bench import Bench, Case, Prepared, Turn, _compiled_parts
from headway.models import frame

SMALL = {"models": ("tiny",), "batch": 2, "device": "cpu", "rounds": 2}
fork = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 warns where threads are


def by_row(table):
    return {measurement.row: measurement for measurement in table.measurements}


def test_every_row_is_measured_in_turns(monkeypatch):
    monkeypatch.setitem(measure.__globals__["TURN_SECONDS"], "cpu", 0.01)
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


def bench(row, modes):
    config = CostConfig(encodings=(row,), modes=modes, lengths=(16,), **SMALL).resolved(cores=2)
    return Bench(Case(config=config, row=row, model="tiny", length=16, threads=torch.get_num_threads()))


def test_a_broken_path_is_seen_before_it_is_timed(monkeypatch):
    monkeypatch.setattr(frame, "self_attention", lambda qkv, **given: self_attention(qkv, **{**given, "bias": None}))
    errors = bench("diet-rel", ("inference",)).prepare().parity
    assert errors["output"] > 1 and errors["inference"] > 1


def test_training_that_does_not_learn_is_an_error():
    trained = bench("none", ("training",))
    trained.prepare()
    trained.turn("training", 45)
    assert trained.steps == 2 + 1 + 45  # those that are not timed learn as well
    trained.first_loss = 1e-3
    with pytest.raises(FloatingPointError, match=r"expected a loss below the first, 0\.001"):
        trained.turn("training", 1)


def test_numbers_that_are_not_finite_are_an_error():
    broken = bench("none", ("inference",))
    with torch.no_grad():
        broken.model.encoder.norm.weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="inference: expected finite numbers"):
        broken.turn("inference", 1)


class Pretended:
    """A bench without a model; rows behave as their names tell."""

    def __init__(self, case):
        self.case = case
        if case.row == "t5":
            raise RuntimeError("CUDA out of memory\nand much more")
        if case.row == "tisa":
            os._exit(7)  # as a crash would
        if case.row == "alibi":
            time.sleep(60)

    def prepare(self, alone):
        wrong = self.case.row == "rope"
        return Prepared(
            parameters=1,
            parity={"output": 3.25 if wrong else 0.5, "inference": None if wrong else 0.5},
            peak_bytes={"training": 2, "inference": 1},
            flops={"training": 4, "inference": 3},
        )

    def turn(self, mode, steps):
        if self.case.row == "shaw" and mode == "inference":
            os._exit(9)
        seconds = {"none": 0.01, "learned": 0.02}.get(self.case.row, 0.03)
        return Turn(seconds=seconds, launched=float(steps))


@pytest.fixture
def pretended(monkeypatch):
    monkeypatch.setattr("headway.bench.cost.turns.start_method", lambda device: "fork")  # they inherit the pretence
    monkeypatch.setattr("headway.bench.cost.turns.Bench", Pretended)

    def run(*rows, **given):
        return by_row(measure(CostConfig(encodings=rows, lengths=(16,), **{**SMALL, **given})))

    return run


@fork
def test_rows_that_break_do_not_stop_the_others(pretended, capfd):
    rows = pretended("none", "t5", "tisa", "shaw", "learned", together=3)
    assert rows["t5"].problem == "RuntimeError: CUDA out of memory"
    assert "Traceback" in capfd.readouterr().err
    assert rows["tisa"].problem == "its process ended with status 7"
    assert rows["shaw"].problem == "its process ended with status 9"
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
        "wrong, so that it is not timed; error over what is allowed: output 3.25, inference not finite"
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
    monkeypatch.setattr(turns, "start_method", lambda device: "fork")
    monkeypatch.setattr(turns, "Bench", Pretended)
    config = CostConfig(encodings=("none", "alibi"), lengths=(16,), **SMALL).resolved(cores=2)
    cases = [Case(config=config, row=row, model="tiny", length=16, threads=1) for row in ("none", "alibi")]
    with turns.players(cases, 2, time.monotonic() + 2, lambda said: None) as (ready, late):
        assert ready.problem is None and late.problem == turns.LATE
        assert late.process.exitcode is not None
        assert ready.turn("training", 1, None).seconds == 0.01


def test_a_row_that_nobody_waits_for_any_longer_ends_quietly(monkeypatch, capfd):
    ours, theirs = multiprocessing.Pipe()
    ours.close()
    monkeypatch.setattr(turns, "Bench", lambda case: SimpleNamespace(prepare=lambda alone: "ready"))
    turns._play(None, Path("alone"), theirs)
    assert capfd.readouterr() == ("", "")


def test_rows_that_get_ready_use_the_gpu_one_at_a_time(monkeypatch):
    """Else the variant of a kernel that torch's compiler keeps is the one that was disturbed least."""
    told = []

    class Alone:
        def __enter__(self):
            told.append("alone")

        def __exit__(self, *_):
            told.append("with others")

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: told.append("done"))
    monkeypatch.setattr(CompiledFxGraph, "__call__", lambda graph, inputs: told.append("runs") or inputs)
    with _compiled_parts(Alone()):
        assert CompiledFxGraph.__call__(None, [1, 2]) == [1, 2]
    assert told == ["alone", "runs", "done", "with others"]
    CompiledFxGraph.__call__(None, [])
    assert told[4:] == ["runs"]
    told.clear()
    bench("none", ("training", "inference")).prepare(Alone())
    assert told == ["alone", "with others"] * 3
