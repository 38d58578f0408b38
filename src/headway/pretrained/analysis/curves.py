"""The curves of models that add to their scores: T5's family, MPNet, and headway's encoders."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headway.pretrained.analysis.anatomy import Reading
from headway.pretrained.analysis.arrays import Array
from headway.pretrained.analysis.position_scores import Scores, position_scores
from headway.pretrained.analysis.toeplitz import diagonals


@dataclass(frozen=True, eq=False)
class Curves:
    """What is added to the scores of each layer and head, by offset."""

    offsets: Array  # (N,), j - i; 0 and less for a causal model
    mean: Array  # (layers, H, N)
    std: Array  # (layers, H, N), over the pairs with one offset; 0 for a Toeplitz bias
    r2: Array  # (layers, H), Toeplitz R^2


@dataclass(frozen=True, eq=False)
class _Added:
    """The bias of scores alone; a `Blocks`."""

    scores: Scores

    @property
    def heads(self) -> int:
        return self.scores.heads

    @property
    def length(self) -> int:
        return self.scores.length

    def tile(self, q_start: int, q_stop: int, k_start: int, k_stop: int) -> Array:
        added = self.scores.added(q_start, q_stop, k_start, k_stop)
        return np.broadcast_to(added, (self.heads, *added.shape[1:])).astype(np.float64)


def bias_curves(reading: Reading, length: int | None = None) -> Curves | None:
    """The curves, or None for a model that adds nothing to its scores.

    A bias that meets the query (Shaw, Transformer-XL) is taken with the queries of average words.
    """
    length = reading.length(length)
    if reading.bias_of(0, length) is None:
        return None
    layers = [
        diagonals(_Added(position_scores(reading, layer, length)), causal=reading.causal)
        for layer in range(len(reading.layers))
    ]
    return Curves(
        offsets=layers[0].offsets,
        mean=np.stack([layer.mean for layer in layers]),
        std=np.stack([layer.std for layer in layers]),
        r2=np.stack([layer.r2 for layer in layers]),
    )
