"""WavLM: one learned number for each head and bucket of offsets, times a gate that each query computes.

The first layer computes a matrix of the numbers for each sequence, and every layer multiplies it with its gates. Here
the layers pass on one number for each offset, and a gate is a vector of width 1 in `RelativeProducts`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headway.bias import RelativeProducts
from headway.pretrained.fusing.family import Family, Fused
from headway.pretrained.fusing.interface import run, split_heads


class FusedWavLMAttention(Fused):
    """Self-attention of WavLM; projections, buckets and gates stay the model's."""

    STRUCTURE = "RelativeProducts of width 1: a gate for each query, a number for each bucket of offsets"
    EXPECTS = {  # noqa: RUF012
        "forward": ("hidden_states", "attention_mask", "position_bias", "index"),
        "_relative_positions_bucket": ("relative_positions",),
    }

    def structure(self) -> str:
        return "RelativeProducts of width 1: gates of queries, buckets of offsets"

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,  # (B, L), True where a frame is no padding
        position_bias: Tensor | None = None,  # (H, 2 L - 1), offset -(L - 1) first
        index: int = 0,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor]:
        this: Any = self
        length = hidden_states.shape[1]
        if position_bias is None:
            offsets = torch.arange(1 - length, length, device=hidden_states.device)
            position_bias = this.rel_attn_embed(this._relative_positions_bucket(offsets)).t()
        # Each gate is made of two halves of eight numbers, which are added up in fours.
        halves = this.gru_rel_pos_linear(split_heads(hidden_states, this.num_heads)).unflatten(-1, (2, 4)).sum(-1)
        first, second = halves.sigmoid().unbind(-1)  # (B, H, L)
        gates = first * (second * this.gru_rel_pos_const[..., 0] - 1.0) + 2.0
        parts = (this.q_proj, this.k_proj, this.v_proj)
        q, k, v = (split_heads(part(hidden_states), this.num_heads) for part in parts)
        rows = torch.arange(2 * length - 1, device=hidden_states.device)
        mixed, weights = run(
            q,
            k,
            v,
            bias=RelativeProducts(gates[..., None], position_bias[..., None].to(gates.dtype), rows),
            mask=None if attention_mask is None else attention_mask[:, None, None, :].bool(),
            is_causal=False,
            scale=this.scaling,
            dropout=this.dropout if this.training else 0.0,
            with_weights=bool(kwargs.get("output_attentions")),
        )
        if weights is not None:  # the original gives every head the mean of all
            weights = weights.mean(1, keepdim=True).expand_as(weights)
        return this.out_proj(mixed.flatten(2)), weights, position_bias


FAMILIES = (Family(models=("wavlm",), file="wavlm.modeling_wavlm", parts={"WavLMAttention": FusedWavLMAttention}),)
