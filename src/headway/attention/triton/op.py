"""Launching the kernels, registered as torch operators so that `torch.compile` keeps them whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from headway.attention.triton import backward_kernels, diagonal_kernel, forward_kernel, hopper, short
from headway.attention.triton.arguments import Call
from headway.attention.triton.layout import (
    aligned,
    by_eight,
    for_gradients,
    gradients_like,
    rows_first,
    strides,
    summed_groups,
    whole_width,
)
from headway.attention.triton.tables import Parts, balanced, of_parts, summed

DIAGONAL_PROGRAMS = 4  # for each multiprocessor


@torch.library.custom_op("headway::fused", mutates_args=(), device_types=None)
def fused(
    q: Tensor,  # (B, H, Lq, D)
    k: Tensor,  # (B, Hk, Lk, D)
    v: Tensor,  # (B, Hk, Lk, Dv)
    qkv: Tensor | None,  # (B, L, 3, H, D): what they are views of, whose gradient is wanted in place of theirs
    values: Tensor | None,  # (B|1, H|1, Lq + Lk - 1), a Toeplitz bias
    left: Tensor | None,  # (B|1, H|1, Lq, R), a low-rank bias
    right: Tensor | None,  # (B|1, H|1, Lk, R)
    matrix: Tensor | None,  # (1, H|1, Lq, Lk), a dense bias; in tables
    segments: Tensor | None,  # (H|1, 2), what a query of either segment adds for keys of segment 1; Hopper only
    rows: Tensor | None,  # (H, B, Lq, by_eight(2 * reach + 1)), a score for each query and clipped offset
    reach: int,
    shift: int,  # position of the first query
    weights: bool,  # whether the weights of each clipped offset are wanted
    mask: Tensor | None,
    causal: bool,
    lengths: Tensor | None,
    q_documents: Tensor | None,
    k_documents: Tensor | None,
    scale: float,
    dropout: float,
    noise: Tensor | None,  # (B, H, numbers of queries and keys) of 32 bits, for dropout; see `dropout_noise`
    exact: bool,  # whether to return what rounding took from the output, for the gradients of shared factors
    by: str,  # which kernels: "one tile", "hopper tile", "hopper" or "triton"
    backward_by: str,
    tables: list[Tensor],  # what they read of the bias, unless they are Triton's
    backward_tables: list[Tensor],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # output, log2 of denominators (B, H, Lq), weights of offsets, rest
    call = Call(q, k, v, left, right, mask, causal, lengths, q_documents, k_documents, scale, dropout, noise)
    q, k, v = call.q, call.k, call.v
    if by == "one tile":
        return *short.forward(call, tables), q.new_empty(0), q.new_empty(0)
    out = rows_first(q, q.shape[2], v.shape[3])
    rest = torch.empty_like(out) if exact else q.new_empty(0)
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    of_offsets = _weights_like(q, reach, exact).zero_() if weights else q.new_empty(0)
    if by == "hopper tile":
        hopper.Hopper(call, tables, segments=False).tile_forward(out, lse)
        return out, lse, of_offsets, rest
    if by == "hopper":
        hopper.Hopper(call, tables, segments is not None).forward(out, rest if exact else None, lse)
        return out, lse, of_offsets, rest
    setting = call.config("forward")
    grid = (triton.cdiv(q.shape[2], setting["BLOCK_Q"]) * q.shape[0] * q.shape[1],)
    forward_kernel.forward_kernel[grid](
        q, k, v, out, rest, lse, of_offsets, *strides(q, k, v),
        *call.toeplitz(values, "rows", setting), *call.bias(rows, reach, shift), *call.masks, *call.sizes,
        REST=exact, EDGES=call.edges(1, setting["BLOCK_K"]), **call.flags(values, rows, weights), **setting,
    )  # fmt: skip
    return out, lse, of_offsets, rest


@torch.library.custom_op("headway::fused_backward", mutates_args=(), device_types=None)
def fused_backward(
    grad: Tensor,
    grad_weights: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    of_offsets: Tensor,
    rest: Tensor,
    values: Tensor | None,
    left: Tensor | None,
    right: Tensor | None,
    matrix: Tensor | None,
    segments: Tensor | None,
    rows: Tensor | None,
    reach: int,
    shift: int,
    mask: Tensor | None,
    causal: bool,
    lengths: Tensor | None,
    q_documents: Tensor | None,
    k_documents: Tensor | None,
    scale: float,
    dropout: float,
    noise: Tensor | None,
    packed: bool,  # whether the gradient of qkv is wanted, in place of that of q; by Hopper kernels
    learned: list[bool],  # whether gradients are wanted: of values, of left and right, of matrix
    by: str,
    tables: list[Tensor],
) -> tuple[
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor
]:  # of q, k, v, values, left, right, matrix, segments, rows
    call = Call(q, k, v, left, right, mask, causal, lengths, q_documents, k_documents, scale, dropout, noise)
    q, k, v, grad = call.q, call.k, call.v, aligned(grad)
    weights = of_offsets.numel() > 0
    parts = Parts(values, left, right, matrix)
    wanted = Parts(*(part if of else None for part, of in zip(parts, _each(learned), strict=True)))
    if by == "one tile":
        *grads, total = short.backward(call, tables, grad, lse, wanted.given)
        return _shaped(call, grads, _of_total(parts, learned, total, q.dtype), wanted)
    batch, heads, q_len, _ = q.shape
    k_len, v_width = v.shape[2:]
    whole, grads = for_gradients(q, k, v, packed)
    dq, dk, dv = grads
    if by == "hopper tile":
        fast = hopper.Hopper(call, tables, segments=False)
        total = fast.tile_backward(grad, lse, dq, dk, dv, wanted.given)
        return _shaped(call, grads, _of_total(parts, learned, total, q.dtype), wanted, whole=whole)
    pairs = batch * heads
    delta = torch.empty_like(lse)
    backward_kernels.delta_kernel[(triton.cdiv(q_len, 64) * pairs,)](
        out, rest, grad, delta, *strides(grad), heads, q_len,
        REST=rest.numel() > 0, BLOCK=64, WIDTH_V=v_width, BLOCK_V=whole_width(v_width),
    )  # fmt: skip
    if by == "hopper":
        fast = hopper.Hopper(call, tables, segments is not None, learned[0])
        dvalues, dsegments = fast.backward(grad, lse, delta, dq, dk, dv)
        of_bias = Parts(dvalues)
        if fast.kind == "matrix":
            total = fast.bias_grad(grad, lse, delta) if wanted.given else None
            of_bias = _of_total(parts, learned, total, q.dtype)
        return _shaped(call, grads, of_bias, wanted, segments, dsegments, whole=whole)

    to_weights = call.nothing
    if weights:
        to_weights = torch.zeros_like(of_offsets) if grad_weights is None else grad_weights.contiguous()
        delta += (to_weights.float() * of_offsets.float()).sum(-1).transpose(0, 1)
    columns = whole_width(call.rank) if call.rank > 0 else 0
    dleft, dright = (q.new_empty(batch, heads, rows, columns, dtype=torch.float32) for rows in (q_len, k_len))
    drows = call.nothing if rows is None else torch.zeros_like(rows, memory_format=torch.contiguous_format)
    before = (q, k, v, grad, to_weights, lse, delta)
    bias, flags = call.bias(rows, reach, shift), call.flags(values, rows, weights)

    setting = call.config("key")
    grid = (triton.cdiv(k_len, setting["BLOCK_K"]) * pairs,)
    backward_kernels.key_kernel[grid](
        *before, dk, dv, dright, *strides(q, k, v, grad), *call.toeplitz(values, "columns", setting), *bias,
        *call.masks, *call.sizes, EDGES=call.edges(setting["BLOCK_Q"], setting["BLOCK_K"]), **flags, **setting,
    )  # fmt: skip
    setting = call.config("query")
    grid = (triton.cdiv(q_len, setting["BLOCK_Q"]) * pairs,)
    backward_kernels.query_kernel[grid](
        *before, dq, dleft, drows, *strides(q, k, v, grad), *call.toeplitz(values, "rows", setting), *bias,
        *call.masks, *call.sizes, EDGES=call.edges(1, setting["BLOCK_K"]), **flags, **setting,
    )  # fmt: skip
    dvalues = None
    if values is not None and learned[0]:
        dvalues = _toeplitz_grad(call, values, before, bias, flags)
    of_bias = Parts(dvalues, dleft[..., : call.rank], dright[..., : call.rank])
    return _shaped(call, grads, of_bias, wanted, drows=None if rows is None else drows)


def _each(learned: list[bool]) -> list[bool]:  # of every part
    of_values, of_factors, of_matrix = learned
    return [of_values, of_factors, of_factors, of_matrix]


def _of_total(parts: Parts, learned: list[bool], total: Tensor | None, dtype: torch.dtype) -> Parts:
    return Parts() if total is None else of_parts(parts, learned, total, dtype)


def _shaped(
    call: Call,
    grads: Sequence[Tensor],  # of q; of k and v for each query head
    of_bias: Parts,  # for each sequence and head
    like: Parts,  # of the bias, where it is learned
    segments: Tensor | None = None,
    dsegments: Tensor | None = None,  # (H, 2)
    drows: Tensor | None = None,
    whole: Tensor | None = None,  # where the gradients of q, k and v are views of one tensor, which is given for them
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Sum what was shared; empty where there is nothing (an operator may not return one tensor twice)."""
    dq, dk, dv = grads
    if of_bias.values is not None and call.q.shape[2] > call.k.shape[2]:
        of_bias = of_bias._replace(values=balanced(of_bias.values, call.q.shape[2], call.k.shape[2]))
    groups = call.q.shape[1] // call.k.shape[1]
    if groups > 1:
        dk, dv = (summed_groups(t, groups) for t in (dk, dv))
    if whole is not None:
        dq, dk, dv = whole, call.q.new_empty(0), call.q.new_empty(0)
    dvalues, dleft, dright, dmatrix = (
        call.q.new_empty(0) if part is None or grad is None else summed(grad, part)
        for grad, part in zip(of_bias, like, strict=True)
    )
    of_segments = call.q.new_empty(0)
    if segments is not None and dsegments is not None:
        of_segments = summed(dsegments[None], segments[None])[0]
    of_rows = call.q.new_empty(0) if drows is None else drows
    return dq, dk, dv, dvalues, dleft, dright, dmatrix, of_segments, of_rows


def _weights_like(q: Tensor, reach: int, exact: bool) -> Tensor:
    size = (q.shape[1], q.shape[0], q.shape[2], by_eight(2 * reach + 1))
    return q.new_empty(size, dtype=torch.float32 if exact else q.dtype)


def _toeplitz_grad(
    call: Call, values: Tensor, before: tuple[Tensor, ...], bias: tuple[Any, ...], flags: dict[str, Any]
) -> Tensor:  # (B|1, H, Lq + Lk - 1)
    batch, heads, q_len, _ = call.q.shape
    k_len = call.k.shape[2]
    setting = call.config("diagonal")
    block = min(setting.pop("BLOCK_Q"), setting.pop("BLOCK_K"))
    blocks_q, blocks_k = triton.cdiv(q_len, block), triton.cdiv(k_len, block)
    diagonals = blocks_q + blocks_k - 1
    groups = values.shape[0]  # 1 where the batch shares the bias
    together = batch // groups
    programs = DIAGONAL_PROGRAMS * call.multiprocessors // (diagonals * heads * groups)
    chunks = max(1, min(programs, together * min(blocks_q, blocks_k)))
    sums = call.q.new_empty(groups, heads, diagonals, chunks, 2, 2, block, dtype=torch.float32)
    diagonal_kernel.diagonal_kernel[(diagonals * chunks, heads, groups)](
        *before, sums, *strides(*before[:4]),
        *call.toeplitz(values, "rows", {"BLOCK_Q": block, "BLOCK_K": block}), *bias, *call.masks,
        *call.sizes, batch, together, chunks,
        EDGES=call.edges(block, block), BLOCK=block,
        **{name: flag for name, flag in flags.items() if name != "TOEPLITZ"}, **setting,
    )  # fmt: skip
    # (G, H, diagonals, half, 2, block): of offsets below and from `gap * block` on, for the upper rows; for the lower
    # rows the same from half a block less on.
    upper, lower = sums.sum(3).unbind(3)
    total = F.pad(_in_order(upper), (block // 2, 0)) + F.pad(_in_order(lower), (0, block // 2))
    first = blocks_q * block - (q_len - 1) + block // 2  # where offset -(Lq - 1) stands
    return total[..., first : first + q_len + k_len - 1]


def _in_order(sums: Tensor) -> Tensor:  # (G, H, diagonals, 2, block) -> (G, H, (diagonals + 1) * block)
    low, high = sums.unbind(3)
    return (F.pad(low, (0, 0, 0, 1)) + F.pad(high, (0, 0, 1, 0))).flatten(2)


@fused.register_fake
def _(q, k, v, qkv, values, left, right, matrix, segments, rows, reach, shift, weights, *rest):  # type: ignore[no-untyped-def]
    out = rows_first(q, q.shape[2], v.shape[3])
    of_offsets = _weights_like(q, reach, rest[-5]) if weights else q.new_empty(0)
    exact = torch.empty_like(out) if rest[-5] else q.new_empty(0)
    return out, q.new_empty(q.shape[:3], dtype=torch.float32), of_offsets, exact


@fused_backward.register_fake
def _(grad, grad_weights, q, k, v, out, lse, of_offsets, rest, values, left, right, matrix, segments, rows, *others):  # type: ignore[no-untyped-def]
    wanted = [*_each(others[-3]), True, True]
    of_bias = [
        q.new_empty(0) if t is None or not want else torch.empty_like(t, memory_format=torch.contiguous_format)
        for t, want in zip((values, left, right, matrix, segments, rows), wanted, strict=True)
    ]
    return *gradients_like(q, k, v, others[-4]), *of_bias


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    q, k, v, qkv, values, left, right, matrix, segments, rows, reach, shift, _, mask, causal, lengths, *others = inputs
    q_documents, k_documents, scale, dropout, noise, _, _, backward_by, tables, backward_tables = others
    ctx.save_for_backward(
        q, k, v, *output, values, left, right, matrix, segments, rows, mask, lengths, q_documents, k_documents, noise,
        *backward_tables,
    )  # fmt: skip
    learned = [
        any(part is not None and part.requires_grad for part in parts)
        for parts in ((values,), (left, right), (matrix,))
    ]
    ctx.settings = reach, shift, causal, scale, dropout, qkv is not None, learned, backward_by, len(tables)
    ctx.mark_non_differentiable(output[1], output[3])
    ctx.set_materialize_grads(False)


def _differentiate(ctx, grad, _lse, grad_weights, _rest):  # type: ignore[no-untyped-def]
    q, k, v, out, lse, of_offsets, rest, values, left, right, matrix, segments, rows, *others = ctx.saved_tensors
    mask, lengths, q_documents, k_documents, noise, *tables = others
    reach, shift, causal, scale, dropout, packed, learned, backward_by, forward_tables = ctx.settings
    of_tables = [None] * forward_tables, [None] * len(tables)
    if grad is None and grad_weights is None:
        return *(None,) * 24, *of_tables
    if grad is None:
        grad = torch.zeros_like(out)
    dq, dk, dv, *grads = fused_backward(
        grad, grad_weights, q, k, v, out, lse, of_offsets, rest, values, left, right, matrix, segments, rows,
        reach, shift, mask, causal, lengths, q_documents, k_documents, scale, dropout, noise, packed, learned,
        backward_by, tables,
    )  # fmt: skip
    given = (values, left, right, matrix, segments, rows)
    wanted = [*_each(learned), True, True]
    of_bias = (g if t is not None and want else None for g, t, want in zip(grads, given, wanted, strict=True))
    of_inputs = (None, None, None, dq) if packed else (dq, dk, dv, None)
    return *of_inputs, *of_bias, *(None,) * 14, *of_tables


def no_second(ctx, *grads):  # type: ignore[no-untyped-def]
    raise NotImplementedError(
        "attention: the fused kernels have no second derivative. Use backend='eager', which is differentiable twice."
    )


fused.register_autograd(_differentiate, setup_context=_save)
fused_backward.register_autograd(no_second)
