"""LongT5: T5's buckets of offsets; in its encoder, for the keys in a window around each query.

Its encoder multiplies blocks of queries with three blocks of keys, and masks the keys beyond `local_radius`: that is
sliding-window attention, in memory linear in the length. The decoder is T5's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from headway.bias import Toeplitz
from headway.models.local import local_attention
from headway.pretrained.fusing.families.t5 import FusedT5Attention
from headway.pretrained.fusing.family import Family, Fused
from headway.pretrained.fusing.interface import split_heads
from headway.running import may_read


class FusedLongT5LocalAttention(Fused):
    """Sliding-window attention of LongT5; projections and buckets stay the model's."""

    STRUCTURE = "Toeplitz in a sliding window: a number for each bucket of offsets"
    EXPECTS = {  # noqa: RUF012
        "compute_bias": ("block_length",),
        "forward": ("hidden_states", "mask", "position_bias", "output_attentions"),
    }

    def compute_bias(self, block_length: int) -> Tensor:  # (1, H, 4 * block - 1), offset -(2 * block - 1) first
        matrix = super().compute_bias(block_length)[0]  # type: ignore[misc]  # (1, H, block, 3 * block)
        return torch.cat([matrix[:, :, -1], matrix[:, :, 0, 2 * block_length + 1 :]], -1)

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None = None,  # boolean (B, 1, blocks, block, 3 * block)
        position_bias: Tensor | None = None,  # what compute_bias returns
        output_attentions: bool = False,
    ) -> tuple[Tensor | None, ...]:
        this: Any = self
        if position_bias is None and this.has_relative_attention_bias:
            position_bias = this.compute_bias(this.block_len)
        if output_attentions:  # of blocks, as the original returns them
            whole = matrix_of_blocks(position_bias, mask, this)
            output, _, weights = super().forward(hidden_states, None, whole, True)  # type: ignore[misc]
            return output, position_bias, weights
        length = hidden_states.shape[1]
        q, k, v = (split_heads(part(hidden_states), this.n_heads) for part in (this.q, this.k, this.v))
        mixed = local_attention(
            q,
            k,
            v,
            this.local_radius,
            bias=None if position_bias is None else Toeplitz(fit_offsets(position_bias, length), length),
            mask=None if mask is None else keys_of_blocks(mask, length),
            scale=1.0,
            dropout=this.dropout if this.training else 0.0,
        )
        return this.o(mixed.transpose(1, 2).flatten(2)), position_bias

    @classmethod
    def why_not(cls, module: Any) -> str | None:
        return None if module.local_radius > 0 else "a window of config.local_radius 0 is the token itself"


def fit_offsets(values: Tensor, length: int) -> Tensor:  # (1, H, 2 * length - 1), offset -(length - 1) first
    """Return numbers for the offsets of a sequence; offsets beyond the blocks are masked, and get zeros."""
    missing = length - (values.shape[-1] + 1) // 2
    return F.pad(values, (missing, missing))  # a negative number cuts


def keys_of_blocks(mask: Tensor, length: int) -> Tensor | None:  # boolean (B, 1, 1, L), or None: nothing is padding
    """Return which keys are no padding, from the original's mask of blocks: each token sees itself if it is none."""
    itself = mask.diagonal(mask.shape[-2], -2, -1)  # (B, 1, blocks, block)
    keep = itself.flatten(2)[:, :, None, :length]
    return None if may_read(keep) and bool(keep.all()) else keep


def matrix_of_blocks(values: Tensor | None, mask: Tensor | None, module: Any) -> Tensor:
    """Return what the original adds to its scores, (B|1, blocks|1, H, block, 3 * block)."""
    block = module.block_len
    if values is None:
        values = module.q.weight.new_zeros(1, module.n_heads, 4 * block - 1)
    matrix = torch.stack([values[:, :, block - 1 - i : 4 * block - 1 - i] for i in range(block)], 2)[:, None]
    return matrix if mask is None else matrix + torch.where(mask > 0, 0.0, -1e10).transpose(1, 2)


FAMILIES = (
    Family(
        models=("longt5",),
        file="longt5.modeling_longt5",
        parts={"LongT5Attention": FusedT5Attention, "LongT5LocalAttention": FusedLongT5LocalAttention},
        left={"LongT5TransientGlobalAttention": "its keys are a window and a summary of every block"},
    ),
)
