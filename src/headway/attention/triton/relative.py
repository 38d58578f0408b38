"""Relative keys and values on the Hopper kernels: an operator of its own, in which the tables meet q and the weights.

The kernels have 64 places for a table: place x holds the vector of offset x - reach - 2, the outermost ones repeated.
In memory a query's weights and gradients of scores begin with offset -reach - 6.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from headway.attention.triton import cuda, hopper
from headway.attention.triton.description import Description
from headway.attention.triton.layout import aligned, for_gradients, gradients_like, rows_first, strides, summed_groups
from headway.attention.triton.op import no_second
from headway.attention.triton.tables import BLOCK, TILE

LEAD = 2  # places before that of the leftmost offset
MARGIN = 6  # in memory
LONGEST_REACH = (TILE - MARGIN - 1) // 2
ROWS_PROGRAMS, SETTLE_PROGRAMS = 4, 2  # for each multiprocessor
NO_BIAS = (0,) * 7  # where both kernels have strides and sizes of a table, of segments and of factors
FEWEST_KEYS = 2  # of one, the gradient of q is 0, and what the output lost by rounding would be left in these kernels


def _fragments(reach: int, begin: int) -> tuple[int, int]:
    """For eight queries: of what they look up, and of gradients of scores, as hopper_relative.cuh has them."""
    last = (begin + reach + 6) // 8
    return last - (begin - reach + 1) // 8 + 3, last - (begin - reach - MARGIN) // 8 + 1


def _places(reach: int) -> int:
    """Of a query in memory, in whole products of 16."""
    return (2 * reach + MARGIN + 16) // 16 * 16


@torch.library.custom_op("headway::fused_relative", mutates_args=(), device_types=None)
def fused_relative(
    tensors: list[Tensor], tables: list[Tensor], settings: list[int], scale: float, dropout: float
) -> tuple[Tensor, Tensor, Tensor]:  # output, log2 of denominators (B, H, Lq), weights of places (B, H, Lq, places)
    description = Description.unpacked(tensors, tables, settings, scale, dropout)
    call = _Call(description)
    q, k, v = call.q, call.k, call.v
    out, lse, of_places = _empty_outputs(description, q)
    call.run(
        "forward", (q.shape[0] * triton.cdiv(q.shape[2], BLOCK), q.shape[1]), 2 * BLOCK,
        *(cuda.tensor_map(t) for t in (q, k, v, q, k)), *call.tables, None, call.lengths, *call.words,
        None, None, out, None, lse, of_places, *call.sizes[:-1], *NO_BIAS, description.shift,
        flags=("-DPLAIN", *(["-DWEIGHTS"] if description.weights else [])),
    )  # fmt: skip
    return out, lse, of_places


def _empty_outputs(description: Description, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    out = rows_first(q, q.shape[2], description.inputs.v.shape[3])
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    places = (*q.shape[:3], _places(description.reach)) if description.weights else (0,)
    return out, lse, q.new_empty(places)


@torch.library.custom_op("headway::fused_relative_backward", mutates_args=(), device_types=None)
def fused_relative_backward(
    grad: Tensor,
    outputs: list[Tensor],  # what `fused_relative` returned
    tensors: list[Tensor],
    tables: list[Tensor],
    settings: list[int],
    scale: float,
    dropout: float,
) -> list[Tensor]:  # of q, k and v, or of qkv, and of the given tables together (1 or 2, H, 2 * reach + 1, 64)
    description = Description.unpacked(tensors, tables, settings, scale, dropout)
    call, grad = _Call(description), aligned(grad)
    out, lse, weights = outputs
    q, k, v = call.q, call.k, call.v
    reach, begin = description.reach, description.shift
    batch, heads, q_len, _ = q.shape
    k_len = k.shape[2]
    whole, (dq, dk, dv) = for_gradients(q, k, v, description.inputs.qkv is not None)
    if call.lengths is not None:  # blocks of keys that nobody sees are left out
        dk.zero_()
        dv.zero_()
    tiles, phase = triton.cdiv(q_len, TILE), (f"-DPHASE={begin % 8}",)
    seen, kept = _fragments(reach, begin)
    looked_up = [None if t is None else q.new_empty(batch, heads, tiles, 8, seen, 64) for t in call.tables]
    delta, ends = torch.empty_like(lse), q.new_empty(batch, heads, 2, 2, q_len, dtype=torch.float32)
    shares, sums_q, counters = hopper.for_sums(q, k_len, call.multiprocessors)
    slots, teams, _ = shares
    dscores = row_sums = None
    if description.inputs.key_table is not None:
        dscores = q.new_empty(batch, heads, tiles, 8, kept, 64)
        row_sums = q.new_empty(batch, heads, teams * 2, 2, tiles * TILE, dtype=torch.float32)
    call.run(
        "relative", (call.programs(ROWS_PROGRAMS) * heads, 1), BLOCK,
        q, grad, out, lse, *call.tables, *looked_up, delta, ends, row_sums,
        *strides(q, grad), teams * 2, batch, *call.sizes,
        name="rows", flags=phase,
    )  # fmt: skip
    call.run(
        "backward", (slots * heads * teams, 1), 3 * BLOCK,
        *(cuda.tensor_map(t) for t in (q, k, v, grad)), lse, delta, None, call.lengths, *call.words, None, None, None,
        dq, dk, dv, sums_q, counters, None, None, *looked_up, ends, dscores, row_sums, begin,
        batch, *call.sizes[:-1], *NO_BIAS, *shares, hopper.heads_apart(dq),
        flags=("-DPLAIN", *phase), together=teams > 1,
    )  # fmt: skip
    programs = call.programs(SETTLE_PROGRAMS)
    given = sum(table is not None for table in call.tables)
    sums = q.new_empty(given, heads, programs, 2 * reach + 1, TILE, dtype=torch.float32)
    call.run(
        "relative", (programs * heads, 1), BLOCK,
        *(cuda.tensor_map(t) for t in (q, grad, dq, weights)), dscores, row_sums,
        call.tables[0], call.lengths, dq, sums, hopper.heads_apart(dq), teams * 2, batch, *call.sizes,
        name="settle", flags=phase,
    )  # fmt: skip
    if whole is not None:
        return [whole, sums.sum(2)]
    groups = heads // k.shape[1]
    if groups > 1:
        dk, dv = (summed_groups(t, groups) for t in (dk, dv))
    return [dq, dk, dv, sums.sum(2)]


class _Call:
    """What the kernels share."""

    def __init__(self, description: Description) -> None:
        inputs = description.inputs
        q, k, _ = self.q, self.k, self.v = [aligned(t) for t in inputs[:3]]
        self.last = description.scale, inputs.noise, description.dropout
        self.tables, self.lengths = (description.tables.key_places, description.tables.value_places), inputs.lengths
        lengths = q.shape[2], k.shape[2]
        self.sizes = (q.shape[1], q.shape[1] // k.shape[1], *lengths, int(description.causal), description.shift)
        self.words = [] if description.tables.words is None else [description.tables.words]
        self.flags = [f"-DREACH={description.reach}", *(["-DDROPOUT"] if description.dropout > 0 else [])]
        given = zip(("-DKEYS", "-DVALUES", "-DMASK"), (*self.tables, description.tables.words), strict=True)
        self.flags += [flag for flag, table in given if table is not None]
        self.multiprocessors = torch.cuda.get_device_properties(q.device).multi_processor_count
        self.items: int = q.shape[0] * triton.cdiv(q.shape[2], TILE)  # of each head

    def programs(self, most: int) -> int:
        """For each head, of kernels that go over the batch, with `most` for each multiprocessor."""
        return max(1, min(most * self.multiprocessors // self.q.shape[1], self.items))

    def run(
        self,
        file: str,
        blocks: tuple[int, int],
        threads: int,
        *arguments: cuda.Argument,
        name: str | None = None,
        flags: tuple[str, ...] = (),
        together: bool = False,
    ) -> None:
        device = self.q.device
        with torch.cuda.device(device):
            run = hopper.kernel(f"hopper_{file}.cu", name or file, device.index, self.q.dtype, *self.flags, *flags)
            run(blocks, threads, *arguments, *self.last, together=together)


def in_places(table: Tensor) -> Tensor:  # (H, 2 * reach + 1, 64) -> (H, 64, 64)
    first, last = table[:, :1], table[:, -1:]
    return torch.cat([first.expand(-1, LEAD, -1), table, last.expand(-1, TILE - LEAD - table.shape[1], -1)], 1)


@fused_relative.register_fake
def _(tensors, *packed):  # type: ignore[no-untyped-def]
    return _empty_outputs(Description.unpacked(tensors, *packed), tensors[0])


@fused_relative_backward.register_fake
def _(grad, outputs, *packed):  # type: ignore[no-untyped-def]
    inputs = Description.unpacked(*packed).inputs
    of_tables = torch.stack([t for t in (inputs.key_table, inputs.value_table) if t is not None])
    return [*gradients_like(*inputs[:3], inputs.qkv is not None), of_tables]


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    description = Description.unpacked(*inputs).with_gradients()
    ctx.lists = len(inputs[0]), len(inputs[1])
    tensors, tables, *ctx.settings = description.packed()
    ctx.save_for_backward(*output, *tensors, *tables)
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # zeros for what is not differentiable


def _differentiate(ctx: Any, grad: Tensor, _lse: Any, _weights: Any) -> tuple[Any, ...]:
    count, of_tables = ctx.lists
    saved = ctx.saved_tensors
    packed = list(saved[3 : 3 + count]), list(saved[3 + count :]), *ctx.settings
    *found, tables = fused_relative_backward(grad, list(saved[:3]), *packed)
    grads = Description.unpacked(*packed).in_order([*found, *tables.unbind()])
    return grads, [None] * of_tables, None, None, None


fused_relative.register_autograd(_differentiate, setup_context=_save)
fused_relative_backward.register_autograd(no_second)
