"""LayoutLMv3: buckets of the order of words and of their places on the page, which differ with each sequence.

The model looks its tables up without gradients, and adds up one matrix for each sequence: that is taken as it is.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from headway.bias import Dense
from headway.pretrained.fusing.family import Family, Fused
from headway.pretrained.fusing.interface import run, split_heads


class FusedLayoutLMv3SelfAttention(Fused):
    """The original's projections around headway's attention.

    The original divides scores by 32, subtracts their maximum and multiplies by 32 before the softmax, which changes
    no weight; attention subtracts the maximum too.
    """

    STRUCTURE = "Dense: order, x and y"
    EXPECTS = {"forward": ("hidden_states", "attention_mask", "rel_pos", "rel_2d_pos")}  # noqa: RUF012

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        rel_pos: Tensor | None = None,
        rel_2d_pos: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        this: Any = self
        parts = (this.query, this.key, this.value)
        q, k, v = (split_heads(part(hidden_states), this.num_attention_heads) for part in parts)
        scale = this.attention_head_size**-0.5
        matrix = None
        if this.has_relative_attention_bias and rel_pos is not None:
            matrix = (rel_pos + rel_2d_pos if rel_2d_pos is not None else rel_pos) * scale
        mixed, weights = run(
            q,
            k,
            v,
            bias=None if matrix is None else Dense(matrix),
            mask=attention_mask,
            is_causal=False,
            scale=scale,
            dropout=this.dropout.p if this.training else 0.0,
            with_weights=bool(kwargs.get("output_attentions")),
        )
        return mixed.flatten(2), weights


FAMILIES = (
    Family(
        models=("layoutlmv3",),
        file="layoutlmv3.modeling_layoutlmv3",
        parts={"LayoutLMv3SelfAttention": FusedLayoutLMv3SelfAttention},
    ),
)
