"""XLNet: Transformer-XL's relative positions over memory and sequence, segments, and two streams of queries.

The model computes attention itself, with the length first and the batch second. Each original layer gets a matrix that
says for each pair whether its segments are equal, and a copy of the positions for each sequence. The fused layers get
the segment of each token, and the positions once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from headway.bias import Dense, LowRank
from headway.pretrained.fusing.families.conformers import transformer_xl
from headway.pretrained.fusing.family import Family, Fused
from headway.pretrained.fusing.interface import run, with_mean_of_values
from headway.running import is_transformed, may_read


class Segments(NamedTuple):
    """One-hot segments, (B, 1, L, S)."""

    q: Tensor
    k: Tensor


class FusedXLNetModel(Fused):
    """Gives the layers the segment of each token in place of a matrix, and the positions once for all sequences."""

    STRUCTURE = "gives the layers segments of tokens, and one table of positions"
    EXPECTS = {  # noqa: RUF012
        "relative_positional_encoding": ("qlen", "klen", "bsz", "device"),
        "forward": (
            *("input_ids", "attention_mask", "mems", "perm_mask", "target_mapping", "token_type_ids", "input_mask"),
            *("inputs_embeds", "use_mems", "output_attentions", "output_hidden_states", "return_dict"),
        ),
    }

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        mems: Any = None,
        perm_mask: Tensor | None = None,
        target_mapping: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        this: Any = self
        original = super().forward  # type: ignore[misc]
        given = (input_ids, attention_mask, mems, perm_mask, target_mapping)
        attention = [layer.rel_attn for layer in this.layer]
        # How many segments there are must be read, and the compiler cannot read it.
        cannot_read = torch.compiler.is_compiling() or is_transformed()
        if token_type_ids is None or cannot_read or not isinstance(attention[0], Fused):
            return original(*given, token_type_ids, *args, **kwargs)
        remembered = 0 if mems is None or mems[0] is None else mems[0].shape[0]
        for each in attention:
            each.segments = segments(token_type_ids, remembered, this.dtype)
        try:
            return original(*given, None, *args, **kwargs)
        finally:
            for each in attention:
                del each.segments

    def relative_positional_encoding(
        self, qlen: int, klen: int, bsz: int | None = None, device: Any = None
    ) -> Tensor:  # (Lq + Lk, 1 or 2, E), the first row for no pair; 2 where half a batch reads backwards
        this: Any = self
        if this.bi_data and bsz is not None and bsz % 2:
            raise ValueError(f"input_ids: expected an even number of sequences (config.bi_data), got {bsz}.")
        if isinstance(this.layer[0].rel_attn, Fused):
            bsz = 2 if this.bi_data else 1
        positions: Tensor = super().relative_positional_encoding(qlen, klen, bsz, device)  # type: ignore[misc]
        return positions


class FusedXLNetAttention(Fused):
    """Headway's attention between the original's projections, for either stream of queries."""

    STRUCTURE = "RelativeProducts as in Transformer-XL; LowRank: segments"
    EXPECTS = {  # noqa: RUF012
        "rel_attn_core": (*("q_head", "k_head_h", "v_head_h", "k_head_r", "seg_mat", "attn_mask", "output_attentions"),)
    }
    segments: Segments | None = None  # of the call that is running

    def rel_attn_core(
        self,
        q_head: Tensor,  # (Lq, B, H, D), and so are keys and values
        k_head_h: Tensor,
        v_head_h: Tensor,
        k_head_r: Tensor,  # (Lq + Lk, T, H, D), or (Lk + 1, T, H, D) without offsets to the right; T tables
        seg_mat: Tensor | None = None,  # (Lq, Lk, B, 2), one-hot, 1 = another segment; None where there are `segments`
        attn_mask: Tensor | None = None,  # (Lq|1, Lk, B|1, 1), 1 = may not attend
        output_attentions: bool = False,
    ) -> Any:
        q, k, v = (each.permute(1, 2, 0, 3) for each in (q_head, k_head_h, v_head_h))
        tables = k_head_r.permute(1, 2, 0, 3)[:, :, 1:]  # the first row belongs to no pair
        if tables.shape[2] < q.shape[2] + k.shape[2] - 1:  # to the right of a query everything is masked
            tables = torch.nn.functional.pad(tables, (0, 0, 0, q.shape[2] + k.shape[2] - 1 - tables.shape[2]))
        allowed = None if attn_mask is None else (attn_mask == 0).permute(2, 3, 0, 1)
        if allowed is not None and may_read(allowed) and bool(allowed.all()):
            allowed = None
        parts = []
        for i, table in enumerate(tables):
            # One table serves all sequences, or each of T tables serves as many sequences as the others.
            own = slice(i * q.shape[0] // tables.shape[0], (i + 1) * q.shape[0] // tables.shape[0])
            parts.append(
                self._attend(
                    q[own],
                    k[own],
                    v[own],
                    table.to(q.dtype),
                    None if self.segments is None else Segments(self.segments.q[own], self.segments.k[own]),
                    None if seg_mat is None else seg_mat[:, :, own],
                    allowed if allowed is None or allowed.shape[0] == 1 else allowed[own],
                    output_attentions,
                )
            )
        mixed = torch.cat([mixed for mixed, _ in parts]) if len(parts) > 1 else parts[0][0]
        if not output_attentions:
            return mixed.transpose(0, 1)
        return mixed.transpose(0, 1), torch.cat([weights for _, weights in parts]).permute(2, 3, 0, 1)

    def _attend(
        self,
        q: Tensor,  # (B, H, Lq, D)
        k: Tensor,
        v: Tensor,
        table: Tensor,  # (H, Lq + Lk - 1, D)
        segments: Segments | None,
        other_segment: Tensor | None,  # (Lq, Lk, B, 2)
        allowed: Tensor | None,  # boolean (B|1, 1, Lq|1, Lk)
        with_weights: bool,
    ) -> tuple[Tensor, Any]:  # (B, Lq, H, D), and the weights (B, H, Lq, Lk) if they were asked for
        this: Any = self
        query, bias = transformer_xl(q, table, this.r_w_bias, this.r_r_bias, this.scale)
        of_segments = (q + this.r_s_bias[:, None]) @ this.seg_embed.permute(1, 2, 0) * this.scale  # (B, H, Lq, 2)
        if segments is not None:
            # The number of another segment is taken from the whole row: that changes no weight.
            same = of_segments[..., :1] - of_segments[..., 1:]
            bias = bias + LowRank(same * segments.q.to(same.dtype), segments.k.to(same.dtype))
        elif other_segment is not None:
            bias = bias + Dense(torch.einsum("ijbs,bnis->bnij", other_segment.to(of_segments.dtype), of_segments))
        mixed, weights = run(
            query,
            k,
            v,
            bias=bias,
            mask=allowed,
            is_causal=False,
            scale=this.scale,
            dropout=this.dropout.p if this.training else 0.0,
            with_weights=with_weights,
        )
        if allowed is not None:
            # A query that may attend to nothing, such as the first of a permutation, gets the mean of all values.
            mixed, weights = with_mean_of_values(mixed, weights, v, ~allowed.any(-1, keepdim=True))
        return mixed, weights


def segments(
    token_type_ids: Tensor,  # (B, Lq), any integers
    remembered: int,
    dtype: torch.dtype,
) -> Segments:
    """Return the segments of queries and keys; those of the memory are 0, as in transformers."""
    keys = torch.nn.functional.pad(token_type_ids, (remembered, 0))
    names, order = torch.unique(keys, return_inverse=True)
    one_hot = torch.nn.functional.one_hot(order, len(names))[:, None].to(dtype)
    return Segments(one_hot[:, :, remembered:], one_hot)


FAMILIES = (
    Family(
        models=("xlnet",),
        file="xlnet.modeling_xlnet",
        parts={"XLNetModel": FusedXLNetModel, "XLNetRelativeAttention": FusedXLNetAttention},
    ),
)
