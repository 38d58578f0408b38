"""Launching the kernels, registered as torch operators so that `torch.compile` keeps them whole."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from headway.attention.triton import backward_kernels, diagonal_kernel, forward_kernel, hopper, short
from headway.attention.triton.arguments import Call
from headway.attention.triton.layout import (
    by_eight,
    for_gradients,
    gradients_like,
    rows_first,
    strides,
    summed_groups,
)
from headway.attention.triton.tables import Parts, balanced, of_parts

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
    learned: bool,  # whether the gradient of values is wanted
    by: str,
    tables: list[Tensor],
) -> tuple[
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor
]:  # of q, k, v, values, left, right, segments, rows
    call = Call(q, k, v, left, right, mask, causal, lengths, q_documents, k_documents, scale, dropout, noise)
    aligned = grad.stride(3) == 1 and all(number % 8 == 0 for number in grad.stride()[:3])
    grad = grad if aligned and grad.data_ptr() % 16 == 0 else grad.contiguous()
    weights = of_offsets.numel() > 0
    if by == "one tile":
        grads = short.backward(call, tables, values, grad, lse, learned)
        return _shaped(call, grads, None, values if learned else None)
    batch, heads, q_len, _ = q.shape
    k_len, v_width = v.shape[2:]
    whole, (dq, dk, dv) = for_gradients(q, k, v, packed)
    of_bias: Parts = (None, None, None)
    if by == "hopper tile":
        fast = hopper.Hopper(call, tables, segments=False)
        total = fast.tile_backward(grad, lse, dq, dk, dv, learned or left is not None)
        if total is not None:
            of_bias = of_parts(values if learned else None, left, right, total, q.dtype)
        return _shaped(call, (dq, dk, dv, *of_bias), None, values if learned else None, whole=whole)
    pairs = batch * heads
    delta = torch.empty_like(lse)
    backward_kernels.delta_kernel[(triton.cdiv(q_len, 64) * pairs,)](
        out, rest, grad, delta, *strides(grad), heads, q_len,
        REST=rest.numel() > 0, V_WIDTH=v_width, BLOCK=64, BLOCK_V=call.width_flags["BLOCK_V"],
    )  # fmt: skip
    if by == "hopper":
        fast = hopper.Hopper(call, tables, segments is not None, learned)
        dvalues, dsegments = fast.backward(grad, lse, delta, dq, dk, dv)
        of_bias = (dvalues, None, None)
        if left is not None:
            of_bias = of_parts(values if learned else None, left, right, fast.bias_grad(grad, lse, delta), q.dtype)
        grads = (dq, dk, dv, *of_bias)
        return _shaped(call, grads, None, values if learned else None, segments, dsegments, whole=whole)

    to_weights = call.nothing
    if weights:
        to_weights = torch.zeros_like(of_offsets) if grad_weights is None else grad_weights.contiguous()
        delta += (to_weights.float() * of_offsets.float()).sum(-1).transpose(0, 1)
    dleft = q.new_empty(batch, heads, q_len, call.rank, dtype=torch.float32)
    dright = q.new_empty(batch, heads, k_len, call.rank, dtype=torch.float32)
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
    if values is not None and learned:
        dvalues = _toeplitz_grad(call, values, before, bias, flags)
    grads = (dq, dk, dv, dvalues, dleft, dright)
    return _shaped(call, grads, None if rows is None else drows, values if learned else None)


Grads = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]


def _shaped(
    call: Call,
    grads: Grads,  # of q; of k and v for each query head; of the parts of the bias for each sequence and head
    drows: Tensor | None,
    values: Tensor | None,  # where it is learned
    segments: Tensor | None = None,
    dsegments: Tensor | None = None,  # (H, 2)
    whole: Tensor | None = None,  # where the gradients of q, k and v are views of one tensor, which is given for them
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Sum what was shared; empty where there is nothing (an operator may not return one tensor twice)."""
    dq, dk, dv, *of_bias = grads
    if of_bias[0] is not None and call.q.shape[2] > call.k.shape[2]:
        of_bias[0] = balanced(of_bias[0], call.q.shape[2], call.k.shape[2])
    groups = call.q.shape[1] // call.k.shape[1]
    if groups > 1:
        dk, dv = (summed_groups(t, groups) for t in (dk, dv))
    if whole is not None:
        dq, dk, dv = whole, call.q.new_empty(0), call.q.new_empty(0)
    dvalues, dleft, dright = (
        call.q.new_empty(0) if like is None or grad is None else _summed(grad, like)
        for grad, like in zip(of_bias, (values, call.left, call.right), strict=True)
    )
    of_segments = call.q.new_empty(0)
    if segments is not None and dsegments is not None:
        of_segments = _summed(dsegments[None], segments[None])[0]
    return dq, dk, dv, dvalues, dleft, dright, of_segments, call.q.new_empty(0) if drows is None else drows


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


def _summed(grad: Tensor, like: Tensor) -> Tensor:
    """Sum over the batch and the heads where the original was shared."""
    for axis in (0, 1):
        if like.shape[axis] == 1 and grad.shape[axis] > 1:
            grad = grad.sum(axis, keepdim=True)
    return grad.to(like.dtype).contiguous()


@fused.register_fake
def _(q, k, v, qkv, values, left, right, segments, rows, reach, shift, weights, *rest):  # type: ignore[no-untyped-def]
    out = rows_first(q, q.shape[2], v.shape[3])
    of_offsets = _weights_like(q, reach, rest[-5]) if weights else q.new_empty(0)
    exact = torch.empty_like(out) if rest[-5] else q.new_empty(0)
    return out, q.new_empty(q.shape[:3], dtype=torch.float32), of_offsets, exact


@fused_backward.register_fake
def _(grad, grad_weights, q, k, v, out, lse, of_offsets, rest, values, left, right, segments, rows, *others):  # type: ignore[no-untyped-def]
    of_bias = [
        q.new_empty(0) if t is None else torch.empty_like(t, memory_format=torch.contiguous_format)
        for t in (values if others[-3] else None, left, right, segments, rows)
    ]
    return *gradients_like(q, k, v, others[-4]), *of_bias


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    q, k, v, qkv, values, left, right, segments, rows, reach, shift, _, mask, causal, lengths, *others = inputs
    q_documents, k_documents, scale, dropout, noise, _, _, backward_by, tables, backward_tables = others
    ctx.save_for_backward(
        q, k, v, *output, values, left, right, segments, rows, mask, lengths, q_documents, k_documents, noise,
        *backward_tables,
    )  # fmt: skip
    learned = values is not None and values.requires_grad
    ctx.settings = reach, shift, causal, scale, dropout, qkv is not None, learned, backward_by, len(tables)
    ctx.mark_non_differentiable(output[1], output[3])
    ctx.set_materialize_grads(False)


def _differentiate(ctx, grad, _lse, grad_weights, _rest):  # type: ignore[no-untyped-def]
    q, k, v, out, lse, of_offsets, rest, values, left, right, segments, rows, *others = ctx.saved_tensors
    mask, lengths, q_documents, k_documents, noise, *tables = others
    reach, shift, causal, scale, dropout, packed, learned, backward_by, forward_tables = ctx.settings
    of_tables = [None] * forward_tables, [None] * len(tables)
    if grad is None and grad_weights is None:
        return *(None,) * 23, *of_tables
    if grad is None:
        grad = torch.zeros_like(out)
    dq, dk, dv, dvalues, dleft, dright, dsegments, drows = fused_backward(
        grad, grad_weights, q, k, v, out, lse, of_offsets, rest, values, left, right, segments, rows, reach, shift,
        mask, causal, lengths, q_documents, k_documents, scale, dropout, noise, packed, learned, backward_by, tables,
    )  # fmt: skip
    of_bias = (
        dvalues if learned else None,
        None if left is None else dleft,
        None if right is None else dright,
        None if segments is None else dsegments,
        None if rows is None else drows,
    )
    of_inputs = (None, None, None, dq) if packed else (dq, dk, dv, None)
    return *of_inputs, *of_bias, *(None,) * 14, *of_tables


def no_second(ctx, *grads):  # type: ignore[no-untyped-def]
    raise NotImplementedError(
        "attention: the fused kernels have no second derivative. Use backend='eager', which is differentiable twice."
    )


fused.register_autograd(_differentiate, setup_context=_save)
fused_backward.register_autograd(no_second)
