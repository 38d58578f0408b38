"""MPNet: one learned number for each head and bucket of offsets, shared by all layers.

Its modules compute attention themselves. The original encoder passes a matrix for each sequence to its layers; the
fused one passes one number for each offset, (1, H, 2 L - 1).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headway.bias import Toeplitz
from headway.pretrained.fusing.family import Family, Fused
from headway.pretrained.fusing.interface import run, split_heads


class FusedMPNetEncoder(Fused):
    """Returns a number for each offset where the original returns a matrix."""

    STRUCTURE = "computes the numbers that the layers share"
    EXPECTS = {  # noqa: RUF012
        "compute_position_bias": ("x", "position_ids", "num_buckets"),
        "relative_position_bucket": ("relative_position", "num_buckets", "max_distance"),
    }

    def compute_position_bias(
        self, x: Tensor, position_ids: Tensor | None = None, num_buckets: int = 32
    ) -> Tensor:  # (1, H, 2 L - 1), offset -(L - 1) first
        this: Any = self
        assert position_ids is None, "transformers' encoder gives none"
        offsets = torch.arange(1 - x.shape[1], x.shape[1], device=x.device)
        numbers = this.relative_attention_bias(this.relative_position_bucket(offsets, num_buckets=num_buckets))
        bias: Tensor = numbers.t()[None]
        return bias


class FusedMPNetSelfAttention(Fused):
    """Self-attention of MPNet; projections stay the model's."""

    STRUCTURE = "Toeplitz: a number for each bucket of offsets"
    EXPECTS = {"forward": ("hidden_states", "attention_mask", "position_bias", "output_attentions")}  # noqa: RUF012

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, ...]:
        this: Any = self
        q, k, v = (split_heads(part(hidden_states), this.num_attention_heads) for part in (this.q, this.k, this.v))
        mixed, weights = run(
            q,
            k,
            v,
            bias=None if position_bias is None else Toeplitz(position_bias),
            mask=attention_mask,
            is_causal=False,
            scale=this.attention_head_size**-0.5,
            dropout=this.dropout.p if this.training else 0.0,
            with_weights=output_attentions,
        )
        output = this.o(mixed.flatten(2))
        return (output,) if weights is None else (output, weights)


FAMILIES = (
    Family(
        models=("mpnet",),
        file="mpnet.modeling_mpnet",
        parts={"MPNetEncoder": FusedMPNetEncoder, "MPNetSelfAttention": FusedMPNetSelfAttention},
    ),
)
