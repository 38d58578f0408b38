"""Synthesizer: a learned matrix of scores for each head, which does not depend on the words.

Tay et al. (2021), "Synthesizer: Rethinking Self-Attention for Transformer Models" (ICML).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.bias import Bias, Dense, LowRank
from headway.encodings.base import Dimensions, PositionEncoding, positions
from headway.encodings.scalar_and_diet import rows_at


class Synthesizer(PositionEncoding):
    """A learned matrix of scores for each head, whole or as a product of two factors.

    Paper:    Tay et al. (2021), Random Synthesizer, softmax(R) V, and Factorized Random, softmax(R_1 R_2^T) V
    Formula:  bias[h, i, j] = matrix[l, h, i, j], or with a rank, sum_r left[l, h, i, r] * right[l, h, j, r]
    Symbols:  R -> matrix, (layers, heads, max_length, max_length);  R_1, R_2 -> left, right, both (layers, heads,
              max_length, rank);  k -> rank, 8 in the paper
    Departs:  normal initialisation with `init_std`
    Yields:   Dense, layers * heads * max_length^2 parameters; or LowRank, 2 * layers * heads * max_length * rank
    Checked:  tests/parity/test_synthesizer.py

    A model with `attention="synthesizer"` has no q and k, and its scores are this bias alone. That is the paper's
    Random Synthesizer or, with rank=8, the factorised one, which is DIET-ABS without words. With `attention="full"` the
    bias is added to q k^T; the paper's mixture of Random and Vanilla also has a weight for each of the two.
    """

    name = "synthesizer"
    paper = "Tay et al. 2021"
    places = ("scores",)
    extends = False
    default_sharing = "none"

    def __init__(
        self, dims: Dimensions, *, sharing: str | None = None, rank: int | None = None, init_std: float = 0.02
    ) -> None:
        super().__init__(dims, sharing=sharing)
        if rank is not None and rank < 1:
            raise ValueError(f"rank: expected None (a whole matrix) or at least 1, got {rank}.")
        self.rank = rank
        self.init_std = init_std
        size = (self.layer_sets, self.head_sets, dims.max_length)
        self.matrix = nn.Parameter(torch.empty(*size, dims.max_length)) if rank is None else None
        self.left = None if rank is None else nn.Parameter(torch.empty(*size, rank))
        self.right = None if rank is None else nn.Parameter(torch.empty(*size, rank))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=self.init_std)

    def _bias(
        self, layer: int, q_len: int, k_len: int, q_start: int, segments: Tensor | None, documents: Tensor | None
    ) -> Bias:
        own = self.layer_set(layer)
        if self.left is not None and self.right is not None:
            left, right = self.left[own], self.right[own]
            return LowRank(rows_at(left, q_len, q_start, documents), rows_at(right, k_len, 0, documents))
        assert self.matrix is not None
        matrix = self.matrix[own]  # (H|1, max_length, max_length)
        if documents is None:
            return Dense(matrix[None, :, q_start : q_start + q_len, :k_len])
        i, j = positions(q_len, q_start, documents), positions(k_len, 0, documents)  # (B, Lq) and (B, Lk)
        return Dense(matrix[:, i[:, :, None], j[:, None, :]].transpose(0, 1))
