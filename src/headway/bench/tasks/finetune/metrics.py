"""Metrics of classification and regression, from scikit-learn and scipy; what they leave undefined is 0 here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Metric = Callable[[NDArray[Any], NDArray[Any]], float]


def accuracy(predicted: NDArray[Any], actual: NDArray[Any]) -> float:
    return float(np.mean(predicted == actual))


def f1(predicted: NDArray[Any], actual: NDArray[Any]) -> float:
    """Of class 1; 0 where it is neither predicted nor there."""
    from sklearn.metrics import f1_score

    return float(f1_score(actual, predicted, labels=[1], average="macro", zero_division=0.0))


def matthews(predicted: NDArray[Any], actual: NDArray[Any]) -> float:
    """Matthews correlation of any number of classes; 0 where all predictions, or all labels, are of one class."""
    from sklearn.metrics import matthews_corrcoef

    if _constant(predicted) or _constant(actual):
        return 0.0
    return float(matthews_corrcoef(actual, predicted))


def pearson(predicted: NDArray[Any], actual: NDArray[Any]) -> float:
    """Linear correlation; 0 where either side is constant, for which scipy has NaN."""
    from scipy.stats import pearsonr

    if _constant(predicted) or _constant(actual):
        return 0.0
    return float(pearsonr(predicted.astype(np.float64), actual.astype(np.float64)).statistic)


def spearman(predicted: NDArray[Any], actual: NDArray[Any]) -> float:
    """Correlation of ranks, ties sharing their mean rank; 0 where either side is constant."""
    from scipy.stats import spearmanr

    if _constant(predicted) or _constant(actual):
        return 0.0
    return float(spearmanr(predicted, actual).statistic)


METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}


def scores(names: tuple[str, ...], predicted: NDArray[Any], actual: NDArray[Any]) -> dict[str, float]:
    """The metrics of those names."""
    if predicted.shape != actual.shape or not len(actual):
        raise ValueError(f"predicted: expected {actual.shape} (from actual), at least one, got {predicted.shape}.")
    return {name: METRICS[name](predicted, actual) for name in names}


def _constant(values: NDArray[Any]) -> bool:
    return bool(np.all(values == values[0]))
