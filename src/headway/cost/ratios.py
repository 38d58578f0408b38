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
    paired = sorted(own / other for own, other in zip(seconds, baseline, strict=True))
    last = len(paired) - 1
    return Ratio(median=statistics.median(paired), low=paired[int(0.2 * last)], high=paired[int(0.8 * last + 0.5)])
