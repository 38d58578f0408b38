"""BLOOM, MPT and Falcon with ALiBi: a fixed slope for each head times the position of the key.

The softmax does not see what all keys of a query have in common, so that slope * key position is ALiBi (Press et al.,
2022) in causal order. The three models compute these numbers, (B|1, H, Lk), with positions that skip padding; as the
product of a row of ones with them they are a low-rank bias of rank 1. Where nothing is padding, slope * offset does the
same, as a Toeplitz bias, if the numbers are exact enough: rounded ones have no common slope. Their modules compute
attention themselves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headway.bias import Bias, LowRank, Toeplitz
from headway.pretrained.fusing.family import MASKED, Family, Fused
from headway.pretrained.fusing.interface import run
from headway.running import may_read

OF_KEYS = "LowRank of rank 1: slope times key position"
OF_OFFSETS = "Toeplitz: slope times offset; padded or in half precision LowRank"


def bias_of_keys(numbers: Tensor, q_len: int) -> LowRank:  # numbers (B|1, H, Lk)
    """Return the bias that adds to every query's scores the same number for each key."""
    return LowRank(numbers.new_ones(1, 1, q_len, 1).expand(*numbers.shape[:2], -1, -1), numbers[..., None])


def bias_of_alibi(numbers: Tensor, q: Tensor, mask: Tensor | None) -> Bias:  # numbers (B|1, H, Lk)
    """Return ALiBi for queries at the last positions, in causal order."""
    q_len = q.shape[2]
    if mask is not None or not {numbers.dtype, q.dtype} <= {torch.float32, torch.float64}:
        return bias_of_keys(numbers, q_len)
    of_offsets = numbers[:1] - numbers[:1, :, -1:]  # seen from the last key: offsets -(Lk - 1) to 0
    return Toeplitz(torch.nn.functional.pad(of_offsets, (0, q_len - 1)), q_len)


class FusedBloomAttention(Fused):
    """Attention of BLOOM; projections, cache and output stay the model's."""

    STRUCTURE = OF_OFFSETS
    EXPECTS = {  # noqa: RUF012
        "forward": (
            *("hidden_states", "residual", "alibi", "attention_mask", "layer_past", "use_cache"),
            "output_attentions",
        ),
        "_reshape": ("fused_qkv",),
    }

    def forward(
        self,
        hidden_states: Tensor,
        residual: Tensor,
        alibi: Tensor,  # (B * H, 1, Lk)
        attention_mask: Tensor | None,
        layer_past: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        this: Any = self
        q, k, v = this._reshape(this.query_key_value(hidden_states))
        if layer_past is not None:
            k, v = layer_past.update(k, v, this.layer_idx)
        mixed, weights = run(
            q,
            k,
            v,
            bias=bias_of_alibi(alibi.view(hidden_states.shape[0], this.num_heads, -1), q, attention_mask),
            mask=attention_mask,
            is_causal=True,
            scale=this.inv_norm_factor,
            dropout=this.attention_dropout.p if this.training else 0.0,
            with_weights=output_attentions,
        )
        output = torch.nn.functional.dropout(this.dense(mixed.flatten(2)), this.hidden_dropout, this.training)
        return residual + output, weights

    @classmethod
    def why_not(cls, module: Any) -> str | None:
        if module.pretraining_tp > 1 and module.slow_but_exact:
            return "config.slow_but_exact sums its output in slices; set it to False"
        return None


class FusedMptAttention(Fused):
    """Attention of MPT; projections, cache and output stay the model's."""

    STRUCTURE = OF_OFFSETS
    EXPECTS = {  # noqa: RUF012
        "forward": ("hidden_states", "position_bias", "past_key_values", "attention_mask")
    }

    def forward(
        self,
        hidden_states: Tensor,
        position_bias: Tensor,  # (H, 1, longest sequence), the last key's number last
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        this: Any = self
        qkv = this.Wqkv(hidden_states)
        if this.clip_qkv:
            qkv = qkv.clamp(min=-this.clip_qkv, max=this.clip_qkv)
        q, k, v = qkv.unflatten(-1, (3, this.n_heads, -1)).permute(2, 0, 3, 1, 4)
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, this.layer_idx)
        numbers = position_bias[None, :, 0, -k.shape[2] :]
        if numbers.shape[-1] < k.shape[2]:
            raise ValueError(
                f"input_ids: expected at most {numbers.shape[-1]} positions (config.max_seq_len), got {k.shape[2]}."
            )
        mask = attention_mask
        if mask is not None and mask.dim() == 2 and may_read(mask) and bool(mask.all()):
            mask = None  # the family's masks are never None
        mixed, weights = run(
            q,
            k,
            v,
            bias=bias_of_alibi(numbers, q, mask),
            mask=mask,
            is_causal=True,
            scale=this.softmax_scale,
            dropout=this.attn_dropout_p if this.training else 0.0,
            with_weights=bool(kwargs.get("output_attentions")),
        )
        return this.out_proj(mixed.flatten(2)), weights


class FusedFalconAttention(Fused):
    """Attention of Falcon with ALiBi; projections, cache and output stay the model's."""

    STRUCTURE = OF_KEYS
    EXPECTS = {  # noqa: RUF012
        "forward": (
            *("hidden_states", "alibi", "attention_mask", "position_ids", "layer_past", "use_cache"),
            *("output_attentions", "position_embeddings"),
        ),
        "_split_heads": ("fused_qkv",),
    }

    def forward(
        self,
        hidden_states: Tensor,
        alibi: Tensor | None,  # (B * H, 1, Lk), or (B, H, 1, Lk)
        attention_mask: Tensor | None,
        position_ids: Tensor | None = None,
        layer_past: Any = None,
        use_cache: bool = False,
        output_attentions: bool = False,
        position_embeddings: Any = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        this: Any = self
        q, k, v = (part.transpose(1, 2) for part in this._split_heads(this.query_key_value(hidden_states)))
        if layer_past is not None:
            k, v = layer_past.update(k, v, this.layer_idx)
        bias = None
        if alibi is not None and not (attention_mask is not None and attention_mask.is_floating_point()):
            numbers = alibi.view(hidden_states.shape[0], this.num_heads, -1)
            bias = bias_of_keys(numbers * this.inv_norm_factor, q.shape[2])
        # Else, with a static cache, the model has made one matrix of mask and bias.
        mixed, weights = run(
            q,
            k,
            v,
            bias=bias,
            mask=attention_mask,
            is_causal=True,
            scale=this.inv_norm_factor,
            dropout=this.attention_dropout.p if this.training else 0.0,
            with_weights=output_attentions,
        )
        return this.dense(mixed.flatten(2)), weights

    @classmethod
    def why_not(cls, module: Any) -> str | None:
        return None if module.config.alibi else "its positions are rotary (config.alibi is false), and need no bias"


FAMILIES = (
    Family(models=("bloom",), file="bloom.modeling_bloom", parts={"BloomAttention": FusedBloomAttention}),
    Family(models=("mpt",), file="mpt.modeling_mpt", parts={"MptAttention": FusedMptAttention}, implementation=MASKED),
    Family(
        models=("falcon",),
        file="falcon.modeling_falcon",
        parts={"FalconAttention": FusedFalconAttention},
        implementation=MASKED,
    ),
)
