"""Time over the baseline's, taken within one round, so that a noisy machine favours nobody."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """Median over the rounds, and between which values three fifths of them lie (20 and 80 %)."""

    median: float
    low: float
    high: float


def ratio(seconds: Sequence[float], baseline: Sequence[float]) -> Ratio:
    """Of two rows that were timed in the same rounds."""
    return spread([own / other for own, other in zip(seconds, baseline, strict=True)])


def spread(values: Sequence[float]) -> Ratio:
    """The median of values, and their 20 and 80 %."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return Ratio(median=statistics.median(ordered), low=ordered[int(0.2 * last)], high=ordered[int(0.8 * last + 0.5)])
