"""Numbers over seeds, and tests that claim nothing that so few seeds cannot show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, stdev

LEVEL = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Several runs of one number; `deviation` is None for a single one."""

    median: float
    low: float
    high: float
    deviation: float | None
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        return cls(
            median=median(values),
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
        adjusted: corrected for all comparisons of the family (Holm).
        needed: pairs with which the test could reach the level at all, after correction.
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
    """Each row against the baseline, by the seeds that both have; one family of tests."""
    pairs = {
        name: [(values[seed], baseline[seed]) for seed in values if seed in baseline] for name, values in rows.items()
    }
    tested = {name: sign_flip([a - b for a, b in both]) for name, both in pairs.items() if both}
    adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
    needed = pairs_needed(len(tested), level)
    found = {}
    for name, both in pairs.items():
        differences = [a - b for a, b in both]
        middle = median(differences) if differences else None
        found[name] = Comparison(
            pairs=len(both),
            difference=middle,
            p=tested.get(name),
            adjusted=adjusted.get(name),
            needed=needed,
            verdict=_verdict(len(both), needed, adjusted.get(name), differences, level),
        )
    return found


def _verdict(pairs: int, needed: int, adjusted: float | None, differences: Sequence[float], level: float) -> str:
    if pairs < needed or adjusted is None:
        return "too few seeds"
    if adjusted > level:
        return "not told apart"
    return "above" if sum(differences) > 0 else "below"


def sign_flip(differences: Sequence[float]) -> float:
    """Two-sided exact p of a mean difference: the share of the 2^n ways of exchanging pairs that differ as much.

    No normality is assumed, which three or five seeds could not bear out; so p is 2 / 2^n at the least.
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
    """Holm's step-down correction (1979): the p of each test, so adjusted that the family keeps its level."""
    order = sorted(range(len(values)), key=lambda at: values[at])
    adjusted, highest = [0.0] * len(values), 0.0
    for rank, at in enumerate(order):
        highest = max(highest, min(1.0, (len(values) - rank) * values[at]))
        adjusted[at] = highest
    return adjusted


def pairs_needed(tests: int, level: float = LEVEL) -> int:
    """The fewest pairs with which the smallest p, 2 / 2^n, passes Holm's first step among so many tests."""
    return math.ceil(1 + math.log2(max(tests, 1) / level))
