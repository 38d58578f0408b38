"""What heads attend to: the offsets, the first token, everything alike.

From positions alone (the softmax of F_P; Chen et al. 2021b, Figs. 4 and 7) or from a text. Kinds follow what Clark et
al. (2019) and Htut et al. (2019) describe in BERT and Wennberg and Henter (2021), Sec. 5, in ALBERT: heads of the
previous or next token, of several tokens to either side, and with little or no positional dependence; the column of
[CLS] is that of Chen et al. (2021b), Sec. 4.5. The thresholds are ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from headway.pretrained.analysis.matrices import Array, Blocks, bands
from headway.pretrained.analysis.toeplitz import sum_diagonals

KINDS = ("previous", "next", "first", "local", "broad", "other")


@dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """When a head is of a kind; the first that applies, in the order of `KINDS`, is taken."""

    token: float = 0.4  # share of the previous, or next, token, from which on it is what the head attends to
    first: float = 0.4  # share of the first token, likewise
    radius: int = 5  # tokens to either side that are local
    local: float = 0.5  # share within the radius
    broad: float = 0.9  # entropy, as a share of the greatest there can be


@dataclass(frozen=True, eq=False)
class Patterns:
    """Shares of attention, averaged over queries, of H heads (or layers and heads, once stacked)."""

    length: int
    offsets: Array  # (2 L - 1,), j - i
    by_offset: Array  # (..., H, 2 L - 1), mean weight of the pairs with each offset
    previous: Array  # (..., H), share of the token before, over queries that have one
    own: Array  # (..., H), share of the query's own token
    next: Array  # (..., H), share of the token after
    local: Array  # (..., H), share within Thresholds.radius, the query's own token included
    first: Array  # (..., H), share of position 0, over the other queries
    entropy: Array  # (..., H), 0: one key; 1: all keys alike
    distance: Array  # (..., H), mean of |j - i|

    def kinds(self, thresholds: Thresholds | None = None) -> Array:  # (..., H), of strings
        """Return the kind of each head."""
        asked = thresholds or Thresholds()
        is_kind = {
            "previous": self.previous >= asked.token,
            "next": self.next >= asked.token,
            "first": self.first >= asked.first,
            "local": self.local >= asked.local,
            "broad": self.entropy >= asked.broad,
        }
        return np.select(list(is_kind.values()), list(is_kind), default="other")


def attention_patterns(scores: Blocks, *, causal: bool = False, radius: int = Thresholds().radius) -> Patterns:
    """Measure the shares of attention that scores give, after the softmax over each row."""
    length, heads = scores.length, scores.heads
    sums = np.zeros((heads, 2 * length - 1))
    first, entropy = np.zeros((2, heads))
    for start, band in bands(scores):
        rows = np.arange(start, start + band.shape[1])
        weights = softmax(band, rows if causal else None)
        at = length - start - band.shape[1]
        sums[:, at : at + length + band.shape[1] - 1] += sum_diagonals(weights)
        first += weights[:, rows > 0, 0].sum(axis=1)
        keys = rows + 1.0 if causal else np.full(len(rows), float(length))
        bits = -(weights * np.log(np.where(weights > 0.0, weights, 1.0))).sum(axis=-1)
        entropy += (bits / np.log(np.maximum(keys, 2.0))).sum(axis=-1)
    offsets = np.arange(-(length - 1), length)
    pairs = length - np.abs(offsets)
    by_offset = sums / pairs
    distance = sums @ np.abs(offsets) / length
    near = np.abs(offsets) <= radius
    alone = 1 if causal else 0  # a causal model's first query has one key alone: no choice, no entropy
    return Patterns(
        length=length,
        offsets=offsets,
        by_offset=by_offset,
        previous=by_offset[:, length - 2],
        own=by_offset[:, length - 1],
        next=by_offset[:, length],
        local=sums[:, near].sum(axis=1) / length,
        first=first / (length - 1),
        entropy=entropy / (length - alone),
        distance=distance,
    )


def softmax(scores: Array, rows: Array | None = None) -> Array:  # (..., rows, L)
    """Take the softmax over the keys; with the rows' positions, over keys j <= i alone."""
    if rows is not None:
        scores = np.where(np.arange(scores.shape[-1]) <= rows[:, None], scores, -np.inf)
    weights: Array = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def stack_patterns(patterns: Sequence[Patterns]) -> Patterns:
    """Stack the patterns of several layers, of one length, along a new first axis."""
    first = patterns[0]
    each = {name: np.stack([getattr(one, name) for one in patterns]) for name in _measured()}
    return Patterns(length=first.length, offsets=first.offsets, **each)


def average_patterns(patterns: Sequence[Patterns]) -> Patterns:
    """Average over several texts, which may differ in length: an offset's share is that of all pairs that have it."""
    longest = max(patterns, key=lambda one: one.length)
    sums, pairs = np.zeros_like(longest.by_offset), np.zeros(len(longest.offsets))
    for one in patterns:
        at = slice(longest.length - one.length, longest.length + one.length - 1)
        pairs[at] += one.length - np.abs(one.offsets)
        sums[..., at] += one.by_offset * (one.length - np.abs(one.offsets))
    each = {name: np.mean([getattr(one, name) for one in patterns], axis=0) for name in _measured() - {"by_offset"}}
    return Patterns(length=longest.length, offsets=longest.offsets, by_offset=sums / pairs, **each)


def _measured() -> set[str]:
    return {field.name for field in fields(Patterns)} - {"length", "offsets"}
