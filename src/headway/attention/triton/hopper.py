"""Launching the Hopper kernels for a bias that the batch shares, at head width 64 in half precision."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import triton
from torch import Tensor

from headway.attention.triton import cuda
from headway.attention.triton.layout import strides
from headway.attention.triton.tables import TILE, bias_matrix, in_fragments, toeplitz_table, whole_tiles

if TYPE_CHECKING:
    from headway.attention.triton.op import Call

THREADS = 128
TILE_BYTES = TILE * TILE * 2
SHARED_BYTES = {  # tiles that stay, three stages of two that pass, and numbers
    "forward": 7 * TILE_BYTES,
    "query": 8 * TILE_BYTES + 4 * 8 * 72 * 4,
    "key_and_value": 8 * TILE_BYTES + 3 * 2 * TILE * 4,
    "bias_grad": 2 * (8 * TILE_BYTES + 1024),  # two stages of eight
}
PROGRAMS = 3  # for each multiprocessor, of kernels that go over the batch
MOST_SCORES = 2**24  # of all heads: a bias with a low-rank term becomes a matrix, which should stay in the L2 cache


def fits(q: Tensor, k: Tensor, v: Tensor, *parts: Tensor | None) -> bool:
    """Whether the kernels take a call whose bias has these parts: values, left, right. The batch must share them."""
    given = [part for part in parts if part is not None]
    shared = len(given) > 0 and all(part.shape[0] == 1 for part in given)
    small = parts[1] is None or q.shape[1] * q.shape[2] * k.shape[2] <= MOST_SCORES
    return shared and small and takes(q, k, v)


def takes(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether tensors are such that Hopper kernels read them: half precision, width 64, aligned rows."""
    shaped = q.dtype in (torch.float16, torch.bfloat16) and q.shape[3] == TILE and v.shape[3] == TILE
    aligned = all(stride % 8 == 0 for t in (q, k, v) for stride in t.stride()[:3])
    return shaped and aligned and q.device.type == "cuda" and _here(q.device.index)


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
    """One call on the Hopper kernels. `tables` are what they read of the bias (see `tables`)."""

    def __init__(self, call: Call, tables: list[Tensor], learned: bool = False) -> None:
        self.call, self.tables = call, tables
        self.first, self.last = whole_tiles(call.q.shape[2]), whole_tiles(call.k.shape[2])
        self.causal = int(call.mask_flags["CAUSAL"])
        self.sums = learned and call.left is None
        given = {"-DDROPOUT": call.dropout > 0, "-DMATRIX": call.left is not None, "-DSUMS": self.sums}
        self.flags = [flag for flag, is_given in given.items() if is_given]

    def _bias(self, *, keys_first: bool = False) -> tuple[Tensor, int, int, int]:
        """A table, the stride of its heads, and two numbers that say where in it a tile begins."""
        table = self.tables[1 if keys_first and self.call.left is not None else 0]
        of_head = 0 if table.shape[0] == 1 else table.stride(0)
        if self.call.left is None:
            return table, of_head, self.first + self.last + 16, self.first
        return table, of_head // 8, (self.first if keys_first else self.last) // TILE, 0

    def _run(self, name: str, blocks: int, *arguments: Tensor | int | float | None) -> None:
        q = self.call.q
        with torch.cuda.device(q.device):
            run = kernel("hopper_bias.cu", name, SHARED_BYTES[name], q.device.index, q.dtype, *self.flags)
            threads = 2 * THREADS if name == "bias_grad" else THREADS
            run(blocks, threads, *arguments, self.call.scale, self.call.noise, self.call.dropout)

    def _sizes(self) -> tuple[int, int, int, int, int]:
        q, k = self.call.q, self.call.k
        return q.shape[1], q.shape[1] // k.shape[1], q.shape[2], k.shape[2], self.causal

    def forward(self, out: Tensor, rest: Tensor | None, lse: Tensor) -> None:  # all written
        q, k, v = self.call.q, self.call.k, self.call.v
        table, *where = self._bias()
        self._run(
            "forward", q.shape[0] * q.shape[1] * self.first // TILE,
            q, k, v, table, self.call.lengths, out, rest, lse, *strides(q, k, v), *self._sizes(), *where,
        )  # fmt: skip

    def key_and_value(self, grad: Tensor, lse: Tensor, delta: Tensor, dk: Tensor, dv: Tensor) -> None:
        q, k, v = self.call.q, self.call.k, self.call.v
        table, *where = self._bias(keys_first=True)
        self._run(
            "key_and_value", q.shape[0] * q.shape[1] * self.last // TILE,
            q, k, v, grad, lse, delta, table, self.call.lengths, dk, dv,
            *strides(q, k, v, grad), *self._sizes(), *where,
        )  # fmt: skip

    def query(self, grad: Tensor, lse: Tensor, delta: Tensor, dq: Tensor) -> Tensor | None:
        """Writes dq; gives the gradient of a learned Toeplitz bias, (1, H, Lq + Lk - 1)."""
        q, k, v = self.call.q, self.call.k, self.call.v
        batch, heads, q_len, _ = q.shape
        table, *where = self._bias()
        span = self.first + self.last
        slots = max(1, min(PROGRAMS * self.call.multiprocessors // heads, batch * self.first // TILE))
        sums = q.new_zeros(slots, heads, 2, span, dtype=torch.float32) if self.sums else None
        self._run(
            "query", slots * heads,
            q, k, v, grad, lse, delta, table, self.call.lengths, dq, sums, *strides(q, k, v, grad),
            batch, *self._sizes(), *where, span,
        )  # fmt: skip
        if sums is None:
            return None
        return sums.sum((0, 2))[None, :, self.first - (q_len - 1) : self.first + k.shape[2]]

    def bias_grad(self, grad: Tensor, lse: Tensor, delta: Tensor) -> Tensor:  # (H, Lq, Lk)
        """Of a matrix, summed over the batch."""
        q, k, v = self.call.q, self.call.k, self.call.v
        batch, heads, q_len, _ = q.shape
        table, *where = self._bias()
        tiles = triton.cdiv(q_len, 2 * TILE) * triton.cdiv(k.shape[2], 2 * TILE) * heads
        chunks = max(1, min(PROGRAMS * self.call.multiprocessors // tiles, batch))
        sums = q.new_empty(chunks, heads, q_len, k.shape[2], dtype=torch.float32)
        self._run(
            "bias_grad", chunks * tiles,
            q, k, v, grad, lse, delta, table, self.call.lengths, sums, *strides(q, k, v, grad),
            batch, *self._sizes(), *where, chunks,
        )  # fmt: skip
        return sums.sum(0) if chunks > 1 else sums[0]


def tables(
    values: Tensor | None, left: Tensor | None, right: Tensor | None, q_len: int, k_len: int, needs_grad: bool
) -> list[Tensor]:
    """What the kernels read of the bias: a Toeplitz table; or a matrix in fragments, and for the backward pass those of
    its transpose and the matrix itself."""
    if left is None and values is not None:
        return [toeplitz_table(values, q_len, k_len)]
    matrix = bias_matrix(values, left, right, k_len, half=True)
    return [in_fragments(matrix), *([in_fragments(matrix.mT), matrix] if needs_grad else [])]
