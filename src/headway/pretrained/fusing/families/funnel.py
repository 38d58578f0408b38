"""Funnel: Transformer-XL's relative positions in two forms, segments, and layers whose queries are pooled.

Its modules compute attention themselves. With a [CLS] of its own (`config.separate_cls`), positions and segments add
nothing to the scores of the first query and of the first key.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headway.bias import Bias, Dense, LowRank
from headway.pretrained.fusing.families.conformers import transformer_xl
from headway.pretrained.fusing.family import Family, Fused
from headway.pretrained.fusing.interface import run, split_heads
from headway.running import is_transformed, may_read


class FusedFunnelStructure(Fused):
    """Gives the layers factors of the matrix of equal segments, which pooling shortens like the matrix."""

    STRUCTURE = "gives the layers segments of tokens in place of a matrix"
    EXPECTS = {  # noqa: RUF012
        "token_type_ids_to_mat": ("token_type_ids",),
        "stride_pool": ("tensor", "axis"),
    }

    def token_type_ids_to_mat(self, token_type_ids: Tensor) -> Any:  # (B, Lq, 1, S + 1) and (B, 1, Lk, S + 1)
        this: Any = self
        if torch.compiler.is_compiling() or is_transformed():  # how many segments there are must be read
            return super().token_type_ids_to_mat(token_type_ids)  # type: ignore[misc]
        names, order = torch.unique(token_type_ids, return_inverse=True)
        own = torch.nn.functional.one_hot(order, len(names))
        cls = (token_type_ids == this.cls_token_type_id)[..., None]  # in the segment of every token
        q = torch.cat([own * ~cls, cls], -1)
        k = torch.cat([own | cls, torch.ones_like(cls)], -1)
        return q[:, :, None], k[:, None]


class FusedFunnelAttention(Fused):
    """Attention of Funnel; projections stay the model's."""

    STRUCTURE = "RelativeProducts and LowRank; factorized: LowRank; pooled queries: Dense"
    EXPECTS = {  # noqa: RUF012
        "relative_positional_attention": ("position_embeds", "q_head", "context_len", "cls_mask"),
        "relative_token_type_attention": ("token_type_mat", "q_head", "cls_mask"),
        "forward": ("query", "key", "value", "attention_inputs", "output_attentions"),
    }

    def forward(
        self,
        query: Tensor,  # (B, Lq, E)
        key: Tensor,
        value: Tensor,
        attention_inputs: Any,
        output_attentions: bool = False,
    ) -> tuple[Tensor, ...]:
        this: Any = self
        position_embeds, segments, attention_mask, cls_mask = attention_inputs
        heads = this.config.n_head
        q = split_heads(this.q_head(query), heads)
        k, v = split_heads(this.k_head(key), heads), split_heads(this.v_head(value), heads)
        content, bias = self._positions(q, k.shape[2], position_embeds, cls_mask)
        of_segments = self._segments(q, segments, cls_mask)
        mixed, weights = run(
            content,
            k,
            v,
            bias=bias if of_segments is None else bias + of_segments,
            mask=_allowed(attention_mask),
            is_causal=False,
            scale=this.scale,
            dropout=this.attention_dropout.p if this.training else 0.0,
            with_weights=output_attentions,
        )
        output = this.layer_norm(query + this.hidden_dropout(this.post_proj(mixed.flatten(2))))
        return (output,) if weights is None else (output, weights)

    def _positions(self, q: Tensor, k_len: int, position_embeds: Any, cls_mask: Tensor | None) -> tuple[Tensor, Bias]:
        """Return the query that is multiplied with the keys, and the bias of positions."""
        this: Any = self
        content = (q + this.r_w_bias[:, None]).to(q.dtype)
        q_len = q.shape[2]
        if this.config.attention_type == "factorized":
            phi, pi, psi, omega = position_embeds
            kernel = this.r_kernel.permute(1, 2, 0).to(q.dtype)
            met = ((q + this.r_r_bias[:, None]) * this.scale) @ kernel  # (B, H, Lq, E)
            left, right = torch.cat([met * phi, met * pi], -1), torch.cat([psi, omega], -1)[None, None].to(met.dtype)
            return content, LowRank(*((left, right) if cls_mask is None else (_without_cls(left), _without_cls(right))))
        sines = position_embeds[this.block_index][0]
        if q_len != k_len or sines.shape[0] != 2 * q_len:
            # Pooled queries are two keys apart from one another, which no structure of offsets has.
            scaled = (q * this.scale).transpose(1, 2)
            matrix = this.relative_positional_attention(position_embeds, scaled, k_len, cls_mask)
            return content, Dense(matrix.expand(-1, -1, -1, k_len))
        table = torch.einsum("td,dnh->nth", sines[1:], this.r_kernel).to(q.dtype)  # (H, 2 L - 1, D)
        content, bias = transformer_xl(q, table, this.r_w_bias, this.r_r_bias, this.scale)
        if cls_mask is None:
            return content, bias
        # The bias of positions is 0 for the first query, and for the first key of the other queries.
        met = (q + this.r_r_bias[:, None]) * this.scale
        of_query = met[:, :, :1] @ table[:, q_len - 1 :].mT  # (B, H, 1, Lk)
        of_key = (met * table[:, :q_len].flip(1)).sum(-1, keepdim=True)  # (B, H, Lq, 1)
        first = torch.zeros_like(of_key)
        first[:, :, 0] = 1
        left = torch.cat([first, _without_cls(of_key)], -1)
        right = torch.cat([of_query.mT, first], -1)
        return content, bias + LowRank(-left, right)

    def _segments(self, q: Tensor, segments: Any, cls_mask: Tensor | None) -> Bias | None:
        """Return the bias of segments, of which `segments` is the matrix, or its two factors."""
        this: Any = self
        if segments is None:
            return None
        if isinstance(segments, Tensor):
            scaled = (q * this.scale).transpose(1, 2)
            return Dense(this.relative_token_type_attention(segments, scaled, cls_mask))
        met = (q + this.r_s_bias[:, None]) * this.scale @ this.seg_embed.permute(1, 2, 0).to(q.dtype)  # (B, H, Lq, 2)
        of_query, of_key = (each.to(met.dtype) for each in segments)
        left = torch.cat([(met[..., 1:] - met[..., :1]) * of_query.transpose(1, 2), met[..., :1]], -1)
        right = torch.cat([of_key, torch.ones_like(of_key[..., :1])], -1)
        return LowRank(*((left, right) if cls_mask is None else (_without_cls(left), _without_cls(right))))


def _without_cls(factor: Tensor) -> Tensor:  # (B|1, H|1, L, R)
    """Return a factor with zeros in the place of [CLS]."""
    return torch.cat([torch.zeros_like(factor[:, :, :1]), factor[:, :, 1:]], 2)


def _allowed(
    attention_mask: Tensor | None,  # (B, Lk), 1 = may be attended to, pooled like the sequence
) -> Tensor | None:  # boolean (B, 1, 1, Lk)
    """Return the mask of keys; a sequence of which pooling left no key attends to all, as in transformers."""
    if attention_mask is None:
        return None
    keep = attention_mask > 0
    keep = keep | ~keep.any(1, keepdim=True)
    return None if may_read(keep) and bool(keep.all()) else keep[:, None, None, :]


FAMILIES = (
    Family(
        models=("funnel",),
        file="funnel.modeling_funnel",
        parts={
            "FunnelAttentionStructure": FusedFunnelStructure,
            "FunnelRelMultiheadAttention": FusedFunnelAttention,
        },
    ),
)
