"""Conformers of speech: Transformer-XL's relative positions, or relative keys that are clipped on either side.

Each original module computes a matrix of position scores for each sequence and passes it to the attention interface.
The fused module has the same projections and gives attention the table of offsets.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from headway.bias import Bias, RelativeKeys, RelativeProducts
from headway.pretrained.fusing.families.encoders import NO_BIAS
from headway.pretrained.fusing.family import BiasAndMask, Family, Fused
from headway.pretrained.fusing.interface import run, split_heads
from headway.running import may_read

TRANSFORMER_XL = "RelativeProducts: (q + v).r as in Transformer-XL"
CLIPPED = "RelativeKeys: clipped at a reach of its own on either side"
ROTATED = "no bias; q and k are rotated"


def transformer_xl(
    q: Tensor,  # (B, H, Lq, D)
    table: Tensor,  # (H, Lq + Lk - 1, D), a vector for each offset, the least first
    content_bias: Tensor,  # (H, D), u
    position_bias: Tensor,  # (H, D), v
    scale: float,
) -> tuple[Tensor, Bias]:
    """Return the query and the bias that give the scores scale * ((q + u) . k_j + (q + v) . table[j - i])."""
    # Under autocast the parameters have more digits than q, which attention wants like k.
    content = (q + content_bias[:, None]).to(q.dtype)
    vectors = ((q + position_bias[:, None]) * scale).to(q.dtype)
    return content, RelativeProducts.of_every_offset(vectors, table.to(q.dtype))


def clipped_keys(
    table: Tensor,  # (left + 1 + right, D), offset -left first
    left: int,
    right: int,
) -> RelativeKeys:
    """Return relative keys whose offsets are clipped to -left..right: the end of the shorter side is repeated."""
    reach = max(left, right)
    ends = table[:1].expand(reach - left, -1), table[-1:].expand(reach - right, -1)
    return RelativeKeys(torch.cat([ends[0], table, ends[1]])[None])


class FusedConformerAttention(Fused):
    """Self-attention of conformers; rotary positions stay with the model, relative ones become a structure."""

    STRUCTURE = f"{TRANSFORMER_XL}; or rotary: no bias"
    EXPECTS = {  # noqa: RUF012
        "forward": ("hidden_states", "attention_mask", "relative_position_embeddings"),
    }

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        this: Any = self
        if this.position_embeddings_type not in ("relative", "relative_key"):
            return super().forward(hidden_states, attention_mask, **kwargs)  # type: ignore[misc, no-any-return]
        q, k, v = (
            split_heads(part(hidden_states), this.num_heads) for part in (this.linear_q, this.linear_k, this.linear_v)
        )
        bias: Bias
        if this.position_embeddings_type == "relative":
            sines = kwargs["relative_position_embeddings"]  # (1, 2 L - 1, E), offset -(L - 1) first
            table = split_heads(this.linear_pos(sines), this.num_heads)[0]
            q, bias = transformer_xl(q, table, this.pos_bias_u, this.pos_bias_v, this.scaling)
        else:
            table = this.distance_embedding.weight.to(q.dtype)
            bias = clipped_keys(table, this.left_max_position_embeddings, this.right_max_position_embeddings)
        mixed, weights = run(
            q,
            k,
            v,
            bias=bias,
            mask=attention_mask,
            is_causal=False,
            scale=this.scaling,
            dropout=this.dropout.p if this.training else 0.0,
            with_weights=bool(kwargs.get("output_attentions", this.config.output_attentions)),
        )
        return this.linear_out(mixed.flatten(2)), weights

    def bias_and_mask(self, position_bias: Tensor | None, mask: Tensor | None, q: Tensor, k: Tensor) -> BiasAndMask:
        return BiasAndMask(None, mask)

    def structure(self) -> str:
        kinds = {"relative": TRANSFORMER_XL, "relative_key": CLIPPED, "rotary": ROTATED}
        return kinds.get(self.position_embeddings_type, NO_BIAS)  # type: ignore[attr-defined]


class FusedWav2Vec2BertAttention(FusedConformerAttention):
    """Self-attention of w2v-BERT 2.0: that of conformers, or, as in released models, with clipped offsets."""

    STRUCTURE = f"{CLIPPED}; or as wav2vec2-conformer"


class FusedSeamlessV2Attention(FusedConformerAttention):
    """Self-attention of SeamlessM4T v2, whose positions are always clipped offsets."""

    STRUCTURE = CLIPPED
    EXPECTS = {"forward": ("hidden_states", "attention_mask")}  # noqa: RUF012


class FusedSeamlessV2Encoder(Fused):
    """Makes no mask of chunks where one chunk holds the sequence, so that padding stays a mask of keys."""

    STRUCTURE = "makes the mask of chunks that the layers share"
    EXPECTS = {"_apply_chunk_attention": ("attention_mask", "hidden_states")}  # noqa: RUF012

    def _apply_chunk_attention(self, attention_mask: Tensor | None, hidden_states: Tensor) -> Tensor | None:
        this: Any = self
        if hidden_states.shape[1] <= this.config.speech_encoder_chunk_size:
            return attention_mask
        return super()._apply_chunk_attention(attention_mask, hidden_states)  # type: ignore[misc, no-any-return]


class FusedParakeetAttention(Fused):
    """Self-attention of Parakeet, with the positions of Transformer-XL."""

    STRUCTURE = TRANSFORMER_XL
    EXPECTS = {"forward": ("hidden_states", "position_embeddings", "attention_mask")}  # noqa: RUF012

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: Tensor,  # (B, 2 L - 1, E), the same for all sequences, offset -(L - 1) first
        attention_mask: Tensor | None = None,  # boolean (B, 1, L, L), True between two frames that are no padding
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        this: Any = self
        q, k, v = (
            part(hidden_states).unflatten(-1, (-1, this.head_dim)).transpose(1, 2)
            for part in (this.q_proj, this.k_proj, this.v_proj)
        )
        table = split_heads(this.relative_k_proj(position_embeddings[:1]), this.config.num_attention_heads)[0]
        q, bias = transformer_xl(q, table, this.bias_u, this.bias_v, this.scaling)
        if attention_mask is not None:
            attention_mask = attention_mask.any(2, keepdim=True)
            attention_mask = None if may_read(attention_mask) and bool(attention_mask.all()) else attention_mask
        mixed, weights = run(
            q,
            k,
            v,
            bias=bias,
            mask=attention_mask,
            is_causal=False,
            scale=this.scaling,
            dropout=this.attention_dropout if this.training else 0.0,
            with_weights=bool(kwargs.get("output_attentions", this.config.output_attentions)),
        )
        return this.o_proj(mixed.flatten(2)), weights


FAMILIES = (
    Family(
        models=("wav2vec2-conformer",),
        file="wav2vec2_conformer.modeling_wav2vec2_conformer",
        parts={"Wav2Vec2ConformerSelfAttention": FusedConformerAttention},
    ),
    Family(
        models=("wav2vec2-bert",),
        file="wav2vec2_bert.modeling_wav2vec2_bert",
        parts={"Wav2Vec2BertSelfAttention": FusedWav2Vec2BertAttention},
    ),
    Family(
        models=("seamless_m4t",),
        file="seamless_m4t.modeling_seamless_m4t",
        parts={"SeamlessM4TConformerSelfAttention": FusedConformerAttention},
        interface={"SeamlessM4TAttention": NO_BIAS},
    ),
    Family(
        models=("seamless_m4t_v2",),
        file="seamless_m4t_v2.modeling_seamless_m4t_v2",
        parts={
            "SeamlessM4Tv2ConformerEncoder": FusedSeamlessV2Encoder,
            "SeamlessM4Tv2ConformerSelfAttention": FusedSeamlessV2Attention,
        },
        interface={"SeamlessM4Tv2Attention": NO_BIAS},
    ),
    Family(
        models=("parakeet_encoder", "parakeet_ctc", "parakeet_rnnt", "parakeet_tdt"),
        file="parakeet.modeling_parakeet",
        parts={"ParakeetEncoderAttention": FusedParakeetAttention},
    ),
)
