"""How often to draw from each language, between in proportion to its size and all alike.

Paper:    Lample and Conneau (2019), "Cross-lingual Language Model Pretraining", Sec. 3.1
Formula:  share[l] = size[l]^alpha / sum over m of size[m]^alpha
Symbols:  alpha: 1 is in proportion to size, 0 all alike. The paper takes 0.5, multilingual BERT 0.7, XLM-R 0.3
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

ALPHA = 0.7  # as multilingual BERT
T = TypeVar("T")


def smoothed_shares(sizes: Mapping[str, int], alpha: float) -> dict[str, float]:
    """The share of each language; they sum to 1."""
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"smoothing: expected an exponent from 0 (alike) to 1 (by size), got {alpha}. Pass {ALPHA}.")
    largest = max(sizes.values())
    weights = {name: (size / largest) ** alpha if size else 0.0 for name, size in sizes.items()}
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def quotas(shares: Mapping[str, float], total: int) -> dict[str, int]:
    """Whole numbers that sum to `total`, as near to the shares as can be."""
    exact = {name: share * total for name, share in shares.items()}
    counts = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (counts[name] - exact[name], name))
    for name in by_remainder[: total - sum(counts.values())]:
        counts[name] += 1
    return counts


def repeated(items: Iterable[T], rate: float) -> Iterator[T]:
    """Each item `rate` times on average, evenly spread: some are left out below 1, some come again above."""
    given = 0
    for number, item in enumerate(items, start=1):
        for _ in range(int(number * rate) - given):
            yield item
        given = max(given, int(number * rate))
