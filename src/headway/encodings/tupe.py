"""TUPE: scores of absolute positions with projections of their own, apart from the words, and special ones for [CLS].

Ke, He and Liu (2021), "Rethinking Positional Encoding in Language Pre-training" (ICLR; arXiv 2006.15595).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.bias import Bias, LowRank
from headway.encodings.base import Dimensions, PositionEncoding, positions
from headway.encodings.scalar_and_diet import rows_at
from headway.encodings.t5 import T5


class _Tupe(PositionEncoding):
    """The common part of TUPE-A and TUPE-R; `relative` is the T5 encoding of TUPE-R."""

    places = ("scores",)
    extends = False
    default_sharing = "layer"

    def __init__(
        self, dims: Dimensions, *, sharing: str | None, reset: bool, init_std: float, relative: T5 | None
    ) -> None:
        super().__init__(dims, sharing=sharing)
        self.init_std = init_std
        sets = (self.layer_sets, self.head_sets)
        self.table = nn.Parameter(torch.empty(dims.max_length, dims.width))
        self.norm = nn.LayerNorm(dims.width)
        self.query_weight = nn.Parameter(torch.empty(*sets, dims.width, dims.head_dim))
        self.query_bias = nn.Parameter(torch.empty(*sets, dims.head_dim))
        self.key_weight = nn.Parameter(torch.empty(*sets, dims.width, dims.head_dim))
        self.key_bias = nn.Parameter(torch.empty(*sets, dims.head_dim))
        self.theta1 = nn.Parameter(torch.empty(sets)) if reset else None
        self.theta2 = nn.Parameter(torch.empty(sets)) if reset else None
        self.relative = relative
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in (self.table, self.query_weight, self.key_weight, self.theta1, self.theta2):
            if parameter is not None:
                nn.init.normal_(parameter, std=self.init_std)
        nn.init.zeros_(self.query_bias)
        nn.init.zeros_(self.key_bias)
        self.norm.reset_parameters()
        if self.relative is not None:
            self.relative.reset_parameters()

    @property
    def scale(self) -> float:
        """Scale of the products of words and of positions, whose sum then has the usual variance."""
        return float((2 * self.dims.head_dim) ** -0.5)

    def _bias(
        self, layer: int, q_len: int, k_len: int, q_start: int, segments: Tensor | None, documents: Tensor | None
    ) -> Bias:
        own = self.layer_set(layer)
        rows = self.norm(self.table[: max(q_start + q_len, k_len)])  # (L, E)
        queries = (rows @ self.query_weight[own] + self.query_bias[own][:, None]) * self.scale  # (H|1, L, D)
        keys = rows @ self.key_weight[own] + self.key_bias[own][:, None]
        left, right = rows_at(queries, q_len, q_start, documents), rows_at(keys, k_len, 0, documents)
        if self.theta1 is not None and self.theta2 is not None:
            i = positions(q_len, q_start, documents, device=left.device)  # (B|1, Lq)
            j = positions(k_len, 0, documents, device=left.device)  # (B|1, Lk)
            from_cls = self.theta1[own][:, None] - self._relative(layer, j)  # (B|1, H|1, Lk)
            to_cls = self.theta2[own][:, None] - self._relative(layer, -i)  # (B|1, H|1, Lq)
            left, right = _reset(left, right, i[:, None] == 0, j[:, None] == 0, from_cls, to_cls)
        bias: Bias = LowRank(left, right)
        if self.relative is not None:
            bias = bias + self.relative._bias(layer, q_len, k_len, q_start, None, None)
        return bias

    def _relative(self, layer: int, offset: Tensor) -> Tensor:  # (B|1, L) to (B|1, H|1, L)
        """Return the relative bias of one layer at each offset, or zeros."""
        if self.relative is None:
            return self.table.new_zeros(1, 1, 1)
        return self.relative.at(layer, offset).transpose(0, 1)


class TupeAbs(_Tupe):
    """Untied absolute positions: a product of two projections of a learned table, which no word takes part in.

    Paper:    Ke et al. (2021), TUPE-A: Sec. 3.1 for the correlation, Sec. 3.2 for the reset of [CLS]; Chen et al.
              (2021a), Eq. (5) without R
    Formula:  bias[h, i, j] = theta1[l, h]                             where i = 0
                              theta2[l, h]                             where j = 0 and i > 0
                              (2D)^-0.5 * query[l, h, i] . key[l, h, j]  elsewhere
              query[l, h, i] = LayerNorm(table[i]) query_weight[l, h] + query_bias[l, h], and key likewise
    Symbols:  p -> table, (max_length, E);  U^Q, U^K -> query_weight, key_weight, (layers, heads, E, D), with biases
              (layers, heads, D);  theta_1, theta_2 -> theta1, theta2, (layers, heads)
    Departs:  the released code computes each theta from a position of its own; here they are parameters, as in the
              formula.
              LayerNorm and the projections' biases are the released code's. reset=False leaves the reset out
    Yields:   LowRank of rank D, or D + 2 with the reset;
              max_length * E + 2 * E + layers * heads * (2 * (E + 1) * D + 2) parameters
    Checked:  tests/parity/test_tupe.py

    Attention must use `scale`, (2D)^-0.5, for the words as well. All layers use the same table and LayerNorm. With
    sharing "layer", the paper's and the default, there is one pair of projections for all layers; with "none" there is
    one for each layer, and with "head" one for each layer that all its heads use. In packed texts the first token of
    each text counts as [CLS].
    """

    name = "tupe-abs"
    paper = "Ke et al. 2021, Secs. 3.1, 3.2"

    def __init__(
        self, dims: Dimensions, *, sharing: str | None = None, reset: bool = True, init_std: float = 0.02
    ) -> None:
        super().__init__(dims, sharing=sharing, reset=reset, init_std=init_std, relative=None)


class TupeRel(_Tupe):
    """Untied absolute positions and T5's buckets of offsets.

    Paper:    Ke et al. (2021), TUPE-R: Sec. 3.1 for both terms, Sec. 3.2 for the reset; Chen et al. (2021a), Eq. (5)
    Formula:  bias[h, i, j] = theta1[l, h]                             where i = 0
                              theta2[l, h]                             where j = 0 and i > 0
                              (2D)^-0.5 * query[l, h, i] . key[l, h, j] + relative[l, h, bucket(j - i)]  elsewhere
    Symbols:  b_{j-i} -> relative.table, (layers, heads, buckets); the others as in TUPE-A
    Departs:  as TUPE-A. The reset covers both terms, as in the formula; the released code has buckets of its own
              for [CLS] instead
    Yields:   LowRank + Toeplitz, those of TUPE-A and layers * heads * buckets parameters
    Checked:  tests/parity/test_tupe.py
    """

    name = "tupe-rel"
    paper = "Ke et al. 2021, Secs. 3.1, 3.2"

    def __init__(
        self,
        dims: Dimensions,
        *,
        sharing: str | None = None,
        reset: bool = True,
        buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        init_std: float = 0.02,
    ) -> None:
        relative = T5(
            dims,
            sharing=sharing or self.default_sharing,
            buckets=buckets,
            max_distance=max_distance,
            bidirectional=bidirectional,
            init_std=init_std,
        )
        super().__init__(dims, sharing=sharing, reset=reset, init_std=init_std, relative=relative)


def _reset(
    left: Tensor,  # (B|1, H|1, Lq, D)
    right: Tensor,  # (B|1, H|1, Lk, D)
    query_is_cls: Tensor,  # (B|1, 1, Lq), boolean
    key_is_cls: Tensor,  # (B|1, 1, Lk), boolean
    from_cls: Tensor,  # (B|1, H|1, Lk)
    to_cls: Tensor,  # (B|1, H|1, Lq)
) -> tuple[Tensor, Tensor]:  # the factors with two columns more
    """Make factors whose product is from_cls[j] if the query is [CLS], to_cls[i] if only the key is, else left . right.

    left = [left or 0, 1 or 0, 0 or to_cls],  right = [right or 0, from_cls, 1 or 0].
    """
    query, key = query_is_cls.to(left.dtype)[..., None], key_is_cls.to(left.dtype)[..., None]  # (B|1, 1, L, 1)
    one = (*left.shape[:-1], 1)
    left = torch.cat([left * (1 - query), query.expand(one), (1 - query) * to_cls[..., None]], dim=-1)
    one = (*right.shape[:-1], 1)
    right = torch.cat([right * (1 - key), from_cls[..., None].expand(one), key.expand(one)], dim=-1)
    return left, right
