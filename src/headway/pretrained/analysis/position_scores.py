"""F_P: what positions alone contribute to each head's scores."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from headway.bias import Bias, RelativeKeys
from headway.pretrained.analysis.anatomy import Reading
from headway.pretrained.analysis.arrays import Array


@dataclass(frozen=True, eq=False)
class Scores:
    """scale * q k^T + bias of one layer's heads, made tile by tile; a `Blocks`."""

    queries: Array  # (H, L, D)
    keys: Array  # (H, L, D)
    scale: float
    bias: Bias | None
    causal: bool  # whether the model uses the entries with j <= i alone
    meets_keys: bool = False  # whether the bias, Shaw's relative keys, meets the keys as well

    @property
    def heads(self) -> int:
        return len(self.queries)

    @property
    def length(self) -> int:
        return int(self.queries.shape[1])

    def tile(self, q_start: int, q_stop: int, k_start: int, k_stop: int) -> Array:  # (H, Lq, Lk)
        queries, keys = self.queries[:, q_start:q_stop], self.keys[:, k_start:k_stop]
        scores: Array = self.scale * np.matmul(queries, keys.transpose(0, 2, 1))
        return scores if self.bias is None else scores + self.added(q_start, q_stop, k_start, k_stop)

    def added(self, q_start: int, q_stop: int, k_start: int, k_stop: int) -> Array:  # (H|1, Lq, Lk)
        """What is added to scale * q k^T; 0 where nothing is."""
        if self.bias is None:
            return np.zeros((1, q_stop - q_start, k_stop - k_start))
        q = torch.from_numpy(self.queries[None, :, q_start:q_stop])
        added: Array = self.bias.tile(q_start, q_stop, k_start, k_stop).dense(q, scale=self.scale)[0].numpy()
        return added + self._keys_met(q_start, q_stop, k_start, k_stop) if self.meets_keys else added

    def _keys_met(self, q_start: int, q_stop: int, k_start: int, k_stop: int) -> Array:  # (H, Lq, Lk)
        """scale * k[j] . table[j - i]: what checkpoints of the type relative_key_query have beside q[i]'s."""
        assert isinstance(self.bias, RelativeKeys)
        keys = torch.from_numpy(self.keys[None, :, k_start:k_stop])
        # Seen from the keys, offsets are i - j: the same table, reversed.
        reversed_table = RelativeKeys(self.bias.table.flip(1), q_len=self.length, k_len=self.length)
        met = reversed_table.tile(k_start, k_stop, q_start, q_stop).dense(keys, scale=self.scale)[0].numpy()
        transposed: Array = met.transpose(0, 2, 1)
        return transposed

    def matrices(self) -> Array:  # (H, L, L)
        """All of it: L x L numbers a head."""
        return self.tile(0, self.length, 0, self.length)


def position_scores(
    reading: Reading,
    layer: int,
    length: int | None = None,
    *,
    projected: Array | None = None,  # (L, E)
    segments: Array | int = 0,  # (L,)
) -> Scores:
    """F_P of every head of a layer.

    Paper:    Wennberg and Henter (2021), Sec. 3.2, Eq. (2): QK^T with each word embedding replaced by the average over
              the vocabulary
    Formula:  F_P[h, i, j] = scale * (x_i W_Q + b_Q) . (x_j W_K + b_K) + bias[h, i, j],
              x = norm(mean word + E_P + E_S), projected to the model's width where it differs
    Departs:  the paper writes E_P and E_W alone. Norms, biases of projections, the first segment's row and the scale
              are applied as the model applies them, so that in the first layer F_P is exactly its scores for a text of
              n average words. The paper looks at the first layer, and its model's layers share W_Q and W_K: in deeper
              layers x is what enters the first layer, through that layer's own norm and projections; give `projected`,
              from `headway.pretrained.analysis.hidden_states.of_positions`, for what really arrives there
    Checked:  tests/parity/test_position_scores.py

    Per-head segments of headway's encoders are left out: they are not position.
    """
    if not 0 <= layer < len(reading.layers):
        raise ValueError(f"layer: expected 0 to {len(reading.layers) - 1}, got {layer}.")
    parts = reading.layers[layer]
    if projected is None:
        length = reading.length(length)
        projected = reading.mean_words(length, segments)
        if parts.norm is not None:
            projected = parts.norm(projected)
    return scores_of(reading, layer, projected)


def scores_of(reading: Reading, layer: int, projected: Array) -> Scores:  # (L, E)
    """A layer's scores for what W_Q and W_K meet, without per-head segments."""
    parts = reading.layers[layer]
    queries, keys = parts.queries(projected), parts.keys(projected)
    for turning in reading.rotations:
        device = next((parameter.device for parameter in turning.parameters()), torch.device("cpu"))
        q, k = (torch.from_numpy(part)[None].to(device) for part in (queries, keys))
        queries, keys = (part[0].detach().cpu().numpy() for part in turning.rotate(q, k, layer=layer))
    bias = reading.bias_of(layer, len(projected))
    return Scores(queries, keys, parts.scale, bias, reading.causal, reading.meets_keys)
