"""Metrics against scikit-learn and scipy, against counts by hand, and where they are undefined."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sk

from headway.bench.tasks.finetune.metrics import METRICS, accuracy, f1, matthews, pearson, scores, spearman


def draw(classes, size=200, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(0, classes, size), rng.integers(0, classes, size)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_classes_agree_with_scikit_learn(classes, seed):
    predicted, actual = draw(classes, seed=seed)
    assert accuracy(predicted, actual) == pytest.approx(sk.accuracy_score(actual, predicted))
    assert matthews(predicted, actual) == pytest.approx(sk.matthews_corrcoef(actual, predicted))
    assert f1(predicted, actual) == pytest.approx(sk.f1_score(actual == 1, predicted == 1))


def test_matthews_by_hand():
    """From the four counts: (6 * 3 - 1 * 2) / sqrt(7 * 8 * 4 * 5)."""
    predicted = np.array([1] * 6 + [0] * 3 + [1] + [0] * 2)
    actual = np.array([1] * 6 + [0] * 3 + [0] + [1] * 2)
    assert matthews(predicted, actual) == pytest.approx((6 * 3 - 1 * 2) / math.sqrt(7 * 8 * 4 * 5))
    assert f1(predicted, actual) == pytest.approx(float(Fraction(12, 15)))


@pytest.mark.parametrize("seed", range(5))
def test_numbers_agree_with_scipy_with_and_without_ties(seed):
    rng = np.random.default_rng(seed)
    actual = rng.integers(0, 6, 300).astype(np.float32)  # many ties
    predicted = (actual + rng.normal(0, 2, 300)).astype(np.float32)
    assert pearson(predicted, actual) == pytest.approx(np.corrcoef(predicted.astype(float), actual)[0, 1])
    assert spearman(predicted, actual) == pytest.approx(stats.spearmanr(predicted, actual).statistic)
    rounded = predicted.round()
    assert spearman(rounded, actual) == pytest.approx(by_mean_ranks(rounded, actual))


def by_mean_ranks(x, y):
    """Spearman from its definition: the linear correlation of ranks, ties sharing the mean of theirs."""

    def ranks(values):
        return [sum(v < value for v in values) + (sum(v == value for v in values) + 1) / 2 for value in values]

    a, b = ranks(list(x)), ranks(list(y))
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    top = sum((p - mean_a) * (q - mean_b) for p, q in zip(a, b, strict=True))
    return top / math.sqrt(sum((p - mean_a) ** 2 for p in a) * sum((q - mean_b) ** 2 for q in b))


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("constant", ["predicted", "actual", "both"])
def test_one_class_only_is_defined(name, constant):
    """No warning (warnings are errors here) and no NaN."""
    mixed, one = np.array([0, 1, 0, 1]), np.array([0, 0, 0, 0])
    predicted = one if constant in ("predicted", "both") else mixed
    actual = one if constant in ("actual", "both") else mixed
    expected = {"accuracy": 1.0 if constant == "both" else 0.5}.get(name, 0.0)
    assert METRICS[name](predicted, actual) == expected


def test_all_of_class_one():
    ones = np.ones(4, int)
    assert f1(ones, ones) == 1.0
    assert matthews(ones, ones) == 0.0  # as scikit-learn


def test_lengths_must_agree():
    with pytest.raises(ValueError, match=r"predicted: expected \(3,\) \(from actual\), at least one, got \(2,\)"):
        scores(("accuracy",), np.zeros(2), np.zeros(3))
    with pytest.raises(ValueError, match="at least one"):
        scores(("accuracy",), np.zeros(0), np.zeros(0))
