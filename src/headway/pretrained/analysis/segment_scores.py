"""What segments (sentence A, sentence B) contribute to each head's scores and attention.

Chen et al. (2021b), Eq. (2), E_S(S(i), S(j)), and Fig. 6.
"""

from __future__ import annotations

import numpy as np

from headway.pretrained.analysis.anatomy import Reading
from headway.pretrained.analysis.arrays import Array
from headway.pretrained.analysis.patterns import softmax
from headway.pretrained.analysis.position_scores import position_scores


def has_segments(reading: Reading) -> bool:
    if reading.segment_scores is not None:
        return bool(reading.segment_scores(0).shape[-1] > 1)  # a single one is a number that all scores share
    return reading.segments is not None and len(reading.segments) > 1


def segment_scores(reading: Reading, layer: int) -> Array:  # (H, S, S)
    """The score of a query's segment for a key's: the table of per-head segments, E_S, where the model has one.

    Where segments are added to the input, words and positions are replaced by their means, and the rows of segments
    take their way through norm and projections: what F_P is to positions. This reading is ours.
    """
    _check(reading)
    parts = reading.layers[layer]
    if reading.segment_scores is not None:
        table = reading.segment_scores(layer)
        return np.broadcast_to(table, (parts.heads, *table.shape[1:]))
    assert reading.segments is not None
    mean = reading.word_mean + (0.0 if reading.positions is None else reading.positions.mean(axis=0, dtype=np.float64))
    if reading.constant is not None:
        mean = mean + reading.constant
    x = reading.embedded(mean + reading.segments)
    if parts.norm is not None:
        x = parts.norm(x)
    scores: Array = parts.scale * np.matmul(parts.queries(x), parts.keys(x).transpose(0, 2, 1))
    return scores


def segment_attention(reading: Reading, layer: int, length: int = 32) -> Array:  # (H, L, L)
    """Attention from positions and segments alone, the second segment beginning in the middle (Fig. 6)."""
    _check(reading)
    ids = (np.arange(length) >= length // 2).astype(np.int64)
    scores = position_scores(reading, layer, length, segments=ids).matrices()
    if reading.segment_scores is not None:
        scores = scores + reading.segment_scores(layer)[:, ids[:, None], ids[None, :]]
    return softmax(scores, np.arange(length) if reading.causal else None)


def _check(reading: Reading) -> None:
    if not has_segments(reading):
        raise ValueError(f"model: expected one with two segments or more, got {reading.model_type} without.")
