"""Inkling: in each head, a query has a narrow second vector that is multiplied with a vector for each distance.

The table of these vectors has the distances to the left, up to its reach; beyond it and to the right the bias is 0. The
original module returns the matrix of these scores. The fused one returns the vectors of the queries, which the model
may still scale, and attention multiplies them with the table.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headway.bias import RelativeProducts
from headway.pretrained.fusing.family import BiasAndMask, Family, Fused, check_implementation


class FusedInklingRelativeLogits(Fused):
    """Returns the vectors of the queries in place of a matrix, and keeps which distance belongs to which pair."""

    STRUCTURE = "gives attention the vectors of the queries"
    EXPECTS = {"forward": ("relative_states", "query_positions", "key_positions")}  # noqa: RUF012
    rows: Tensor | None = None  # of the call that is running

    def forward(
        self,
        relative_states: Tensor,  # (B, Lq, H, W)
        query_positions: Tensor,  # (Lq,), one after the other, as are those of the keys
        key_positions: Tensor,
    ) -> Tensor:  # (B, H, Lq, W)
        this: Any = self
        # From the last query and the first key to the first query and the last key.
        distances = torch.cat([query_positions.flip(0) - key_positions[0], query_positions[0] - key_positions[1:]])
        outside = (distances < 0) | (distances >= this.rel_extent)
        this.rows = distances.masked_fill(outside, -1)
        return relative_states.transpose(1, 2)


class FusedInklingAttention(Fused):
    """Takes the vectors of the queries, which the model passes to the interface as its bias."""

    STRUCTURE = "RelativeProducts: vectors of the queries, zero beyond the reach"
    EXPECTS = {  # noqa: RUF012
        "forward": ("hidden_states", "attention_mask", "conv_mask", "past_key_values")
    }

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        check_implementation(self.config)  # type: ignore[attr-defined]
        return super().forward(*args, **kwargs)  # type: ignore[misc]

    def bias_and_mask(self, position_bias: Tensor | None, mask: Tensor | None, q: Tensor, k: Tensor) -> BiasAndMask:
        logits: Any = self.rel_logits_proj  # type: ignore[attr-defined]
        rows, logits.rows = logits.rows, None
        assert position_bias is not None
        table = logits.proj.t()[None].to(position_bias.dtype)  # (1, reach, W), distance 0 first
        return BiasAndMask(RelativeProducts(position_bias, table, rows), mask)


FAMILIES = (
    Family(
        models=("inkling_mm_model", "inkling_text"),
        file="inkling.modeling_inkling",
        parts={
            "InklingRelativeLogits": FusedInklingRelativeLogits,
            "InklingAttention": FusedInklingAttention,
        },
    ),
)
