"""Launching the Hopper kernels for a bias that the batch shares, at head width 64 in half precision."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import torch
import triton
from torch import Tensor

from headway.attention.triton import cuda
from headway.attention.triton.arguments import Call
from headway.attention.triton.matrices import matrix_tables
from headway.attention.triton.tables import BLOCK, TILE, Parts, factor_tables, toeplitz_table, whole_blocks

TILE_BYTES = TILE * TILE * 2
WARPS = 8  # that compute, of a block
LINES_BYTES = 8 * 136 * 4  # of sums along the diagonals of a tile, as hopper_diagonals.cuh has it
BIAS_BYTES = {"nothing": 0, "table": 2 * 208 * 4, "matrix": 2 * TILE_BYTES}  # of a tile of 128 x 64
FRAGMENTS_DIM, FACTORS_DIM = 6, 4  # of a matrix in fragments, and of factors; a table has three
PROGRAMS = 3  # for each multiprocessor, of kernels that go over the batch
MOST_SCORES = 2**24  # of all heads: a bias with a low-rank term becomes a matrix, which should stay in the L2 cache
FEW_QUERIES = 4096  # of all sequences: errors of their weights do not average out, and exact ones cost little
FEW_TILES = 512  # of 64 queries: up to here, two sequences have gradients of q on their way at a time


def fits(q: Tensor, k: Tensor, v: Tensor, parts: Parts) -> bool:
    """Whether the kernels take a call with this bias. The batch must share it.

    A low-rank bias with many scores is taken as its factors, and then not by the backward kernels.
    """
    narrow = parts.left is None or parts.left.shape[3] <= TILE
    return parts.shared and (narrow or becomes_matrix(q, k, parts)) and takes(q, k, v)


def becomes_matrix(q: Tensor, k: Tensor, parts: Parts) -> bool:
    """Whether the bias is multiplied out: a low-rank one of few scores, and all that stands beside a matrix."""
    few = q.shape[1] * q.shape[2] * k.shape[2] <= MOST_SCORES
    return parts.matrix is not None or (parts.left is not None and few)


def is_tile(q: Tensor, k: Tensor) -> bool:
    """Whether all queries and keys of a head fit into one block."""
    return max(q.shape[2], k.shape[2]) <= BLOCK


def takes(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether tensors are such that Hopper kernels read them: half precision, width 64."""
    return v.shape[3] == TILE and takes_kind(q.dtype, q.shape[3], q.device)


def takes_kind(dtype: torch.dtype, width: int, device: torch.device) -> bool:
    half = dtype in (torch.float16, torch.bfloat16)
    return half and width == TILE and device.type == "cuda" and _here(device.index)


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _here(device: int) -> bool:
    """The answer alone is for torch.compile, which would trace the search for NVRTC and break there."""
    return _capable(device)


@functools.cache
def _capable(device: int) -> bool:
    return torch.cuda.get_device_capability(device) == (9, 0) and cuda.available()


@functools.cache
def kernel(file: str, name: str, shared_bytes: int, device: int, dtype: torch.dtype, *flags: str) -> cuda.Kernel:
    """Compiled once for each device, type and choice of flags."""
    options = [
        "--gpu-architecture=sm_90a",
        "-default-device",
        *(["-DBFLOAT16"] if dtype == torch.bfloat16 else []),
        *flags,
    ]
    return cuda.Kernel(Path(__file__).with_name(file), name, options, shared_bytes)


class Hopper:
    """One call on the Hopper kernels. `tables` are what they read of the bias (see `tables`), then of segments."""

    def __init__(self, call: Call, tables: list[Tensor], segments: bool, learned: bool = False) -> None:
        self.call, self.segments = call, segments
        self.tables, ids = (tables[:-3], tables[-3:]) if segments else (tables, [])
        self.factors: list[Tensor] = []
        if tables and tables[-1].dim() == FACTORS_DIM:
            self.tables, self.factors = tables[:-2], tables[-2:]
        batch, heads = call.q.shape[:2]
        self.ids = [ids[0].expand(batch, heads, -1).contiguous(), *ids[1:]] if segments else [None, None, None]
        self.id_steps = [0 if t is None or t.shape[0] == 1 else t.stride(0) for t in self.ids[1:]]
        self.q, self.k, self.v = call.q, call.k, call.v
        self.first, self.last = whole_blocks(call.q.shape[2]), whole_blocks(call.k.shape[2])
        self.causal = int(call.mask_flags["CAUSAL"])
        self.kind = "nothing"
        if self.tables:
            self.kind = "matrix" if self.tables[0].dim() == FRAGMENTS_DIM else "table"
        self.sums = learned and self.kind == "table"
        self.bias_bytes = BIAS_BYTES[self.kind]
        given = {
            "-DDROPOUT": call.dropout > 0,
            "-DMATRIX": self.kind == "matrix",
            "-DPLAIN": self.kind == "nothing",
            "-DSEGMENTS": segments,
            "-DFACTORS": bool(self.factors),
            "-DSUMS": self.sums,
        }
        self.flags = [flag for flag, is_given in given.items() if is_given]

    def _bias(self, *, keys_first: bool = False) -> tuple[Tensor | None, int, int, int]:
        """A table, the stride of its heads, and two numbers that say where in it a tile begins."""
        if not self.tables:
            return None, 0, 0, 0
        table = self.tables[1 if keys_first and self.kind == "matrix" else 0]
        of_head = 0 if table.shape[0] == 1 else table.stride(0)
        if self.kind == "table":
            return table, of_head, self.first + self.last + 16, self.first
        return table, of_head // 8, (self.first if keys_first else self.last) // TILE, 0

    def _run(
        self,
        name: str,
        blocks: tuple[int, int],
        threads: int,
        shared_bytes: int,
        *arguments: cuda.Argument,
        flags: Sequence[str] = (),
        together: bool = False,
    ) -> None:
        q = self.q
        with torch.cuda.device(q.device):
            run = kernel(f"hopper_{name}.cu", name, shared_bytes, q.device.index, q.dtype, *self.flags, *flags)
            rest = self.call.scale, self.call.noise, self.call.dropout
            run(blocks, threads, *arguments, *rest, together=together)

    def _sizes(self) -> tuple[int, int, int, int, int]:
        q, k = self.q, self.k
        return q.shape[1], q.shape[1] // k.shape[1], q.shape[2], k.shape[2], self.causal

    def forward(self, out: Tensor, rest: Tensor | None, lse: Tensor) -> None:  # all written
        q, k, v = self.q, self.k, self.v
        factored = bool(self.factors)
        stages = 3 if factored or self.kind == "matrix" else 4
        left, right = self.factors or (q, k)  # of which maps are made, and not read
        table, *where = self._bias()
        exact = rest is not None and q.shape[0] * q.shape[2] <= FEW_QUERIES
        self._run(
            "forward", (q.shape[0] * self.first // BLOCK, q.shape[1]), 2 * BLOCK,
            (1 + factored) * 2 * TILE_BYTES + stages * (2 + factored) * TILE_BYTES
            + stages * ((1 + self.segments) * TILE * 4 + self.bias_bytes) + 128,
            *(cuda.tensor_map(t) for t in (q, k, v, left, right)), None, None, table, self.call.lengths,
            self.ids[0], self.ids[2], out, rest, lse, *self._sizes(), *where, self.first, self.id_steps[1],
            left.shape[1], right.shape[1], 0,
            flags=["-DEXACT"] if exact else [],
        )  # fmt: skip

    def backward(
        self, grad: Tensor, lse: Tensor, delta: Tensor, dq: Tensor, dk: Tensor, dv: Tensor
    ) -> tuple[Tensor | None, Tensor | None]:
        """Writes dq, dk and dv; gives the gradients of a learned Toeplitz bias, (1, H, Lq + Lk - 1), and of the steps
        of segments, (H, 2)."""
        q, k, v = self.q, self.k, self.v
        batch, heads, q_len, _ = q.shape
        (slots, teams, ways), sums_q, counters = for_sums(q, k.shape[2], self.call.multiprocessors)
        span = self.first + self.last + BLOCK
        sums = q.new_zeros(slots * teams * 2, heads, span, dtype=torch.float32) if self.sums else None
        if self.call.lengths is not None:  # blocks of keys that nobody sees are left out
            dk.zero_()
            dv.zero_()
        of_steps = q.new_zeros(slots, heads, teams, WARPS, 2, dtype=torch.float32) if self.segments else None
        shared_bytes = 22 * TILE_BYTES + 3 * ((3 + 2 * self.segments) * TILE * 4 + self.bias_bytes) + 176
        shared_bytes += 2 * LINES_BYTES if self.sums else 0
        table, *where = self._bias(keys_first=True)
        self._run(
            "backward", (slots * heads * teams, 1), 3 * BLOCK, shared_bytes,
            *(cuda.tensor_map(t) for t in (q, k, v, grad)), lse, delta, table, self.call.lengths, *self.ids,
            dq, dk, dv, sums_q, counters, sums, of_steps, batch, *self._sizes(), *where, self.first,
            *self.id_steps, span, slots, teams, ways, heads_apart(dq),
            together=teams > 1,
        )  # fmt: skip
        dvalues = None
        if sums is not None:
            zero = self.first + TILE - 1  # where offset 0 stands
            dvalues = sums[..., zero - (q_len - 1) : zero + k.shape[2]].sum(0, keepdim=True)
        return dvalues, None if of_steps is None else of_steps.sum((0, 2, 3))

    def bias_grad(self, grad: Tensor, lse: Tensor, delta: Tensor) -> Tensor:  # (H, Lq, Lk)
        """Of a matrix, summed over the batch."""
        q, k, v = self.q, self.k, self.v
        batch, heads, q_len, _ = q.shape
        table, *where = self._bias()
        tiles = self.first // BLOCK * (self.last // BLOCK) * heads
        chunks = max(1, min(PROGRAMS * self.call.multiprocessors // tiles, batch))
        sums = q.new_empty(chunks, heads, q_len, k.shape[2], dtype=torch.float32)
        self._run(
            "matrix", (chunks * tiles, 1), 3 * BLOCK, 16 * TILE_BYTES + 3 * 4 * BLOCK * 4 + 2 * self.bias_bytes + 64,
            *(cuda.tensor_map(t) for t in (q, k, v, grad)), lse, delta, table, self.call.lengths, sums,
            batch, *self._sizes(), *where, chunks,
        )  # fmt: skip
        if chunks == 2:  # a sum over an axis of two takes longer
            return sums[0].add_(sums[1])
        return sums.sum(0)

    def tile_forward(self, out: Tensor, lse: Tensor) -> None:  # both written
        """Where scores are one tile."""
        q, k, v = self.q, self.k, self.v
        table, *where = self._bias()
        chunks, _, flags = self._of_tile()
        self._run(
            "tile_forward", (chunks * q.shape[1], 1), 3 * BLOCK,
            18 * TILE_BYTES + 2 * self.bias_bytes + 3 * BLOCK * 4 + 64,
            *(cuda.tensor_map(t) for t in (q, k, v)), table, self.call.lengths, out, lse,
            q.shape[0], *self._sizes(), *where, chunks,
            flags=flags,
        )  # fmt: skip

    def tile_backward(
        self, grad: Tensor, lse: Tensor, dq: Tensor, dk: Tensor, dv: Tensor, learned: bool
    ) -> Tensor | None:
        """Where scores are one tile: writes dq, dk and dv; gives the gradient of a learned bias, (H, Lq, Lk)."""
        q, k, v = self.q, self.k, self.v
        batch, heads, q_len, _ = q.shape
        table, *where = self._bias()
        chunks, each, flags = self._of_tile()
        sums = q.new_empty(chunks * each, heads, q_len, k.shape[2], dtype=torch.float32) if learned else None
        self._run(
            "tile_backward", (chunks * heads, 1), 3 * BLOCK,
            24 * TILE_BYTES + 2 * self.bias_bytes + 2 * BLOCK * 4 + 64,
            *(cuda.tensor_map(t) for t in (q, k, v, grad)), lse, table, self.call.lengths, dq, dk, dv, sums,
            batch, *self._sizes(), *where, chunks, heads_apart(dq),
            flags=[*flags, *(["-DLEARNED"] if learned else [])],
        )  # fmt: skip
        return None if sums is None else sums.sum(0)

    def _of_tile(self) -> tuple[int, int, list[str]]:
        """Into how many parts the batch is cut, so that each multiprocessor has one with one head; how many sequences
        a block has at a time; the flags that say so."""
        batch, heads, q_len, _ = self.q.shape
        small = max(q_len, self.k.shape[2]) <= TILE
        each = 2 if small else 1
        chunks = max(1, min(self.call.multiprocessors // heads, triton.cdiv(batch, each)))
        return chunks, each, ["-DSMALL"] if small else []


def heads_apart(gradient: Tensor) -> int:
    """From one row of a gradient to the next in memory, in heads."""
    return gradient.stride(2) // TILE


def for_sums(q: Tensor, k_len: int, multiprocessors: int) -> tuple[tuple[int, int, int], Tensor, Tensor | None]:
    """How the backward kernel shares out sequences and keys (slots, teams, ways), room for sums of the gradient of q,
    and what counts turns at them."""
    batch, heads, q_len, _ = q.shape
    tiles = triton.cdiv(q_len, TILE)
    slots, teams = shares(batch, heads, tiles, whole_blocks(k_len) // BLOCK, multiprocessors)
    ways = 2 if teams > 1 and tiles <= FEW_TILES else 1
    sums_q = q.new_empty(slots, heads, ways, tiles, TILE, TILE, dtype=torch.float32)
    counters = q.new_zeros(slots, heads, ways, tiles, dtype=torch.int32) if teams > 1 else None
    return (slots, teams, ways), sums_q, counters


@functools.cache
def shares(batch: int, heads: int, tiles: int, key_blocks: int, multiprocessors: int) -> tuple[int, int]:
    """Into how many slots the batch of each head is divided, and how many blocks of threads share a slot's keys.

    One block for each slot is best, as none waits for another, where that keeps all multiprocessors busy.
    """

    def time(teams: int) -> float:
        slots = _slots(batch, heads, teams, multiprocessors)
        steps: int = triton.cdiv(triton.cdiv(batch, slots) * key_blocks, teams)
        return steps * (1.0 if teams == 1 else (1.1 if tiles >= 2 * teams else 1.4))

    teams = min(range(1, max(1, multiprocessors // heads) + 1), key=time)
    return _slots(batch, heads, teams, multiprocessors), teams


def _slots(batch: int, heads: int, teams: int, multiprocessors: int) -> int:
    return max(1, min(multiprocessors // (heads * teams), batch))


def tables(
    parts: Parts,
    peaks: Tensor | None,  # (1, H|1, Lq), of the matrix, see `tables.highest`
    q: Tensor,
    k: Tensor,
    needs_grad: bool,
    scale: float,
) -> list[Tensor]:
    """What the kernels read of the bias: where scores are one tile, or the bias becomes a matrix, that in fragments,
    and for a longer backward pass those of its transpose; else a Toeplitz table, and of a low-rank bias its factors."""
    q_len, k_len = q.shape[2], k.shape[2]
    if not parts.given:
        return []
    one_tile = is_tile(q, k)
    if one_tile or becomes_matrix(q, k, parts):
        made: list[Tensor] = matrix_tables(*parts, peaks, q_len, k_len, columns=needs_grad and not one_tile)
        return made
    of_values = [] if parts.values is None else [toeplitz_table(parts.values, q_len, k_len)]
    if parts.left is None or parts.right is None:
        return of_values
    return [*of_values, *factor_tables(parts.left, parts.right, scale)]
