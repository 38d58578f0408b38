"""Numbers that were measured several times: their median and spread, intervals, and tests of differences.

The tests claim nothing that a few seeds cannot show.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, mean, median, stdev

LEVEL = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """The median of values, and the ends of the range that holds the middle three fifths of them (20 and 80 %)."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Return the median of values, with their 20 and 80 % quantiles."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return Spread(median=median(ordered), low=ordered[int(0.2 * last)], high=ordered[int(0.8 * last + 0.5)])


def ratio(values: Sequence[float], baseline: Sequence[float]) -> Spread:
    """Return the spread of ratios taken round by round, so that a slow moment of the machine hits both sides."""
    return spread([own / other for own, other in zip(values, baseline, strict=True)])


def student_half_width(differences: Sequence[float], *, comparisons: int = 1) -> float:
    """Return half the width of Student's interval of the mean of at least two differences.

    Args:
        comparisons: number of such intervals that hold together with 95 % (Bonferroni).
    """
    count = len(differences)
    return _student(1 - LEVEL / (2 * comparisons), count - 1) * stdev(differences) / math.sqrt(count)


def pooled_half_width(pooled: tuple[float, int], count: int, *, comparisons: int = 1) -> float:
    """Return half the width of the interval of the difference of two means of `count` values each.

    Args:
        pooled: deviation of the values and its degrees of freedom, see `pooled_deviation`.
        comparisons: number of such intervals that hold together with 95 % (Bonferroni).
    """
    deviation, degrees = pooled
    return _student(1 - LEVEL / (2 * comparisons), degrees) * deviation * math.sqrt(2 / count)


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """A summary of several runs of one number; `deviation` is None for a single one."""

    median: float
    mean: float
    low: float
    high: float
    deviation: float | None
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        return cls(
            median=median(values),
            mean=mean(values),
            low=min(values),
            high=max(values),
            deviation=stdev(values) if len(values) > 1 else None,
            runs=len(values),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """One row against the baseline, paired by seed.

    Args:
        difference: median over the pairs, row minus baseline.
        p: of the exact test; None without pairs.
        adjusted: p corrected for all comparisons of the family (Holm).
        needed: the fewest pairs with which the test could reach the level at all, after correction.
        verdict: above, below, "not told apart", or "too few seeds".
    """

    pairs: int
    difference: float | None
    p: float | None
    adjusted: float | None
    needed: int
    verdict: str


def compare(
    rows: Mapping[str, Mapping[str, float]], baseline: Mapping[str, float], level: float = LEVEL
) -> dict[str, Comparison]:
    """Compare each row with the baseline on the seeds that both have, as one family of tests."""
    pairs = {
        name: [(values[seed], baseline[seed]) for seed in values if seed in baseline] for name, values in rows.items()
    }
    tested = {name: sign_flip([a - b for a, b in both]) for name, both in pairs.items() if both}
    adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
    needed = pairs_needed(len(tested), level)
    found = {}
    for name, both in pairs.items():
        differences = [a - b for a, b in both]
        found[name] = Comparison(
            pairs=len(both),
            difference=median(differences) if differences else None,
            p=tested.get(name),
            adjusted=adjusted.get(name),
            needed=needed,
            verdict=_comparison_verdict(len(both), needed, adjusted.get(name), differences, level),
        )
    return found


def _comparison_verdict(
    pairs: int, needed: int, adjusted: float | None, differences: Sequence[float], level: float
) -> str:
    if pairs < needed or adjusted is None:
        return "too few seeds"
    if adjusted > level:
        return "not told apart"
    return "above" if sum(differences) > 0 else "below"


def sign_flip(differences: Sequence[float]) -> float:
    """Return the exact two-sided p of a mean difference: the share of the 2^n exchanges of pairs that differ as much.

    It does not assume a normal distribution, which three or five seeds could not support; p is at least 2 / 2^n.
    """
    from scipy.stats import permutation_test

    if len(differences) == 1 or not any(differences):
        return 1.0
    return float(
        permutation_test(
            (list(differences),),
            lambda values, axis: values.mean(axis=axis),
            permutation_type="samples",
            vectorized=True,
            n_resamples=math.inf if len(differences) <= 16 else 99_999,
            rng=0,
        ).pvalue
    )


def holm(values: Sequence[float]) -> list[float]:
    """Apply Holm's step-down correction (1979): adjust each test's p so that the family keeps its level."""
    order = sorted(range(len(values)), key=lambda at: values[at])
    adjusted, highest = [0.0] * len(values), 0.0
    for rank, at in enumerate(order):
        highest = max(highest, min(1.0, (len(values) - rank) * values[at]))
        adjusted[at] = highest
    return adjusted


def share_interval(successes: float, trials: int, level: float = LEVEL) -> tuple[float, float]:
    """Return Wilson's interval (1927) of a share; unlike the normal one it is not empty where all trials succeed."""
    from scipy.special import ndtri

    z = float(ndtri(1 - level / 2))
    share, weight = successes / trials, z * z / trials
    middle = (share + weight / 2) / (1 + weight)
    half = z * math.sqrt(share * (1 - share) / trials + weight / (4 * trials)) / (1 + weight)
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """The difference of two means, with half the width of an interval that holds together with all others."""

    difference: float
    half_width: float


def pooled_deviation(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Return the standard deviation within groups, pooled over them, and its degrees of freedom."""
    degrees = sum(len(group) - 1 for group in groups if group)
    if degrees < 1:
        raise ValueError("groups: expected one with several values, got single values. Add a seed.")
    squares = sum((value - fmean(group)) ** 2 for group in groups if group for value in group)
    return math.sqrt(squares / degrees), degrees


def simultaneous_intervals(
    rows: Mapping[str, Sequence[float]],
    baseline: Sequence[float],
    level: float = LEVEL,
    *,
    pooled: tuple[float, int] | None = None,
    comparisons: int | None = None,
) -> dict[str, Interval]:
    """Return each row's mean minus the baseline's, with intervals that all hold together at 1 - `level`.

    Args:
        pooled: s and its degrees of freedom, where not all rows count in it.
        comparisons: the number of rows, where some are not there yet.

    Formula:  mean(row) - mean(baseline) +- t s sqrt(1 / n + 1 / m)
    Symbols:  n, m -> number of values of row and baseline; s -> deviation within rows and baseline, pooled;
              t -> Student's quantile at 1 - level / (2 comparisons), with the degrees of freedom of s (Bonferroni)
    """
    deviation, degrees = pooled or pooled_deviation([*rows.values(), baseline])
    quantile = _student(1 - level / (2 * (comparisons or max(1, len(rows)))), degrees)
    return {
        name: Interval(
            difference=fmean(values) - fmean(baseline),
            half_width=quantile * deviation * math.sqrt(1 / len(values) + 1 / len(baseline)),
        )
        for name, values in rows.items()
    }


def least_difference(
    deviation: float, degrees: int, seeds: int, comparisons: int, *, level: float = LEVEL, power: float = 0.8
) -> float:
    """Return the true difference that is detected with a probability of about `power`.

    It is detected if the interval of two rows with `seeds` values each lies above 0.
    """
    quantiles = _student(1 - level / (2 * comparisons), degrees) + _student(power, degrees)
    return quantiles * deviation * math.sqrt(2 / seeds)


def _student(probability: float, degrees: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))


def pairs_needed(tests: int, level: float = LEVEL) -> int:
    """Return the fewest pairs with which the smallest p, 2 / 2^n, passes Holm's first step among so many tests."""
    return math.ceil(1 + math.log2(max(tests, 1) / level))
