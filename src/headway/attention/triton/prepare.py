"""From a call and the kernels that were chosen for it to a call of an operator: tensors, tables and random numbers.

Tables are made here, outside the operators, once for both passes; layers that share a bias may share them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from headway.attention.request import Request
from headway.attention.triton import op
from headway.attention.triton.description import (
    Choice,
    Description,
    Inputs,
    Kernels,
    Reads,
    Tables,
    relative_terms,
)
from headway.attention.triton.layout import by_eight, dropout_noise, padded
from headway.attention.triton.masks import document_records, key_words
from headway.attention.triton.matrices import matrix_tables
from headway.attention.triton.multiplied import Multiplied
from headway.attention.triton.products import joined
from headway.attention.triton.relative import fused_relative, in_places
from headway.attention.triton.tables import (
    Parts,
    bias_matrix,
    factor_tables,
    highest,
    parts_of,
    segment_tables,
    toeplitz_table,
)
from headway.bias import RelativeKeys, RelativeProducts, RelativeValues, SegmentTable

FEWEST_QUERIES = 256  # of all sequences: up to here a learned Toeplitz bias gets exact gradients, at little cost


def run(request: Request, choice: Choice) -> Tensor:  # (B, H, Lq, Dv)
    if choice.kernels is Kernels.RELATIVE:
        return _relative(request)
    if choice.kernels is Kernels.PRODUCTS:
        return _products(request, choice)
    rows, value_table, reach, shift = _relative_parts(request)
    # Columns of zeros change no score; of values, they are cut off again.
    q, k, v = (padded(t, choice.width) for t in (request.q, request.k, request.v))
    terms = () if request.bias is None else request.bias.terms
    segment, steps = None, None
    if choice.reads is Reads.SEGMENTS:
        segment = next(term for term in terms if isinstance(term, SegmentTable))
        # A number that all keys share changes no weight: the column of segment 0 is taken from that of segment 1.
        steps = segment.table[:, :, 1] - segment.table[:, :, 0]  # (H|1, 2)
    parts = parts_of([term for term in terms if term is not segment])
    masks, mask_tables = _masks(request, choice.on_hopper)
    tables = _tables(request, choice, parts.detach(), segment, steps)._replace(**mask_tables)
    qkv = None if choice.padded or not choice.on_hopper else request.qkv
    output, _, weights, _ = op.fused(
        *Description(
            kernels=choice.kernels,
            inputs=_inputs(request, q, k, v, qkv, parts, segments=steps, rows=rows)._replace(**masks),
            tables=tables,
            scale=request.scale,
            dropout=request.dropout,
            causal=request.masking.causal,
            reach=reach,
            shift=shift,
            weights=value_table is not None,
            exact=_needs_rest(request, choice, (*parts, steps)),
        ).packed()
    )
    output = output[..., : request.v.shape[3]]
    if value_table is not None:
        of_values = torch.bmm(weights.to(q.dtype).flatten(1, 2), value_table)
        output = output + of_values.view(q.shape[1], q.shape[0], q.shape[2], -1).transpose(0, 1)
    return cast("Tensor", output)


def _products(request: Request, choice: Choice) -> Tensor:
    q, k, v = (padded(t) for t in (request.q, request.k, request.v))
    terms = () if request.bias is None else request.bias.terms
    parts = parts_of([term for term in terms if not isinstance(term, RelativeProducts | RelativeKeys)])
    inputs = _inputs(request, q, k, v, None, parts)._replace(**_masks(request, choice.on_hopper)[0])
    of_queries, of_keys = (joined(terms, request.q, request.scale, of_keys=of_keys) for of_keys in (False, True))
    if of_queries is not None:
        vectors, table, rows = of_queries
        inputs = inputs._replace(q_vectors=vectors, q_table=table, q_rows=rows)
    if of_keys is not None:
        vectors, table, rows = of_keys
        inputs = inputs._replace(k_vectors=vectors, k_table=table, k_rows=rows)
    output, *_ = op.fused(
        *Description(
            kernels=choice.kernels,
            inputs=inputs,
            tables=Tables(),
            scale=request.scale,
            dropout=request.dropout,
            causal=request.masking.causal,
            exact=_needs_rest(request, choice, parts),
        ).packed()
    )
    return cast("Tensor", output[..., : request.v.shape[3]])


def _inputs(
    request: Request,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qkv: Tensor | None,  # what q, k and v are views of: the gradient is that tensor's
    parts: Parts,
    *,
    segments: Tensor | None = None,
    rows: Tensor | None = None,
    key_table: Tensor | None = None,
    value_table: Tensor | None = None,
) -> Inputs:
    return Inputs(
        *((q, k, v) if qkv is None else (q.detach(), k.detach(), v.detach())),
        qkv=qkv,
        values=parts.values,
        left=parts.left,
        right=parts.right,
        matrix=parts.matrix,
        segments=segments,
        rows=rows,
        key_table=key_table,
        value_table=value_table,
        noise=None if request.dropout == 0 else dropout_noise(q, k),
    )


def _masks(request: Request, on_hopper: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The masks as inputs of the kernels, and those of them that the Hopper kernels read in other forms as tables."""
    masking, batch = request.masking, request.q.shape[0]
    mask, documents = masking.mask, {"q_documents": masking.q_documents, "k_documents": masking.k_documents}
    lengths = masking.lengths  # kernels trust them, and on a GPU nobody has read them
    lengths = None if lengths is None else lengths.clamp(max=request.k.shape[2]).to(torch.int32)
    if not on_hopper:
        return {"mask": mask, "lengths": lengths, **documents}, {}
    words = q_records = k_records = None
    if mask is not None:
        words, lengths = key_words(mask, lengths, batch)
    if masking.q_documents is not None and masking.k_documents is not None:
        given = masking.q_documents, masking.k_documents
        q_records, k_records = document_records(*given, lengths, words, masking.causal, batch)
    return {"lengths": lengths}, {"words": words, "q_records": q_records, "k_records": k_records}


def _tables(
    request: Request,
    choice: Choice,
    parts: Parts,
    segment: SegmentTable | None,
    steps: Tensor | None,
) -> Tables:
    """What the chosen kernels read of the bias. They are constants: gradients of the parts are the operators' own."""
    if choice.reads is Reads.MATRIX:
        return _matrix(request, choice, parts)
    if choice.reads in (Reads.NOTHING, Reads.PARTS):
        return Tables()
    toeplitz = left = right = of_queries = of_q = of_k = None
    if parts.values is not None:
        toeplitz = toeplitz_table(parts.values, request.q.shape[2], request.k.shape[2])
    if parts.left is not None and parts.right is not None:
        left, right = factor_tables(parts.left, parts.right, request.scale)
    if segment is not None and steps is not None:
        of_queries, of_q, of_k = segment_tables(steps.detach(), segment.q_segments, segment.k_segments)
    return Tables(
        toeplitz=toeplitz, left=left, right=right, steps=of_queries, q_segments=of_q, k_segments=of_k
    )  # fmt: skip


def _matrix(request: Request, choice: Choice, parts: Parts) -> Tables:
    q_len, k_len, trains = request.q.shape[2], request.k.shape[2], request.needs_grad
    if choice.on_hopper and isinstance(request.bias, Multiplied):
        rows, *columns = request.bias.tables
        return Tables(fragments=rows, column_fragments=columns[0] if columns else None)
    peaks = None if parts.matrix is None else highest(parts.matrix, request.masking)
    if choice.kernels is Kernels.ONE_TILE:
        matrix = bias_matrix(parts, k_len, request.q.dtype != torch.float32, peaks)
        return Tables(matrix=matrix, transposed=matrix.mT.contiguous() if trains else None)
    rows, *columns = matrix_tables(*parts, peaks, q_len, k_len, trains and not choice.one_tile)
    return Tables(fragments=rows, column_fragments=columns[0] if columns else None)


def _needs_rest(request: Request, choice: Choice, parts: Sequence[Tensor | None]) -> bool:
    """Whether gradients need what rounding took from the output: those of factors that many sequences share, and those
    that nearly cancel, because there is one key or because a mask may leave few. A query's error is one number in the
    gradient of all its scores, and few queries leave it in that of an offset which many keys share.

    A mask of keys (the Hopper kernels take no other) is to a sequence as its length. In a text of one token the output
    is the token's value, which rounds to itself, unless dropout scales it.
    """
    if not request.needs_grad or request.q.dtype == torch.float32 or choice.one_tile:
        return False
    if request.k.shape[2] == 1:
        return True
    values, *others = parts
    if values is not None and values.requires_grad and request.q.shape[0] * request.q.shape[2] <= FEWEST_QUERIES:
        return True
    masked = request.masking.q_documents is not None
    if choice.on_hopper:
        masked = masked and request.dropout > 0
    else:
        masked = masked or request.masking.mask is not None
    return masked or any(part is not None and part.requires_grad for part in others)


def _relative(request: Request) -> Tensor:
    keys, values = relative_terms(request)
    q = request.q
    reach = max(1, *(term.clip for term in (*keys, *values)))
    key_table = None if not keys else _table(keys, reach, q).float() * request.scale
    value_table = None if not values else _table(values, reach, q).float()
    places = [None if t is None else in_places(t.detach().to(q.dtype)) for t in (key_table, value_table)]
    masks, mask_tables = _masks(request, on_hopper=True)
    inputs = _inputs(
        request, q, request.k, request.v, request.qkv, Parts(), key_table=key_table, value_table=value_table
    )._replace(**masks)
    output, *_ = fused_relative(
        *Description(
            kernels=Kernels.RELATIVE,
            inputs=inputs,
            tables=Tables(key_places=places[0], value_places=places[1])._replace(**mask_tables),
            scale=request.scale,
            dropout=request.dropout,
            causal=request.masking.causal,
            reach=reach,
            shift=(*keys, *values)[0].q_start,
            weights=request.needs_grad,
        ).packed()
    )
    return cast("Tensor", output)


def _relative_parts(request: Request) -> tuple[Tensor | None, Tensor | None, int, int]:
    """Relative keys as scores (H, B, Lq, C), the table of relative values (H, C, Dv), their reach and shift.

    C clipped offsets, of which 2 * reach + 1 count and the rest is padding.
    """
    q = request.q
    keys, on_values = relative_terms(request)
    if not keys and not on_values:
        return None, None, 0, 0
    reach = max(1, *(term.clip for term in (*keys, *on_values)))
    padding = by_eight(2 * reach + 1) - (2 * reach + 1)
    rows = value_table = None
    if keys:  # Shaw et al. (2018), Eq. (5): q meets the table first
        table = (_table(keys, reach, q, padding) * request.scale).to(q.dtype)
        rows = torch.bmm(_heads_apart(q), table.mT).view(q.shape[1], q.shape[0], q.shape[2], -1)
    if on_values:
        value_table = _table(on_values, reach, q, padding).to(q.dtype)
    return rows, value_table, reach, (*keys, *on_values)[0].q_start


def _heads_apart(t: Tensor) -> Tensor:  # (B, H, L, D) -> (H, B * L, D), in place where rows come before heads
    return t.transpose(0, 1).flatten(1, 2)


def _table(
    terms: Sequence[RelativeKeys | RelativeValues], reach: int, q: Tensor, padding: int = 0
) -> Tensor:  # (H, 2 * reach + 1 + padding, D)
    """The sum of their tables, the outermost vectors of each repeated up to the reach and into the padding."""
    wide = []
    for term in terms:
        more = reach - term.clip
        parts = [term.table[:, :1].expand(-1, more, -1), term.table, term.table[:, -1:].expand(-1, more + padding, -1)]
        wide.append(torch.cat(parts, 1) if more + padding else term.table)
    return functools.reduce(torch.add, wide).expand(q.shape[1], -1, -1)
