"""T5 and the models that share its attention: one learned number for each head and bucket of offsets.

The first layer computes the bias, or each layer does (UMT5), and transformers passes it from layer to layer as a
matrix. Here one number for each offset, (1, H, Lq + Lk - 1), is passed in its place. The numbers come from the module's
own `compute_bias`, called for one column and one row of the matrix, so that buckets, caches and precision are
transformers'.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headway.bias import Dense, Toeplitz
from headway.pretrained.fusing.family import BiasAndMask, Family, Fused, check_implementation
from headway.running import may_read


class FusedT5Attention(Fused):
    """Self-attention with a Toeplitz bias, and cross-attention, which has none."""

    STRUCTURE = "Toeplitz: a number for each bucket of offsets"
    EXPECTS = {  # noqa: RUF012
        "compute_bias": ("query_length", "key_length", "device", "past_seen_tokens"),
        "forward": ("hidden_states", "mask", "key_value_states", "position_bias", "past_key_values"),
    }

    def compute_bias(
        self, query_length: int, key_length: int, device: Any = None, past_seen_tokens: Any = 0
    ) -> Tensor:  # (1, H, Lq + Lk - 1), offset -(Lq - 1) - past_seen_tokens first
        check_implementation(self.config)  # type: ignore[attr-defined]
        original = super().compute_bias  # type: ignore[misc]
        column = original(query_length, 1, device=device, past_seen_tokens=past_seen_tokens)  # (1, H, Lq, 1)
        row = original(1, key_length, device=device, past_seen_tokens=past_seen_tokens)  # (1, H, 1, Lk)
        return torch.cat([column.squeeze(3).flip(2), row.squeeze(2)[..., 1:]], 2)

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        if is_cross_attention(self) and not args and kwargs.get("position_bias") is None:
            kwargs["position_bias"] = hidden_states.new_zeros(1, 1, 1)  # transformers would make (1, H, Lq, Lk) zeros
        return super().forward(hidden_states, *args, **kwargs)  # type: ignore[misc]

    def bias_and_mask(self, position_bias: Tensor | None, mask: Tensor | None, q: Tensor, k: Tensor) -> BiasAndMask:
        if is_cross_attention(self) or position_bias is None:
            return BiasAndMask(None, mask)
        return BiasAndMask(Toeplitz(position_bias, q.shape[2]), mask)

    def structure(self) -> str:
        return "no bias (cross-attention)" if is_cross_attention(self) else super().structure()

    @classmethod
    def why_not(cls, module: Any) -> str | None:
        return None if hasattr(module, "is_causal") else "in this version it does not say whether it is causal"


class FusedUMT5Attention(FusedT5Attention):
    """Self-attention of UMT5: that of T5, with a table of biases in every layer."""

    STRUCTURE = "Toeplitz: a number for each bucket of offsets and each layer"
    EXPECTS = {  # noqa: RUF012
        "compute_bias": ("query_length", "key_length", "device", "past_seen_tokens"),
        "forward": ("hidden_states", "encoder_hidden_states", "past_key_values", "attention_mask"),
    }

    @property
    def is_causal(self) -> bool:
        """Whether it is the decoder's self-attention; transformers 5.17 says False there too."""
        this: Any = self
        return bool(this.config.is_decoder and this.has_relative_attention_bias)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return super(FusedT5Attention, self).forward(*args, **kwargs)  # type: ignore[misc]


class FusedSwitchAttention(FusedT5Attention):
    """The encoder's padding comes as numbers that are added to the scores, 0 or as low as a number can be."""

    def bias_and_mask(self, position_bias: Tensor | None, mask: Tensor | None, q: Tensor, k: Tensor) -> BiasAndMask:
        if mask is not None and mask.is_floating_point() and mask.shape[2] == 1:
            mask = mask > torch.finfo(mask.dtype).min
            mask = None if may_read(mask) and bool(mask.all()) else mask
        return super().bias_and_mask(position_bias, mask, q, k)


class FusedUdopAttention(FusedT5Attention):
    """The encoder's bias is a sum over the text's order and the places on the page: a matrix for each sequence."""

    STRUCTURE = "Dense in the encoder: order, x and y; Toeplitz in the decoder: buckets of offsets"

    def structure(self) -> str:
        if is_cross_attention(self):
            return super().structure()
        is_decoder = self.is_decoder  # type: ignore[attr-defined]
        return FusedT5Attention.STRUCTURE if is_decoder else "Dense: order, x and y"

    def bias_and_mask(self, position_bias: Tensor | None, mask: Tensor | None, q: Tensor, k: Tensor) -> BiasAndMask:
        if self.is_decoder or position_bias is None:  # type: ignore[attr-defined]
            return super().bias_and_mask(position_bias, mask, q, k)
        return BiasAndMask(Dense(position_bias), mask)


def is_cross_attention(module: Any) -> bool:
    """Return whether a module of a decoder attends to the encoder: these modules alone are not causal there."""
    return bool(module.config.is_decoder and not module.is_causal)


def _family(model: str, name: str, part: type[FusedT5Attention] = FusedT5Attention, **more: Any) -> Family:
    return Family(models=(model,), file=f"{model}.modeling_{model}", parts={name: part}, **more)


FAMILIES = (
    _family("t5", "T5Attention"),
    _family("mt5", "MT5Attention"),
    _family("umt5", "UMT5Attention", FusedUMT5Attention),
    _family("switch_transformers", "SwitchTransformersAttention", FusedSwitchAttention),
    _family("pop2piano", "Pop2PianoAttention"),
    _family("udop", "UdopAttention", FusedUdopAttention),
    Family(
        models=("pix2struct", "pix2struct_vision_model"),
        file="pix2struct.modeling_pix2struct",
        parts={"Pix2StructTextAttention": FusedT5Attention},
        interface={"Pix2StructVisionAttention": "no bias"},
    ),
)
