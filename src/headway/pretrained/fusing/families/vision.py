"""BEiT, Data2Vec and Swin: numbers for differences of rows and columns, which the models pass on as a matrix.

BEiT and the first Swin add it to the mask and go through the attention interface; the others, such as the copies of
Swin in Donut, MaskFormer, CLAP and Swin2SR, compute attention themselves. The matrix is taken as it comes, `Dense`:
headway has no structure for differences in two dimensions yet.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from headway.bias import Dense
from headway.pretrained.fusing.family import ADDED, BiasAndMask, Family, Fused
from headway.pretrained.fusing.interface import run, split_heads
from headway.running import may_read

OF_ROWS_AND_COLUMNS = "Dense: numbers of row and column differences"


class FusedBeitAttention(Fused):
    """Self-attention of BEiT: its bias comes in place of the mask; with padding, rare in images, as their sum."""

    STRUCTURE = OF_ROWS_AND_COLUMNS

    def bias_and_mask(self, position_bias: Tensor | None, mask: Tensor | None, q: Tensor, k: Tensor) -> BiasAndMask:
        if mask is None:
            return BiasAndMask(None, None)
        # Padding is a mask for each sequence of the batch, the bias alone is one for all.
        shared = mask.shape[0] == 1 and (
            q.shape[0] > 1 or (may_read(mask) and bool((mask > masked_number(mask)).all()))
        )
        return BiasAndMask(Dense(mask), None) if shared else BiasAndMask(None, mask)


class FusedSwinAttention(Fused):
    """Window attention of Swin: its bias comes in place of the mask, with -100 between patches that a shift joined."""

    STRUCTURE = OF_ROWS_AND_COLUMNS

    def bias_and_mask(self, position_bias: Tensor | None, mask: Tensor | None, q: Tensor, k: Tensor) -> BiasAndMask:
        return BiasAndMask(None if mask is None else Dense(mask), None)


class FusedData2VecVisionAttention(Fused):
    """Self-attention of data2vec's vision model, with a bias of the layer, of all layers, or of both."""

    STRUCTURE = OF_ROWS_AND_COLUMNS
    EXPECTS = {  # noqa: RUF012
        "forward": (
            *("hidden_states", "output_attentions", "relative_position_bias"),
            *("interpolate_pos_encoding", "resolution"),
        )
    }

    def forward(
        self,
        hidden_states: Tensor,
        output_attentions: bool = False,
        relative_position_bias: Tensor | None = None,
        interpolate_pos_encoding: bool = False,
        resolution: tuple[int, int] | None = None,
    ) -> tuple[Tensor, ...]:
        this: Any = self
        parts = (this.query, this.key, this.value)
        q, k, v = (split_heads(part(hidden_states), this.num_attention_heads) for part in parts)
        matrix = relative_position_bias
        if this.has_relative_position_bias:
            assert resolution is not None, "transformers' encoder gives it"
            window = tuple(size // this.config.patch_size for size in resolution)
            own = this.relative_position_bias(window, interpolate_pos_encoding, dim_size=hidden_states.shape[1])
            matrix = own if matrix is None else own + matrix
        mixed, weights = run(
            q,
            k,
            v,
            bias=None if matrix is None else Dense(matrix),
            mask=None,
            is_causal=False,
            scale=this.attention_head_size**-0.5,
            dropout=this.dropout.p if this.training else 0.0,
            with_weights=output_attentions,
        )
        return (mixed.flatten(2),) if weights is None else (mixed.flatten(2), weights)


class FusedWindowAttention(Fused):
    """Window attention of models that copied the first Swin; projections and biases stay the model's."""

    STRUCTURE = OF_ROWS_AND_COLUMNS
    EXPECTS = {"forward": ("hidden_states", "attention_mask", "output_attentions")}  # noqa: RUF012

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,  # (windows, L, L), added: 0, or -100 where a shift joined two places
        output_attentions: bool | None = False,
    ) -> tuple[Tensor, ...]:
        this: Any = self
        parts = (this.query, this.key, this.value)
        q, k, v = (split_heads(part(hidden_states), this.num_attention_heads) for part in parts)
        length = hidden_states.shape[1]
        numbers = this.relative_position_bias_table[this.relative_position_index.flatten()]  # (L * L, H)
        matrix = numbers.t().reshape(1, -1, length, length)
        if attention_mask is not None:
            matrix = (matrix + attention_mask[:, None]).repeat(q.shape[0] // attention_mask.shape[0], 1, 1, 1)
        mixed, weights = run(
            q,
            k,
            v,
            bias=Dense(matrix),
            mask=None,
            is_causal=False,
            scale=this.attention_head_size**-0.5,
            dropout=this.dropout.p if this.training else 0.0,
            with_weights=bool(output_attentions),
        )
        return (mixed.flatten(2),) if weights is None else (mixed.flatten(2), weights)


class FusedSwinv2Attention(Fused):
    """Queries and keys of length one, times a number for each head; numbers of offsets from a small network."""

    STRUCTURE = "Dense: numbers of row and column differences from a network; queries and keys of length 1"
    EXPECTS = {"forward": ("hidden_states", "attention_mask", "output_attentions")}  # noqa: RUF012

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,  # (windows, L, L), added: 0, or -100 where a shift joined two places
        output_attentions: bool | None = False,
    ) -> tuple[Tensor, ...]:
        this: Any = self
        parts = (this.query, this.key, this.value)
        q, k, v = (split_heads(part(hidden_states), this.num_attention_heads) for part in parts)
        sharpness = this.logit_scale.clamp(max=math.log(100.0)).exp()  # at most 100
        table = this.continuous_position_bias_mlp(this.relative_coords_table).flatten(0, 2)  # (offsets, H)
        length = hidden_states.shape[1]
        matrix = 16 * table[this.relative_position_index.flatten()].sigmoid().t().reshape(1, -1, length, length)
        if attention_mask is not None:  # the original adds it twice
            matrix = (matrix + 2 * attention_mask[:, None]).repeat(q.shape[0] // attention_mask.shape[0], 1, 1, 1)
        mixed, weights = run(
            (F.normalize(q, dim=-1) * sharpness).to(v.dtype),
            F.normalize(k, dim=-1).to(v.dtype),
            v,
            bias=Dense(matrix),
            mask=None,
            is_causal=False,
            scale=1.0,
            dropout=this.dropout.p if this.training else 0.0,
            with_weights=bool(output_attentions),
        )
        return (mixed.flatten(2),) if weights is None else (mixed.flatten(2), weights)


def masked_number(mask: Tensor) -> float:
    """Return the number that stands in a mask where nothing may attend."""
    return torch.finfo(mask.dtype).min


FAMILIES = (
    Family(
        models=("beit",), file="beit.modeling_beit", parts={"BeitAttention": FusedBeitAttention}, implementation=ADDED
    ),
    Family(
        models=("swin",), file="swin.modeling_swin", parts={"SwinAttention": FusedSwinAttention}, implementation=ADDED
    ),
    Family(
        models=("data2vec-vision",),
        file="data2vec.modeling_data2vec_vision",
        parts={
            "Data2VecVisionSelfAttention": FusedData2VecVisionAttention,
            "Data2VecVisionSdpaSelfAttention": FusedData2VecVisionAttention,
        },
    ),
    Family(
        models=("donut-swin",),
        file="donut.modeling_donut_swin",
        parts={"DonutSwinSelfAttention": FusedWindowAttention},
    ),
    Family(
        models=("maskformer-swin",),
        file="maskformer.modeling_maskformer_swin",
        parts={"MaskFormerSwinSelfAttention": FusedWindowAttention},
    ),
    Family(
        models=("clap_audio_model",),
        file="clap.modeling_clap",
        parts={"ClapAudioSelfAttention": FusedWindowAttention},
    ),
    Family(
        models=("swinv2",),
        file="swinv2.modeling_swinv2",
        parts={"Swinv2SelfAttention": FusedSwinv2Attention},
    ),
    Family(
        models=("swin2sr",),
        file="swin2sr.modeling_swin2sr",
        parts={"Swin2SRSelfAttention": FusedSwinv2Attention},
    ),
)
