"""Medians over seeds, the best rate, and what transfer adds up to."""

from __future__ import annotations

import pytest

from headway.bench.statistics import Summary
from headway.bench.tasks.finetune.sweep import summarise
from headway.bench.tasks.finetune.trial import RunResult


def result(rate, seed, score, transfer=None):
    return RunResult(
        rate=rate,
        seed=seed,
        score=score,
        metrics={"dev": {"score": score, "accuracy": score}, "dev_mismatched": {"score": 0.5, "accuracy": 0.5}},
        step=1,
        steps=2,
        history=[(1, score)],
        transfer=transfer or {},
        parameters=1,
        seconds=1.0,
    )


def test_the_median_decides_and_not_the_best_run():
    runs = [result(1e-5, seed, score) for seed, score in enumerate((0.2, 0.3, 0.99))]
    runs += [result(2e-5, seed, score) for seed, score in enumerate((0.4, 0.5, 0.6))]
    best, other = summarise(runs)
    assert (best.rate, best.score.median, best.score.runs) == (2e-5, 0.5, 3)
    assert (best.score.low, best.score.high) == (0.4, 0.6)
    assert best.score.deviation == pytest.approx(0.1)
    assert best.scores == {"0": 0.4, "1": 0.5, "2": 0.6}
    assert other.score.median == 0.3
    assert best.metrics["dev_mismatched accuracy"].median == 0.5


def test_of_equal_rates_the_lower_one_and_an_even_number_of_runs():
    runs = [result(rate, seed, score) for rate in (2e-5, 1e-5) for seed, score in enumerate((0.4, 0.6))]
    assert [summary.rate for summary in summarise(runs)] == [1e-5, 2e-5]
    assert summarise(runs)[0].score.median == pytest.approx(0.5)


def test_one_run_has_no_deviation():
    assert Summary.of([0.5]) == Summary(median=0.5, mean=0.5, deviation=None, low=0.5, high=0.5, runs=1)


def test_transfer_has_languages_and_their_mean():
    runs = [
        result(1e-5, seed, 0.5, {"xquad": {"de": {"score": a, "f1": a}, "zh": {"score": b, "f1": b}}})
        for seed, (a, b) in enumerate([(0.1, 0.3), (0.5, 0.9), (0.2, 0.2)])
    ]
    found = summarise(runs)[0].transfer
    assert set(found) == {"xquad average f1", "xquad de f1", "xquad zh f1"}
    assert found["xquad de f1"].median == pytest.approx(0.2)
    assert found["xquad average f1"].median == pytest.approx(0.2)  # of 0.2, 0.7 and 0.2, not of the medians
