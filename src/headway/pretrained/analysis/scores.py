"""Scores: what positions, words and segments contribute to those of each head."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from headway.bias import Bias, RelativeKeys
from headway.pretrained.analysis.anatomy import Reading
from headway.pretrained.analysis.hidden_states import token_states
from headway.pretrained.analysis.matrices import Array
from headway.pretrained.analysis.patterns import softmax

FORMULAS = ("model", "equation")  # of F_P: with norms and biases as the model has them, or Eq. (2) as written


@dataclass(frozen=True, eq=False)
class Scores:
    """scale * q k^T + bias of one layer's heads, made tile by tile; a `Blocks`."""

    queries: Array  # (H, L, D)
    keys: Array  # (H, L, D)
    scale: float
    bias: Bias | None
    causal: bool  # whether the model uses the entries with j <= i alone
    meets_keys: bool = False  # whether the table of the bias, Shaw's relative keys, is multiplied with the keys as well

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
        """Return what is added to scale * q k^T; 0 where nothing is."""
        if self.bias is None:
            return np.zeros((1, q_stop - q_start, k_stop - k_start))
        q = torch.from_numpy(self.queries[None, :, q_start:q_stop])
        added: Array = self.bias.tile(q_start, q_stop, k_start, k_stop).dense(q, scale=self.scale)[0].numpy()
        return added + self._added_by_keys(q_start, q_stop, k_start, k_stop) if self.meets_keys else added

    def _added_by_keys(self, q_start: int, q_stop: int, k_start: int, k_stop: int) -> Array:  # (H, Lq, Lk)
        """Return scale * k[j] . table[j - i], which checkpoints of the type relative_key_query have beside q[i]'s."""
        assert isinstance(self.bias, RelativeKeys)
        keys = torch.from_numpy(self.keys[None, :, k_start:k_stop])
        # Seen from the keys, offsets are i - j: the same table, reversed.
        reversed_table = RelativeKeys(self.bias.table.flip(1), q_len=self.length, k_len=self.length)
        met = reversed_table.tile(k_start, k_stop, q_start, q_stop).dense(keys, scale=self.scale)[0].numpy()
        transposed: Array = met.transpose(0, 2, 1)
        return transposed

    def matrices(self) -> Array:  # (H, L, L)
        """Return whole matrices: L x L numbers a head."""
        return self.tile(0, self.length, 0, self.length)


def position_scores(
    reading: Reading,
    layer: int,
    length: int | None = None,
    *,
    formula: str = "model",
    projected: Array | None = None,  # (L, E)
    segments: Array | int = 0,  # (L,)
) -> Scores:
    """Return F_P of every head of a layer.

    Paper:    Wennberg and Henter (2021), Sec. 3.2, Eq. (2): QK^T with each word embedding replaced by the average over
              the vocabulary
    Formula:  F_P[h, i, j] = scale * (x_i W_Q + b_Q) . (x_j W_K + b_K) + bias[h, i, j],
              x = norm(mean word + E_P + E_S), projected to the model's width where it differs
              with formula="equation": scale * (x_i W_Q) . (x_j W_K) + bias[h, i, j], x = mean word + E_P
    Departs:  the paper writes E_P and E_W alone, which formula="equation" takes literally: no norm, no bias of a
              projection, no segment. By default norms, biases of projections, the first segment's row and the scale are
              applied as the model applies them, so that in the first layer F_P is exactly its scores for a text of n
              average words. The scale, 1 / sqrt(d_k), is in Eq. (1) and not in Eq. (2); what the model itself adds to
              its scores, if it does, is Eq. (4)'s. ALBERT's narrow embeddings take their way through its projection
              (without bias in formula="equation"). The paper looks at the first layer, and its model's layers share
              W_Q and W_K: in deeper layers x is what enters the first layer, through that layer's own norm and
              projections; give `projected`, from `hidden_states.position_states`, for what really arrives there
    Checked:  tests/parity/test_position_scores.py

    Per-head segments of headway's encoders are left out: they are not position.

    Args:
        formula: model, as the model computes its scores, or equation, Eq. (2) as it is written.
    """
    if formula not in FORMULAS:
        raise ValueError(f"formula: expected one of {', '.join(FORMULAS)}, got {formula!r}.")
    if not 0 <= layer < len(reading.layers):
        raise ValueError(f"layer: expected 0 to {len(reading.layers) - 1}, got {layer}.")
    parts = reading.layers[layer]
    if formula == "equation":
        if projected is not None or np.any(segments):
            raise ValueError("formula: expected 'model' beside projected or segments, which Eq. (2) does not have.")
        return scores_of(reading, layer, _summed_as_written(reading, reading.length(length)), biases=False)
    if projected is None:
        length = reading.length(length)
        projected = reading.mean_words(length, segments)
        if parts.norm is not None:
            projected = parts.norm(projected)
    return scores_of(reading, layer, projected)


def _summed_as_written(reading: Reading, length: int) -> Array:  # (L, E)
    """Return E_W + E_P of Eq. (2), every row of E_W the average word embedding."""
    summed = np.broadcast_to(reading.word_mean, (length, reading.words.shape[1]))
    if reading.positions is not None:
        summed = summed + reading.positions[:length].astype(np.float64)
    return summed if reading.project is None else reading.project.part(summed)


def scores_of(reading: Reading, layer: int, projected: Array, *, biases: bool = True) -> Scores:  # (L, E)
    """Return a layer's scores for the states that W_Q and W_K meet, without per-head segments.

    Args:
        biases: whether the biases of the projections are added.
    """
    parts = reading.layers[layer]
    queries, keys = parts.queries(projected, bias=biases), parts.keys(projected, bias=biases)
    for turning in reading.rotations:
        device = next((parameter.device for parameter in turning.parameters()), torch.device("cpu"))
        q, k = (torch.from_numpy(part)[None].to(device) for part in (queries, keys))
        queries, keys = (part[0].detach().cpu().numpy() for part in turning.rotate(q, k, layer=layer))
    bias = reading.bias_of(layer, len(projected))
    return Scores(queries, keys, parts.scale, bias, reading.causal, reading.meets_keys)


def text_scores(reading: Reading, ids: Array, segments: Array | None = None) -> dict[str, list[Array]]:
    """Return the matrices of each kind, (H, L, L), one a layer, of a text given as ids of its tokens and segments.

    whole: the scores as the model computes them, masks apart.
    words, positions: the parts in which both query and key come from words, or both from positions. Where position is
    added to the input they are told apart in the first layer alone, as in Chen et al. (2021b), Figs. 2 and 8: deeper
    ones receive a mixture. A norm before the projections is taken with the spread it has on the whole input, so that
    parts add up; biases of projections belong to neither. Where position is added to the scores, that bias is the part
    of positions in every layer (beside that of the input, if there is one too), and words are q k^T. Where q and k are
    rotated (RoPE), there are no parts.
    """
    scores = [scores_of(reading, layer, x) for layer, x in enumerate(token_states(reading, ids, segments))]
    length = len(ids)
    found = {"whole": [score.matrices() for score in scores], "words": [], "positions": []}
    if reading.segment_scores is not None:
        own = np.zeros(length, dtype=np.int64) if segments is None else segments
        for layer, whole in enumerate(found["whole"]):
            whole += reading.segment_scores(layer)[:, own[:, None], own[None, :]]
    if any(score.bias is not None for score in scores):
        found["words"] = [score.scale * np.matmul(score.queries, score.keys.transpose(0, 2, 1)) for score in scores]
        found["positions"] = [added(score) for score in scores]
    if reading.positions is not None:
        words, positions = input_parts(reading, ids, segments)
        found["words"][:1] = [words]
        found["positions"][:1] = [positions + sum(found["positions"][:1])]
    return {kind: matrices for kind, matrices in found.items() if matrices}


def input_parts(reading: Reading, ids: Array, segments: Array | None = None) -> tuple[Array, Array]:
    """Return the first layer's scores of words for words, and of positions for positions, (H, L, L), without biases."""
    assert reading.positions is not None
    parts = reading.layers[0]
    words = reading.words[ids].astype(np.float64)
    summed = reading.summed(words, 0 if segments is None else segments)

    def scores(part: Array) -> Array:
        if reading.norm is not None:
            part = reading.norm.part(part, reading.norm.spread(summed))
        if reading.project is not None:
            part = reading.project.part(part)
        if parts.norm is not None:
            part = parts.norm.part(part, parts.norm.spread(reading.embedded(summed)))
        q, k = parts.queries(part, bias=False), parts.keys(part, bias=False)
        product: Array = parts.scale * np.matmul(q, k.transpose(0, 2, 1))
        return product

    return scores(words), scores(reading.positions[: len(ids)].astype(np.float64))


def added(score: Scores) -> Array:  # (H, L, L)
    """Return whole matrices of what is added to the scores of each head."""
    return np.broadcast_to(score.added(0, score.length, 0, score.length), (score.heads, score.length, score.length))


def has_segments(reading: Reading) -> bool:
    """Return whether a model tells two segments or more apart."""
    if reading.segment_scores is not None:
        return bool(reading.segment_scores(0).shape[-1] > 1)  # a single one is a number that all scores share
    return reading.segments is not None and len(reading.segments) > 1


def segment_scores(reading: Reading, layer: int) -> Array:  # (H, S, S)
    """Return the score of a query's segment for a key's (Chen et al. 2021b, Eq. (2), E_S(S(i), S(j))).

    It is the table of per-head segments, E_S, where the model has one. Where segments are added to the input, words and
    positions are replaced by their means, and the rows of segments take their way through norm and projections: what
    F_P is to positions. This reading is ours.
    """
    _check_segments(reading)
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
    """Return attention from positions and segments alone, the second segment beginning in the middle.

    Chen et al. (2021b), Fig. 6.
    """
    _check_segments(reading)
    ids = (np.arange(length) >= length // 2).astype(np.int64)
    scores = position_scores(reading, layer, length, segments=ids).matrices()
    if reading.segment_scores is not None:
        scores = scores + reading.segment_scores(layer)[:, ids[:, None], ids[None, :]]
    return softmax(scores, np.arange(length) if reading.causal else None)


def _check_segments(reading: Reading) -> None:
    if not has_segments(reading):
        raise ValueError(f"model: expected one with two segments or more, got {reading.model_type} without.")
