"""DeBERTa v1, v2 and v3, and SEW-D: products of queries and of keys with a projected table of offsets.

He et al. (2021), "DeBERTa", Eq. (4): content-to-position is a product of the query with the offset's key, and position-
to-content a product of the key with the offset's query. Both read the same row of the table, because buckets of i - j
and of j - i differ only in sign. The original encoder passes to its layers, for each sequence, a matrix of relative
positions and one of the mask; the fused one passes the row of each offset, (2 L - 1,), and the padding of keys.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from headway.bias import Bias, RelativeProducts
from headway.pretrained.fusing.family import Family, Fused
from headway.pretrained.fusing.interface import run, split_heads, with_mean_of_values
from headway.running import may_read


class FusedDebertaEncoder(Fused):
    """Returns rows of offsets and the padding of keys where the original returns matrices."""

    STRUCTURE = "computes the row of each offset, which the layers share"
    EXPECTS = {  # noqa: RUF012
        "get_rel_pos": ("hidden_states", "query_states", "relative_pos"),
        "get_attention_mask": ("attention_mask",),
    }

    def get_rel_pos(
        self, hidden_states: Tensor, query_states: Tensor | None = None, relative_pos: Tensor | None = None
    ) -> Tensor | None:  # (2 L - 1,), rows of the part of the table that L tokens reach, offset -(L - 1) first
        this: Any = self
        if relative_pos is not None:
            raise NotImplementedError(
                "relative_pos: a fused encoder computes relative positions by itself, got a matrix of them. "
                "Call headway.unfuse to give it your own."
            )
        length = hidden_states.shape[1]
        # The original, asked for one key alone: the relative positions 0 to L - 1. The others are their negatives.
        ahead = super().get_rel_pos(hidden_states[:, :1], hidden_states)  # type: ignore[misc]
        if ahead is None:
            return None
        ahead = ahead.reshape(length)
        reach = reach_of(this, length)
        return torch.cat([ahead.flip(0), -ahead[1:]]).clamp(-reach, reach - 1) + reach

    def get_attention_mask(self, attention_mask: Tensor) -> Tensor | None:
        if attention_mask.dim() > 2:
            whole: Tensor = super().get_attention_mask(attention_mask)  # type: ignore[misc]
            return whole.bool()
        keep = attention_mask.bool()
        return None if may_read(keep) and bool(keep.all()) else keep[:, None, None, :]


class FusedDisentangledAttention(Fused):
    """Content and position terms around headway's attention; the projections are those of a subclass."""

    STRUCTURE = "RelativeProducts of queries (c2p) and keys (p2c) with a row for each offset"

    def structure(self) -> str:
        this: Any = self
        kinds = [kind for kind in ("c2p", "p2c") if this.relative_attention and kind in this.pos_att_type]
        return f"RelativeProducts: {' and '.join(kinds)}" if kinds else "no bias"

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None,
        output_attentions: bool = False,
        query_states: Tensor | None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        this: Any = self
        q, k, v = self.projected(hidden_states, hidden_states if query_states is None else query_states)
        scale = scale_of(q.shape[-1], self.num_terms())
        bias: Bias | None = None
        if this.relative_attention and rel_embeddings is not None:
            if relative_pos is None or relative_pos.dim() != 1:
                raise NotImplementedError(
                    "relative_pos: expected the rows of offsets that a fused encoder gives its layers, got "
                    f"{'None' if relative_pos is None else tuple(relative_pos.shape)}. Call the encoder, or "
                    "headway.unfuse to call a layer by itself."
                )
            reach, middle = reach_of(this, k.shape[2]), span_of(this)
            table = this.pos_dropout(rel_embeddings[middle - reach : middle + reach])
            for kind, own, vectors in (("c2p", q, self.position_keys), ("p2c", k, self.position_queries)):
                if kind in this.pos_att_type:
                    of_offsets = split_heads(vectors(table)[None], q.shape[1])[0] * scale  # (H, 2 reach, D)
                    bias = RelativeProducts(own, of_offsets, relative_pos, of_keys=kind == "p2c") + bias
        mixed, weights = run(
            q,
            k,
            v,
            bias=bias,
            mask=attention_mask,
            is_causal=False,
            scale=scale,
            dropout=self.rate() if this.training else 0.0,
            with_weights=output_attentions,
        )
        if attention_mask is not None:
            # In eager attention, padding may attend to nothing. Losses over all tokens, such as that of spans, see it.
            of_keys = attention_mask.shape[2] == 1
            nothing = ~attention_mask.mT if of_keys else ~attention_mask.any(-1, keepdim=True)
            mixed, weights = self.of_padding(mixed, weights, v, nothing)
        return mixed.flatten(2), weights

    def projected(self, hidden_states: Tensor, query_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k and v, (B, H, L, D)."""
        this: Any = self
        projected = this.query_proj(query_states), this.key_proj(hidden_states), this.value_proj(hidden_states)
        q, k, v = (split_heads(each, this.num_attention_heads) for each in projected)
        return q, k, v

    def of_padding(
        self, mixed: Tensor, weights: Tensor | None, v: Tensor, nothing: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Replace what queries get that may attend to nothing, (B|1, 1, Lq|1, 1)."""
        return with_mean_of_values(mixed, weights, v, nothing)

    def position_keys(self, table: Tensor) -> Tensor:
        """Project the table, (N, E), to the keys that queries are multiplied with, (N, H * D)."""
        this: Any = self
        projection = this.key_proj if this.share_att_key else this.pos_key_proj
        keys: Tensor = projection(table)
        return keys

    def position_queries(self, table: Tensor) -> Tensor:
        """Project the table, (N, E), to the queries that keys are multiplied with, (N, H * D)."""
        this: Any = self
        projection = this.query_proj if this.share_att_key else this.pos_query_proj
        queries: Tensor = projection(table)
        return queries

    def num_terms(self) -> int:
        """Return how many products a score is the sum of, by which its scale is divided."""
        this: Any = self
        return 1 + ("c2p" in this.pos_att_type) + ("p2c" in this.pos_att_type)

    def rate(self) -> float:
        """Return the probability with which dropout drops a weight."""
        this: Any = self
        rate: float = this.dropout.p
        return rate


class FusedDebertaAttention(FusedDisentangledAttention):
    """Version 1: one projection makes q, k and v, and each kind of position term has its own."""

    EXPECTS = {  # noqa: RUF012
        "forward": (
            *("hidden_states", "attention_mask", "output_attentions", "query_states", "relative_pos"),
            "rel_embeddings",
        )
    }

    def projected(self, hidden_states: Tensor, query_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        this: Any = self
        heads = this.num_attention_heads
        q, k, v = split_heads(this.in_proj(hidden_states), heads).chunk(3, -1)
        if query_states is not hidden_states:
            q = split_heads(this.in_proj(query_states), heads).chunk(3, -1)[0]
        q_bias, v_bias = (each.view(heads, 1, -1) for each in (this.q_bias, this.v_bias))
        return q + q_bias, k, v + v_bias

    def position_keys(self, table: Tensor) -> Tensor:
        this: Any = self
        keys: Tensor = this.pos_proj(table)
        return keys

    def position_queries(self, table: Tensor) -> Tensor:
        this: Any = self
        queries: Tensor = this.pos_q_proj(table)
        return queries

    def num_terms(self) -> int:
        this: Any = self
        return 1 + len(this.pos_att_type)

    @classmethod
    def why_not(cls, module: Any) -> str | None:
        if module.talking_head:
            return "config.talking_head mixes the scores of heads, which headway's attention does not have"
        return None


class FusedDebertaV2Attention(FusedDisentangledAttention):
    """Versions 2 and 3."""

    EXPECTS = FusedDebertaAttention.EXPECTS


class FusedSEWDAttention(FusedDisentangledAttention):
    """SEW-D: as version 2, with a dropout of its own; its padding attends to the tokens."""

    EXPECTS = {  # noqa: RUF012
        "forward": ("hidden_states", "attention_mask", "query_states", "relative_pos", "rel_embeddings")
    }

    def rate(self) -> float:
        this: Any = self
        rate: float = this.dropout.drop_prob
        return rate

    def of_padding(
        self, mixed: Tensor, weights: Tensor | None, v: Tensor, nothing: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        return mixed, weights


def span_of(module: Any) -> int:
    """Return half the rows of an encoder's or a layer's table: the relative position that is clipped."""
    buckets = getattr(module, "position_buckets", -1)
    span: int = buckets if buckets > 0 else module.max_relative_positions
    return span


def reach_of(module: Any, length: int) -> int:
    """Return half the rows of the table that sequences of this length can read."""
    return min(span_of(module), length)


def scale_of(width: int, terms: int) -> float:
    """Return 1 / sqrt(width * terms), with the square root rounded to float32 as the originals do."""
    return 1.0 / torch.tensor(math.sqrt(width * terms), dtype=torch.float32).item()


# As torch.compiler.assume_constant_result, without importing the compiler: graphs take the answer as a constant.
scale_of._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _family(model: str, file: str, encoder: str, attention: type[Fused]) -> Family:
    return Family(
        models=(model,),
        file=file,
        parts={encoder: FusedDebertaEncoder, "DisentangledSelfAttention": attention},
    )


FAMILIES = (
    _family("deberta", "deberta.modeling_deberta", "DebertaEncoder", FusedDebertaAttention),
    _family("deberta-v2", "deberta_v2.modeling_deberta_v2", "DebertaV2Encoder", FusedDebertaV2Attention),
    _family("sew-d", "sew_d.modeling_sew_d", "SEWDTransformerEncoder", FusedSEWDAttention),
)
