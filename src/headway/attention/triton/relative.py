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
from headway.attention.triton.hopper import TILE_BYTES
from headway.attention.triton.layout import aligned, for_gradients, gradients_like, rows_first, strides, summed_groups
from headway.attention.triton.op import no_second
from headway.attention.triton.tables import BLOCK, TILE

LEAD = 2  # places before that of the leftmost offset
MARGIN = 6  # in memory
LONGEST_REACH = (TILE - MARGIN - 1) // 2
ROWS_PROGRAMS, SETTLE_PROGRAMS = 4, 2  # for each multiprocessor
NO_BIAS = (0,) * 7  # where both kernels have strides and sizes of a table, of segments and of factors
FEWEST_KEYS = 2  # of one, the gradient of q is 0, and what the output lost by rounding would be left in these kernels


def _stride(reach: int) -> int:
    """From one query's numbers to the next one's, as hopper_relative.cuh has it."""
    return (2 * reach + 12) // 16 * 16 + 9


def _fragments(reach: int, begin: int) -> tuple[int, int]:
    """For eight queries: of what they look up, and of gradients of scores, as hopper_relative.cuh has them."""
    last = (begin + reach + 6) // 8
    return last - (begin - reach + 1) // 8 + 3, last - (begin - reach - MARGIN) // 8 + 1


def _places(reach: int) -> int:
    """Of a query in memory, in whole products of 16."""
    return (2 * reach + MARGIN + 16) // 16 * 16


@torch.library.custom_op("headway::fused_relative", mutates_args=(), device_types=None)
def fused_relative(
    q: Tensor,  # (B, H, Lq, 64), half precision
    k: Tensor,  # (B, Hk, Lk, 64)
    v: Tensor,  # (B, Hk, Lk, 64)
    qkv: Tensor | None,  # (B, L, 3, H, 64): what they are views of, whose gradient is wanted in place of theirs
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
    learned: bool,  # whether there will be a backward pass
) -> tuple[Tensor, Tensor, Tensor]:  # output, log2 of denominators (B, H, Lq), weights of places (B, H, Lq, places)
    out = rows_first(q, q.shape[2], v.shape[3])
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    q, k, v = (aligned(t) for t in (q, k, v))
    call = _Call(q, k, key_places, value_places, reach, begin, causal, lengths, scale, dropout, noise)
    of_places = _of_places(q, reach, learned)
    stages = 3 if reach > 16 else 4
    shared = (4 + 2 * stages) * TILE_BYTES + 4 * TILE * _stride(reach) + stages * TILE * 4 + 128
    call.run(
        "forward", (q.shape[0] * triton.cdiv(q.shape[2], BLOCK), q.shape[1]), 2 * BLOCK, shared,
        *(cuda.tensor_map(t) for t in (q, k, v, q, k)), *call.tables, None, call.lengths, None, None, out, None, lse,
        of_places, *call.sizes[:-1], *NO_BIAS, begin,
        flags=("-DPLAIN", *(["-DWEIGHTS"] if learned else [])),
    )  # fmt: skip
    return out, lse, of_places


def _of_places(q: Tensor, reach: int, learned: bool) -> Tensor:
    return q.new_empty(*q.shape[:3], _places(reach)) if learned else q.new_empty(0)


@torch.library.custom_op("headway::fused_relative_backward", mutates_args=(), device_types=None)
def fused_relative_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    weights: Tensor,  # of places
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
    packed: bool,  # whether the gradient of qkv is wanted, in place of that of q
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # of q, k, v and the given tables (1 or 2, H, 2 * reach + 1, 64)
    grad, q, k, v = (aligned(t) for t in (grad, q, k, v))
    call = _Call(q, k, key_places, value_places, reach, begin, causal, lengths, scale, dropout, noise)
    batch, heads, q_len, _ = q.shape
    k_len = k.shape[2]
    whole, (dq, dk, dv) = for_gradients(q, k, v, packed)
    if lengths is not None:  # blocks of keys that nobody sees are left out
        dk.zero_()
        dv.zero_()
    tiles, phase = triton.cdiv(q_len, TILE), (f"-DPHASE={begin % 8}",)
    seen, kept = _fragments(reach, begin)
    looked_up = [None if t is None else q.new_empty(batch, heads, tiles, 8, seen, 64) for t in call.tables]
    delta, ends = torch.empty_like(lse), q.new_empty(batch, heads, 2, 2, q_len, dtype=torch.float32)
    shares, sums_q, counters = hopper.for_sums(q, k_len, call.multiprocessors)
    slots, teams, _ = shares
    dscores = row_sums = None
    if key_table is not None:
        dscores = q.new_empty(batch, heads, tiles, 8, kept, 64)
        row_sums = q.new_empty(batch, heads, teams * 2, 2, tiles * TILE, dtype=torch.float32)
    call.run(
        "relative", (call.programs(ROWS_PROGRAMS) * heads, 1), BLOCK,
        4 * TILE_BYTES + 2 * TILE * _stride(reach) + 4 * TILE,
        q, grad, out, lse, *call.tables, *looked_up, delta, ends, row_sums,
        *strides(q, grad), teams * 2, batch, *call.sizes,
        name="rows", flags=phase,
    )  # fmt: skip
    stages = 2 if seen > 7 else 3  # of queries, as hopper_backward.cu has it
    call.run(
        "backward", (slots * heads * teams, 1), 3 * BLOCK,
        (16 + 2 * stages) * TILE_BYTES + stages * (6 * TILE * 4 + 2 * TILE * 16 * seen) + 176 + 2048,
        *(cuda.tensor_map(t) for t in (q, k, v, grad)), lse, delta, None, call.lengths, None, None, None,
        dq, dk, dv, sums_q, counters, None, None, *looked_up, ends, dscores, row_sums, begin,
        batch, *call.sizes[:-1], *NO_BIAS, *shares, hopper.heads_apart(dq),
        flags=("-DPLAIN", *phase), together=teams > 1,
    )  # fmt: skip
    programs = call.programs(SETTLE_PROGRAMS)
    given = sum(table is not None for table in call.tables)
    sums = q.new_empty(given, heads, programs, 2 * reach + 1, TILE, dtype=torch.float32)
    call.run(
        "relative", (programs * heads, 1), BLOCK, 10 * TILE_BYTES + 2 * TILE * 16 * kept + 16,
        *(cuda.tensor_map(t) for t in (q, grad, dq, weights)), dscores, row_sums,
        call.tables[0], call.lengths, dq, sums, hopper.heads_apart(dq), teams * 2, batch, *call.sizes,
        name="settle", flags=phase,
    )  # fmt: skip
    if whole is not None:
        return whole, q.new_empty(0), q.new_empty(0), sums.sum(2)
    groups = heads // k.shape[1]
    if groups > 1:
        dk, dv = (summed_groups(t, groups) for t in (dk, dv))
    return dq, dk, dv, sums.sum(2)


class _Call:
    """What the kernels share."""

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
        shared_bytes: int,
        *arguments: cuda.Argument,
        name: str | None = None,
        flags: tuple[str, ...] = (),
        together: bool = False,
    ) -> None:
        device = self.q.device
        with torch.cuda.device(device):
            run = hopper.kernel(
                f"hopper_{file}.cu", name or file, shared_bytes, device.index, self.q.dtype, *self.flags, *flags
            )
            run(blocks, threads, *arguments, *self.last, together=together)


def in_places(table: Tensor) -> Tensor:  # (H, 2 * reach + 1, 64) -> (H, 64, 64)
    first, last = table[:, :1], table[:, -1:]
    return torch.cat([first.expand(-1, LEAD, -1), table, last.expand(-1, TILE - LEAD - table.shape[1], -1)], 1)


@fused_relative.register_fake
def _(q, k, v, qkv, key_table, value_table, key_places, value_places, reach, *rest):  # type: ignore[no-untyped-def]
    out, lse = rows_first(q, q.shape[2], v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32)
    return out, lse, _of_places(q, reach, rest[-1])


@fused_relative_backward.register_fake
def _(grad, q, k, v, out, lse, weights, key_table, value_table, *rest):  # type: ignore[no-untyped-def]
    of_tables = torch.stack([t for t in (key_table, value_table) if t is not None])
    return *gradients_like(q, k, v, rest[-1]), of_tables


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, qkv, *tables, reach, begin, causal, lengths, scale, dropout, noise, _ = inputs
    ctx.save_for_backward(q, k, v, *output, *tables, lengths, noise)
    ctx.settings = reach, begin, causal, scale, dropout, qkv is not None
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)  # zeros for what is not differentiable


def _differentiate(ctx: Any, grad: Tensor, _lse: Any, _weights: Any) -> tuple[Tensor | None, ...]:
    *tensors, key_table, value_table, key_places, value_places, lengths, noise = ctx.saved_tensors
    reach, begin, causal, scale, dropout, packed = ctx.settings
    dq, dk, dv, of_tables = fused_relative_backward(
        grad, *tensors, key_table, value_table, key_places, value_places,
        reach, begin, causal, lengths, scale, dropout, noise, packed,
    )  # fmt: skip
    of_keys = None if key_table is None else of_tables[0]
    of_values = None if value_table is None else of_tables[-1]
    of_inputs = (None, None, None, dq) if packed else (dq, dk, dv, None)
    return *of_inputs, of_keys, of_values, *(None,) * 10


fused_relative.register_autograd(_differentiate, setup_context=_save)
fused_relative_backward.register_autograd(no_second)
