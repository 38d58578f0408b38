"""The torch operators that launch the kernels, forward and backward, so that `torch.compile` keeps them whole.

Their arguments are a packed `Description`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from headway.attention.triton import backward_kernels, diagonal_kernel, forward_kernel, products, short
from headway.attention.triton.arguments import Call
from headway.attention.triton.description import Description, Inputs, Kernels
from headway.attention.triton.hopper import Hopper
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
    tensors: list[Tensor], tables: list[Tensor], settings: list[int], scale: float, dropout: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # output, log2 of denominators (B, H, Lq), weights of offsets, rest
    description = Description.unpacked(tensors, tables, settings, scale, dropout)
    call = Call(description)
    if description.kernels is Kernels.ONE_TILE:
        return *short.forward(call), call.q.new_empty(0), call.q.new_empty(0)
    out, lse, of_offsets, rest = _empty_outputs(description, call.q)
    if description.kernels is Kernels.HOPPER_TILE:
        Hopper(call).tile_forward(out, lse)
    elif description.kernels is Kernels.HOPPER:
        Hopper(call).forward(out, rest if description.exact else None, lse)
    elif description.kernels is Kernels.PRODUCTS:
        products.forward(call, out, rest, lse)
    else:
        _general_forward(call, out, rest, lse, of_offsets)
    return out, lse, of_offsets, rest


def _empty_outputs(description: Description, q: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    out = rows_first(q, q.shape[2], description.inputs.v.shape[3])
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    of_offsets = q.new_empty(0)
    if description.weights:
        size = (q.shape[1], q.shape[0], q.shape[2], by_eight(2 * description.reach + 1))
        of_offsets = q.new_empty(size, dtype=torch.float32 if description.exact else q.dtype)
    return out, lse, of_offsets, torch.empty_like(out) if description.exact else q.new_empty(0)


def _general_forward(call: Call, out: Tensor, rest: Tensor, lse: Tensor, of_offsets: Tensor) -> None:
    q, k, v = call.q, call.k, call.v
    of_offsets.zero_()
    setting = call.config("forward")
    grid = (triton.cdiv(q.shape[2], setting["BLOCK_Q"]) * q.shape[0] * q.shape[1],)
    forward_kernel.forward_kernel[grid](
        q, k, v, out, rest, lse, of_offsets, *strides(q, k, v),
        *call.toeplitz("rows", setting), *call.bias(), *call.masks, *call.sizes,
        REST=call.description.exact, EDGES=call.edges(1, setting["BLOCK_K"]), **call.flags, **setting,
    )  # fmt: skip


@torch.library.custom_op("headway::fused_backward", mutates_args=(), device_types=None)
def fused_backward(
    grads: list[Tensor],  # of the output, and perhaps of the weights of offsets
    outputs: list[Tensor],  # what `fused` returned
    tensors: list[Tensor],
    tables: list[Tensor],
    settings: list[int],
    scale: float,
    dropout: float,
) -> list[Tensor]:  # the gradients of `Description.wanted`
    description = Description.unpacked(tensors, tables, settings, scale, dropout)
    out, lse, of_offsets, rest = outputs
    call, grad, wanted = Call(description), aligned(grads[0]), description.wanted
    inputs, q, k, v = description.inputs, call.q, call.k, call.v
    learned = any(name in wanted for name in Parts._fields)
    if description.kernels is Kernels.ONE_TILE:
        dq, dk, dv, total = short.backward(call, grad, lse, learned)
        return _in_order(call, {"q": dq, "k": dk, "v": dv, **_of_total(call, total)})
    whole, (dq, dk, dv) = for_gradients(q, k, v, inputs.qkv is not None)
    found: dict[str, Tensor | None] = {"q": dq, "k": dk, "v": dv, "qkv": whole}
    if description.kernels is Kernels.HOPPER_TILE:
        total = Hopper(call).tile_backward(grad, lse, dq, dk, dv, learned)
        return _in_order(call, {**found, **_of_total(call, total)})
    delta = torch.empty_like(lse)
    backward_kernels.delta_kernel[(triton.cdiv(q.shape[2], 64) * q.shape[0] * q.shape[1],)](
        out, rest, grad, delta, *strides(grad), q.shape[1], q.shape[2],
        REST=rest.numel() > 0, BLOCK=64, WIDTH_V=v.shape[3], BLOCK_V=whole_width(v.shape[3]),
    )  # fmt: skip
    if description.kernels is Kernels.HOPPER:
        hopper = Hopper(call, sums="values" in wanted)
        found["values"], of_steps = hopper.backward(grad, lse, delta, dq, dk, dv)
        found["segments"] = None if of_steps is None else of_steps[None]
        if description.tables.fragments is not None and learned:
            found |= _of_total(call, hopper.bias_grad(grad, lse, delta))
        return _in_order(call, found)
    if description.kernels is Kernels.PRODUCTS:
        return _in_order(call, found | products.backward(call, grad, lse, delta, dq, dk, dv))
    grad_weights = None if len(grads) == 1 else grads[1]
    return _in_order(call, found | _general_backward(call, grad, grad_weights, of_offsets, lse, delta, dq, dk, dv))


def _general_backward(
    call: Call,
    grad: Tensor,
    grad_weights: Tensor | None,
    of_offsets: Tensor,
    lse: Tensor,
    delta: Tensor,
    dq: Tensor,  # this, dk and dv are written
    dk: Tensor,
    dv: Tensor,
) -> dict[str, Tensor | None]:  # the gradients of the bias, for each sequence and head
    q, k, v, rows = call.q, call.k, call.v, call.description.inputs.rows
    batch, heads, q_len, _ = q.shape
    k_len = k.shape[2]
    to_weights = call.nothing
    if call.description.weights:
        to_weights = torch.zeros_like(of_offsets) if grad_weights is None else grad_weights.contiguous()
        delta += (to_weights.float() * of_offsets.float()).sum(-1).transpose(0, 1)
    columns = whole_width(call.rank) if call.rank > 0 else 0
    dleft, dright = (q.new_empty(batch, heads, length, columns, dtype=torch.float32) for length in (q_len, k_len))
    drows = call.nothing if rows is None else torch.zeros_like(rows, memory_format=torch.contiguous_format)
    before = (q, k, v, grad, to_weights, lse, delta)
    bias, flags = call.bias(), call.flags

    setting = call.config("key")
    grid = (triton.cdiv(k_len, setting["BLOCK_K"]) * batch * heads,)
    backward_kernels.key_kernel[grid](
        *before, dk, dv, dright, *strides(q, k, v, grad), *call.toeplitz("columns", setting), *bias,
        *call.masks, *call.sizes, EDGES=call.edges(setting["BLOCK_Q"], setting["BLOCK_K"]), **flags, **setting,
    )  # fmt: skip
    setting = call.config("query")
    grid = (triton.cdiv(q_len, setting["BLOCK_Q"]) * batch * heads,)
    backward_kernels.query_kernel[grid](
        *before, dq, dleft, drows, *strides(q, k, v, grad), *call.toeplitz("rows", setting), *bias,
        *call.masks, *call.sizes, EDGES=call.edges(1, setting["BLOCK_K"]), **flags, **setting,
    )  # fmt: skip
    dvalues = None
    if "values" in call.description.wanted:
        dvalues = _toeplitz_grad(call, before, bias, flags)
    return {"values": dvalues, "left": dleft[..., : call.rank], "right": dright[..., : call.rank], "rows": drows}


def _parts(inputs: Inputs) -> Parts:
    return Parts(inputs.values, inputs.left, inputs.right, inputs.matrix)


def _of_total(call: Call, total: Tensor | None) -> dict[str, Tensor | None]:
    """The gradients of a bias that the batch shares, from that of its matrix, (H, Lq, Lk)."""
    if total is None:
        return {}
    wanted = call.description.wanted
    learned = [name in wanted for name in ("values", "left", "matrix")]
    return of_parts(_parts(call.description.inputs), learned, total, call.q.dtype)._asdict()


def _in_order(call: Call, found: dict[str, Tensor | None]) -> list[Tensor]:
    """Return the gradients that are wanted, summed over what was shared: the batch, heads, groups of query heads."""
    description, q_len, k_len = call.description, call.q.shape[2], call.k.shape[2]
    groups = call.q.shape[1] // call.k.shape[1]
    grads = []
    for name in description.wanted:
        grad, given = found[name], getattr(description.inputs, name)
        assert grad is not None, name
        if name in ("k", "v") and groups > 1:
            grad = summed_groups(grad, groups)
        elif name == "values" and q_len > k_len:
            grad = balanced(grad, q_len, k_len)
        if name in Parts._fields or name in ("q_vectors", "k_vectors"):
            grad = summed(grad, given)
        elif name == "segments":
            grad = summed(grad, given[None])[0]
        grads.append(grad)
    return grads


def _toeplitz_grad(
    call: Call, before: tuple[Tensor, ...], bias: tuple[Any, ...], flags: dict[str, Any]
) -> Tensor:  # (B|1, H, Lq + Lk - 1)
    batch, heads, q_len, _ = call.q.shape
    k_len = call.k.shape[2]
    setting = call.config("diagonal")
    block = min(setting.pop("BLOCK_Q"), setting.pop("BLOCK_K"))
    blocks_q, blocks_k = triton.cdiv(q_len, block), triton.cdiv(k_len, block)
    diagonals = blocks_q + blocks_k - 1
    values = call.description.inputs.values
    assert values is not None
    groups = values.shape[0]  # 1 where the batch shares the bias
    together = batch // groups
    programs = DIAGONAL_PROGRAMS * call.multiprocessors // (diagonals * heads * groups)
    chunks = max(1, min(programs, together * min(blocks_q, blocks_k)))
    sums = call.q.new_empty(groups, heads, diagonals, chunks, 2, 2, block, dtype=torch.float32)
    diagonal_kernel.diagonal_kernel[(diagonals * chunks, heads, groups)](
        *before, sums, *strides(*before[:4]),
        *call.toeplitz("rows", {"BLOCK_Q": block, "BLOCK_K": block}), *bias, *call.masks,
        *call.sizes, batch, together, chunks,
        EDGES=call.edges(block, block), BLOCK=block,
        **{name: flag for name, flag in flags.items() if name != "TOEPLITZ"}, **setting,
    )  # fmt: skip
    # (G, H, diagonals, half, 2, block): of offsets below and from `gap * block` on, for the upper rows; for the lower
    # rows the same from half a block less on.
    upper, lower = sums.sum(3).unbind(3)
    total = F.pad(_along_offsets(upper), (block // 2, 0)) + F.pad(_along_offsets(lower), (0, block // 2))
    first = blocks_q * block - (q_len - 1) + block // 2  # where offset -(Lq - 1) stands
    return total[..., first : first + q_len + k_len - 1]


def _along_offsets(sums: Tensor) -> Tensor:  # (G, H, diagonals, 2, block) -> (G, H, (diagonals + 1) * block)
    low, high = sums.unbind(3)
    return (F.pad(low, (0, 0, 0, 1)) + F.pad(high, (0, 0, 1, 0))).flatten(2)


@fused.register_fake
def _(tensors, *packed):  # type: ignore[no-untyped-def]
    return _empty_outputs(Description.unpacked(tensors, *packed), tensors[0])


@fused_backward.register_fake
def _(grads, outputs, *packed):  # type: ignore[no-untyped-def]
    description = Description.unpacked(*packed)
    inputs = description.inputs
    of_inputs = gradients_like(*inputs[:3], inputs.qkv is not None)
    names = description.wanted[len(of_inputs) :]
    return of_inputs + [torch.empty_like(getattr(inputs, n), memory_format=torch.contiguous_format) for n in names]


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    description = Description.unpacked(*inputs).with_gradients()
    description = description._replace(tables=description.tables._replace(matrix=None))  # which goes forward alone
    ctx.lists = len(inputs[0]), len(inputs[1])
    tensors, tables, *ctx.settings = description.packed()
    ctx.save_for_backward(*output, *tensors, *tables)
    ctx.mark_non_differentiable(output[1], output[3])
    ctx.set_materialize_grads(False)


def _differentiate(ctx, grad, _lse, grad_weights, _rest):  # type: ignore[no-untyped-def]
    count, of_tables = ctx.lists
    saved = ctx.saved_tensors
    outputs, packed = list(saved[:4]), (list(saved[4 : 4 + count]), list(saved[4 + count :]), *ctx.settings)
    if grad is None and grad_weights is None:
        return [None] * count, [None] * of_tables, None, None, None
    grads = [torch.zeros_like(outputs[0]) if grad is None else grad, *([] if grad_weights is None else [grad_weights])]
    found = Description.unpacked(*packed).in_order(fused_backward(grads, outputs, *packed))
    return found, [None] * of_tables, None, None, None


def no_second(ctx: Any, *grads: Any) -> Sequence[Any]:
    raise NotImplementedError(
        "attention: the fused kernels have no second derivative. Use backend='eager', which is differentiable twice."
    )


fused.register_autograd(_differentiate, setup_context=_save)
fused_backward.register_autograd(no_second)
