"""The scores of a real text, and the parts of them that come from words and from positions."""

from __future__ import annotations

import numpy as np

from headway.pretrained.analysis.anatomy import Reading
from headway.pretrained.analysis.arrays import Array
from headway.pretrained.analysis.hidden_states import of_tokens
from headway.pretrained.analysis.position_scores import Scores, scores_of


def text_scores(reading: Reading, ids: Array, segments: Array | None = None) -> dict[str, list[Array]]:
    """Each kind's matrices, (H, L, L), one a layer, of a text given as the ids of its tokens and segments.

    whole: the scores as the model computes them, masks apart.
    words, positions: the parts in which both query and key come from words, or both from positions. Where position is
    added to the input they are told apart in the first layer alone, as in Chen et al. (2021b), Figs. 2 and 8: deeper
    ones receive a mixture. A norm before the projections is taken with the spread it has on the whole input, so that
    parts add up; biases of projections belong to neither. Where position is added to the scores, that bias is the part
    of positions in every layer (beside that of the input, if there is one too), and words are q k^T. Where q and k are
    turned (RoPE), there are no parts.
    """
    scores = [scores_of(reading, layer, x) for layer, x in enumerate(of_tokens(reading, ids, segments))]
    length = len(ids)
    found = {"whole": [score.matrices() for score in scores], "words": [], "positions": []}
    if reading.segment_scores is not None:
        own = np.zeros(length, dtype=np.int64) if segments is None else segments
        for layer, whole in enumerate(found["whole"]):
            whole += reading.segment_scores(layer)[:, own[:, None], own[None, :]]
    if any(score.bias is not None for score in scores):
        found["words"] = [score.scale * np.matmul(score.queries, score.keys.transpose(0, 2, 1)) for score in scores]
        found["positions"] = [_added(score) for score in scores]
    if reading.positions is not None:
        words, positions = input_parts(reading, ids, segments)
        found["words"][:1] = [words]
        found["positions"][:1] = [positions + sum(found["positions"][:1])]
    return {kind: matrices for kind, matrices in found.items() if matrices}


def input_parts(reading: Reading, ids: Array, segments: Array | None = None) -> tuple[Array, Array]:
    """The first layer's scores of words for words, and of positions for positions, (H, L, L) each, without biases."""
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


def _added(score: Scores) -> Array:
    return np.broadcast_to(score.added(0, score.length, 0, score.length), (score.heads, score.length, score.length))
