"""Relative keys and values on the Hopper kernels: an operator of its own, in which the tables meet q and the weights.

The kernels have 64 places for a table: place x holds the vector of offset x - reach - 2, the outermost ones repeated.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from headway.attention.triton import cuda, hopper, row_kernels
from headway.attention.triton.hopper import TILE_BYTES
from headway.attention.triton.layout import rows_first, strides, summed_groups
from headway.attention.triton.op import no_second
from headway.attention.triton.tables import BLOCK, TILE

LEAD = 2  # places before that of the leftmost offset
LONGEST_REACH = (TILE - 2 * LEAD - 1) // 2
PROGRAMS = 3  # for each multiprocessor
NO_BIAS = (0,) * 7  # where hopper_forward.cu has strides and sizes of a table, of segments and of factors
FEWEST_KEYS = 2  # of one, the gradient of q is 0, and what the output lost by rounding would be left in these kernels


def _stride(reach: int) -> int:
    """From one query's numbers to the next one's, as hopper_relative.cuh has it."""
    return (2 * reach + 12) // 16 * 16 + 9


def _count(reach: int) -> int:
    """Places that count, in whole products of 16."""
    return (2 * reach + 20) // 16 * 16


@torch.library.custom_op("headway::fused_relative", mutates_args=(), device_types="cuda")
def fused_relative(
    q: Tensor,  # (B, H, Lq, 64), half precision
    k: Tensor,  # (B, Hk, Lk, 64)
    v: Tensor,  # (B, Hk, Lk, 64)
    key_table: Tensor | None,  # (H, 2 * reach + 1, 64) float32, scaled as q . k is
    value_table: Tensor | None,
    key_places: Tensor | None,  # the same as the kernels read them (`in_places`), in the type of q
    value_places: Tensor | None,
    reach: int,
    begin: int,  # position of the first query
    causal: bool,
    lengths: Tensor | None,
    scale: float,
    dropout: float,
    noise: Tensor | None,
) -> tuple[Tensor, Tensor]:  # output, log2 of denominators (B, H, Lq)
    out = rows_first(q, q.shape[2], v.shape[3])
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    q, k, v = hopper.aligned(q, k, v)
    call = _Call(q, k, key_places, value_places, reach, begin, causal, lengths, scale, dropout, noise)
    stages = 3 if reach > 16 else 4
    shared = (4 + 2 * stages) * TILE_BYTES + 4 * TILE * _stride(reach) + stages * TILE * 4 + 128
    call.run(
        "forward", shared, (q.shape[0] * triton.cdiv(q.shape[2], BLOCK), q.shape[1]),
        *(cuda.tensor_map(t) for t in (q, k, v, q, k)), *call.tables, None, call.lengths, None, None, out, None, lse,
        *call.sizes[:-1], *NO_BIAS, begin,
    )  # fmt: skip
    return out, lse


@torch.library.custom_op("headway::fused_relative_backward", mutates_args=(), device_types="cuda")
def fused_relative_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    key_table: Tensor | None,
    value_table: Tensor | None,
    key_places: Tensor | None,
    value_places: Tensor | None,
    reach: int,
    begin: int,
    causal: bool,
    lengths: Tensor | None,
    scale: float,
    dropout: float,
    noise: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # of q, k, v and the tables
    aligned = grad.stride(3) == 1 and all(stride % 8 == 0 for stride in grad.stride()[:3])
    grad = grad if aligned and grad.data_ptr() % 16 == 0 else grad.contiguous()
    q, k, v = hopper.aligned(q, k, v)
    call = _Call(q, k, key_places, value_places, reach, begin, causal, lengths, scale, dropout, noise)
    batch, heads, q_len, _ = q.shape
    k_len = k.shape[2]
    delta = torch.empty_like(lse)
    row_kernels.delta_kernel[(triton.cdiv(q_len, 64) * batch * heads,)](
        out, out, grad, delta, *strides(grad), heads, q_len, REST=False, V_WIDTH=TILE, BLOCK=64, BLOCK_V=TILE
    )
    dq, dk, dv = (rows_first(q, length, TILE) for length in (q_len, k_len, k_len))
    of_places = [None if t is None else q.new_empty(heads, batch, q_len, _count(reach)) for t in call.tables]
    looked_up = [
        None if t is None else q.new_empty(batch * heads * triton.cdiv(q_len, TILE), TILE, _stride(reach))
        for t in call.tables
    ]
    ends = q.new_empty(batch, heads, 2, 3, q_len, dtype=torch.float32)
    call.run(
        "query", 8 * TILE_BYTES + 4 * TILE * _stride(reach) + 8 * TILE, (call.programs, 1),
        q, k, v, grad, *call.tables, call.lengths, lse, delta, dq, *of_places, *looked_up, ends,
        *strides(q, k, v, grad), batch, *call.sizes,
    )  # fmt: skip
    stages = 2 if _stride(reach) > 57 else 3  # of queries, as hopper_relative.cu has it
    call.run(
        "key", 2 * TILE_BYTES + stages * (2 * TILE_BYTES + 16 * TILE + 4 * TILE * _stride(reach)),
        (triton.cdiv(k_len, TILE) * batch * heads, 1),
        q, k, v, grad, call.lengths, lse, delta, *looked_up, ends, dk, dv, *strides(q, k, v, grad), *call.sizes,
    )  # fmt: skip
    groups = heads // k.shape[1]
    if groups > 1:
        dk, dv = (summed_groups(t, groups) for t in (dk, dv))
    scores, weights = of_places
    return (
        dq, dk, dv,
        q.new_empty(0) if scores is None else _met(scores, q, reach),
        q.new_empty(0) if weights is None else _met(weights, grad, reach),
    )  # fmt: skip


class _Call:
    """What the three kernels share."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        key_places: Tensor | None,
        value_places: Tensor | None,
        reach: int,
        begin: int,
        causal: bool,
        lengths: Tensor | None,
        scale: float,
        dropout: float,
        noise: Tensor | None,
    ) -> None:
        self.q, self.last = q, (scale, noise, dropout)
        self.tables, self.lengths = (key_places, value_places), lengths
        self.sizes = (q.shape[1], q.shape[1] // k.shape[1], q.shape[2], k.shape[2], int(causal), begin)
        self.flags = [f"-DREACH={reach}", *(["-DDROPOUT"] if dropout > 0 else [])]
        given = zip(("-DKEYS", "-DVALUES"), self.tables, strict=True)
        self.flags += [flag for flag, table in given if table is not None]
        multiprocessors = torch.cuda.get_device_properties(q.device).multi_processor_count
        items = q.shape[0] * triton.cdiv(q.shape[2], TILE)
        self.programs = q.shape[1] * max(1, min(PROGRAMS * multiprocessors // q.shape[1], items))

    def run(self, name: str, shared_bytes: int, blocks: tuple[int, int], *arguments: cuda.Argument) -> None:
        forward = name == "forward"
        file, flags = ("hopper_forward.cu", ["-DPLAIN"]) if forward else ("hopper_relative.cu", [])
        with torch.cuda.device(self.q.device):
            run = hopper.kernel(file, name, shared_bytes, self.q.device.index, self.q.dtype, *self.flags, *flags)
            run(blocks, 2 * BLOCK if forward else BLOCK, *arguments, *self.last)


def in_places(table: Tensor) -> Tensor:  # (H, 2 * reach + 1, 64) -> (H, 64, 64)
    first, last = table[:, :1], table[:, -1:]
    return torch.cat([first.expand(-1, LEAD, -1), table, last.expand(-1, TILE - LEAD - table.shape[1], -1)], 1)


def _met(of_places: Tensor, x: Tensor, reach: int) -> Tensor:  # (H, B, L, count), (B, H, L, 64) -> (H, 2 reach + 1, 64)
    """The sum over all rows of their numbers for each place times the row of x, in a fixed order."""
    heads, batch, length, count = of_places.shape
    rows, block = batch * length, 128
    chunks = min(triton.cdiv(rows, block), max(1, 512 // heads))
    sums = x.new_empty(heads, chunks, TILE, TILE, dtype=torch.float32)
    row_kernels.meet_kernel[(chunks, heads)](
        of_places, x, sums, *strides(x), rows, length, chunks, COUNT=count, BLOCK=block, WIDTH=TILE, num_warps=4
    )
    return sums[:, :, LEAD : LEAD + 2 * reach + 1].sum(1)


@fused_relative.register_fake
def _(q, k, v, *rest):  # type: ignore[no-untyped-def]
    return rows_first(q, q.shape[2], v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32)


@fused_relative_backward.register_fake
def _(grad, q, k, v, out, lse, key_table, value_table, *rest):  # type: ignore[no-untyped-def]
    tables = [q.new_empty(0) if t is None else torch.empty_like(t) for t in (key_table, value_table)]
    return *(rows_first(t, t.shape[2], t.shape[3]) for t in (q, k, v)), *tables


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, *tables, reach, begin, causal, lengths, scale, dropout, noise = inputs
    ctx.save_for_backward(q, k, v, *output, *tables, lengths, noise)
    ctx.settings = reach, begin, causal, scale, dropout
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, grad: Tensor, _lse: Any) -> tuple[Tensor | None, ...]:
    *tensors, key_table, value_table, key_places, value_places, lengths, noise = ctx.saved_tensors
    reach, begin, causal, scale, dropout = ctx.settings
    dq, dk, dv, of_keys, of_values = fused_relative_backward(
        grad, *tensors, key_table, value_table, key_places, value_places,
        reach, begin, causal, lengths, scale, dropout, noise,
    )  # fmt: skip
    tables = (None if key_table is None else of_keys, None if value_table is None else of_values)
    return dq, dk, dv, *tables, *(None,) * 9


fused_relative.register_autograd(_differentiate, setup_context=_save)
fused_relative_backward.register_autograd(no_second)
