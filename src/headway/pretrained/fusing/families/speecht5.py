"""SpeechT5: relative keys in the encoder, which its layers share; none in the decoder.

Its modules compute attention themselves. The original encoder passes a vector for each pair to its layers; the fused
one passes a vector for each offset.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import EncoderDecoderCache

from headway.bias import RelativeKeys
from headway.pretrained.fusing.family import Family, Fused
from headway.pretrained.fusing.interface import run, split_heads


class FusedSpeechT5Positions(Fused):
    """Returns a vector for each offset where the original returns one for each pair."""

    STRUCTURE = "looks up the vectors of the offsets, which the layers share"
    EXPECTS = {"forward": ("hidden_states",)}  # noqa: RUF012

    def forward(self, hidden_states: Tensor) -> Tensor:  # (2 K + 1, D), the least offset first
        this: Any = self
        reach = min(hidden_states.shape[1] - 1, this.max_length)
        before = torch.arange(reach, -reach - 1, -1, device=hidden_states.device)  # i - j
        vectors: Tensor = this.pe_k(before.clamp(-this.max_length, this.max_length - 1) + this.max_length)
        return vectors


class FusedSpeechT5Attention(Fused):
    """Attention of SpeechT5; projections and caches stay the model's."""

    STRUCTURE = "RelativeKeys in the encoder; no bias in the decoder"
    EXPECTS = {  # noqa: RUF012
        "forward": (
            *("hidden_states", "key_value_states", "past_key_values", "attention_mask", "position_bias"),
            "output_attentions",
        )
    }

    def forward(
        self,
        hidden_states: Tensor,
        key_value_states: Tensor | None = None,
        past_key_values: Any = None,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,  # (2 K + 1, D)
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        this: Any = self
        q = split_heads(this.q_proj(hidden_states), this.num_heads)
        k, v = self._keys_and_values(hidden_states, key_value_states, past_key_values)
        mixed, weights = run(
            q,
            k,
            v,
            bias=None if position_bias is None else RelativeKeys(position_bias[None].to(q.dtype)),
            mask=attention_mask,
            is_causal=this.is_decoder and key_value_states is None,
            scale=this.scaling,
            dropout=this.dropout if this.training else 0.0,
            with_weights=output_attentions,
        )
        return this.out_proj(mixed.flatten(2)), weights

    def _keys_and_values(
        self, hidden_states: Tensor, key_value_states: Tensor | None, past_key_values: Any
    ) -> tuple[Tensor, Tensor]:
        """Return keys and values of the encoder, which are computed once, or of the tokens until now."""
        this: Any = self
        cache, known = past_key_values, None
        if isinstance(past_key_values, EncoderDecoderCache):
            known = past_key_values.is_updated.get(this.layer_idx)
            crosses = key_value_states is not None
            cache = past_key_values.cross_attention_cache if crosses else past_key_values.self_attention_cache
        if key_value_states is not None and known:
            return cache.layers[this.layer_idx].keys, cache.layers[this.layer_idx].values
        attended = hidden_states if key_value_states is None else key_value_states
        k, v = (split_heads(part(attended), this.num_heads) for part in (this.k_proj, this.v_proj))
        if cache is not None:
            k, v = cache.update(k, v, this.layer_idx)
            if key_value_states is not None and isinstance(past_key_values, EncoderDecoderCache):
                past_key_values.is_updated[this.layer_idx] = True
        return k, v

    def structure(self) -> str:
        return "no bias" if self.is_decoder else "RelativeKeys: clipped"  # type: ignore[attr-defined]


FAMILIES = (
    Family(
        models=("speecht5",),
        file="speecht5.modeling_speecht5",
        parts={
            "SpeechT5RelativePositionalEncoding": FusedSpeechT5Positions,
            "SpeechT5Attention": FusedSpeechT5Attention,
        },
    ),
)
