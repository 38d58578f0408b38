"""Relative position representations: a vector for each clipped offset is added to the keys and to the values.

Shaw, Uszkoreit and Vaswani (2018), "Self-Attention with Relative Position Representations".
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from headway.bias import Bias, RelativeKeys, RelativeValues, ValueBias
from headway.encodings.base import Dimensions, PositionEncoding


class Shaw(PositionEncoding):
    """A vector for each clipped offset that is added to the keys, and another that is added to the values.

    Paper:    Shaw et al. (2018), Eqs. (3), (4) and (5), Sec. 3.2; clip: Table 2; keys, values: Table 3
    Formula:  bias[h, i, j] = scale * q[h, i] . key_table[l, h, clip(j - i, -K, K) + K]
              value_bias[h, i, j] = value_table[l, h, clip(j - i, -K, K) + K]
    Symbols:  w^K -> key_table, w^V -> value_table, both (layers, heads, 2K+1, D);  k -> clip, K;  d_a = d_z -> D
    Departs:  clip=None gives each offset within max_length a vector of its own. The paper gives no initialisation;
              normal with `init_std` here
    Yields:   RelativeKeys and RelativeValues, 2 * layers * heads * (2K+1) * D parameters, half of it with one of them
    Checked:  tests/parity/test_shaw.py

    The paper's base model has vectors of its own for each layer and head (sharing "none"). Sec. 3.3 shares them between
    heads ("head"), as most implementations do. With clip=0 (first row of Table 2) all pairs have the same vector, so
    that the model does not see order.
    """

    name = "shaw"
    paper = "Shaw et al. 2018, Eqs. 3, 4"
    places: ClassVar[tuple[str, ...]] = ("scores", "values")
    default_sharing = "none"
    meets_query = True

    def __init__(
        self,
        dims: Dimensions,
        *,
        sharing: str | None = None,
        clip: int | None = 16,
        keys: bool = True,
        values: bool = True,
        init_std: float = 0.02,
    ) -> None:
        super().__init__(dims, sharing=sharing)
        if clip is not None and clip < 0:
            raise ValueError(f"clip: expected None (no clipping within max_length) or at least 0, got {clip}.")
        if not keys and not values:
            raise ValueError("keys, values: expected at least one to be True, got neither. For no position use 'none'.")
        self.clip = dims.max_length - 1 if clip is None else clip
        self.init_std = init_std
        size = (self.layer_sets, self.head_sets, 2 * self.clip + 1, dims.head_dim)
        self.key_table = nn.Parameter(torch.empty(size)) if keys else None
        self.value_table = nn.Parameter(torch.empty(size)) if values else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for table in (self.key_table, self.value_table):
            if table is not None:
                nn.init.normal_(table, std=self.init_std)

    def _bias(
        self, layer: int, q_len: int, k_len: int, q_start: int, segments: Tensor | None, documents: Tensor | None
    ) -> Bias | None:
        if self.key_table is None:
            return None
        return RelativeKeys(self.key_table[self.layer_set(layer)], q_start, q_len, k_len)

    def _value_bias(self, layer: int, q_len: int, k_len: int, q_start: int) -> ValueBias | None:
        if self.value_table is None:
            return None
        return RelativeValues(self.value_table[self.layer_set(layer)], q_start, q_len, k_len)


class MusicTransformer(Shaw):
    """Shaw's vectors for the keys alone, one for each offset.

    Paper:    Huang et al. (2019), "Music Transformer", relative attention, S^rel = Q (E^r)^T
    Formula:  bias[h, i, j] = scale * q[h, i] . key_table[l, h, clip(j - i, -K, K) + K]
    Symbols:  E^r -> key_table, (layers, heads, 2K+1, D);  D_h -> D;  K -> clip
    Departs:  the paper is causal and has vectors for j <= i; encoders have them for both directions. clip=None, the
              default, gives each offset within max_length a vector of its own, and longer texts the outermost ones.
              Normal initialisation with `init_std`
    Yields:   RelativeKeys, layers * heads * (2K+1) * D parameters
    Checked:  tests/parity/test_shaw.py

    It is "shaw:clip=none,values=false" under the name of the paper that leaves the values out. As in the paper's
    skewing, `RelativeKeys` multiplies q with the table first, so that no vector for each pair is stored.
    """

    name = "music-transformer"
    paper = "Huang et al. 2019"
    places = ("scores",)

    def __init__(
        self, dims: Dimensions, *, sharing: str | None = None, clip: int | None = None, init_std: float = 0.02
    ) -> None:
        super().__init__(dims, sharing=sharing, clip=clip, values=False, init_std=init_std)
