"""The rank of score matrices: numerical, with a tolerance, and effective.

Chen et al. (2021b), Sec. 2.3, Theorem 1 and Figs. 2 and 8: position added to the input leaves scores of rank d_h at
most; position added to the scores reaches d_h + d_p. Chen et al. (2021a), Fig. 2, compares words with positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from threadpoolctl import threadpool_limits

from headway.pretrained.analysis.arrays import Array

RELATIVE = 1e-3  # of the greatest singular value: the tolerance of `relative`


@dataclass(frozen=True, eq=False)
class Ranks:
    """Ranks of any number of matrices; each field has the shape of their leading axes."""

    numerical: Array  # singular values above L * eps * the greatest (numpy.linalg.matrix_rank, float64)
    relative: Array  # singular values above RELATIVE * the greatest
    effective: Array  # exp of the entropy of the singular values' shares (Roy and Vetterli 2007)


def ranks(matrices: Array) -> Ranks:  # (..., L, L)
    """Numerical, relative and effective rank."""
    with threadpool_limits(1):  # many small matrices: threads would wait for one another
        values = np.linalg.svd(matrices.astype(np.float64), compute_uv=False)
    greatest = values[..., :1]
    noise = greatest * max(matrices.shape[-2:]) * np.finfo(np.float64).eps
    total = values.sum(axis=-1, keepdims=True)
    share = values / np.where(total == 0.0, 1.0, total)
    entropy = -(share * np.log(np.where(share == 0.0, 1.0, share))).sum(axis=-1)
    return Ranks(
        numerical=(values > noise).sum(axis=-1),
        relative=(values > RELATIVE * greatest).sum(axis=-1),
        effective=np.where(total[..., 0] == 0.0, 0.0, np.exp(entropy)),
    )


@dataclass(frozen=True, eq=False)
class TextRanks:
    """Ranks of the scores of each head on each of T texts, by kind: whole, words, positions (see `text_scores`)."""

    lengths: Array  # (T,)
    head_dim: int
    adds_to_scores: bool  # whether the model adds position or segments to its scores
    each: dict[str, Ranks]  # (T, layers, H), of the first layers where a kind is told apart
    average: dict[str, Ranks]  # (layers, H)
    within_theorem: bool | None  # Theorem 1, first part: rank(whole) <= d_h always; None where scores are added to
    beyond_head_dim: float  # share of heads and texts with rank(whole) > d_h, which the second part makes possible


def over_texts(
    texts: Sequence[dict[str, Ranks]],  # of each text, the ranks of each kind, (layers, H)
    *,
    lengths: Sequence[int],
    head_dim: int,
    adds_to_scores: bool,
) -> TextRanks:
    """The ranks of several texts as one. Theorem 1 says something of texts longer than the head's width alone."""
    each = {
        kind: Ranks(*(np.stack([getattr(text[kind], field.name) for text in texts]) for field in fields(Ranks)))
        for kind in texts[0]
    }
    average = {
        kind: Ranks(*(getattr(ranks, field.name).mean(axis=0) for field in fields(Ranks)))
        for kind, ranks in each.items()
    }
    beyond = each["whole"].numerical > head_dim
    return TextRanks(
        lengths=np.array(lengths),
        head_dim=head_dim,
        adds_to_scores=adds_to_scores,
        each=each,
        average=average,
        within_theorem=None if adds_to_scores else not bool(beyond.any()),
        beyond_head_dim=float(beyond.mean()),
    )
