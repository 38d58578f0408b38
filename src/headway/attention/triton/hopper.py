"""Launching the Hopper kernels for a Toeplitz bias at head width 64 in half precision, below what Triton reaches."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from headway.attention.triton import cuda
from headway.attention.triton.layout import LOG2E, strides

if TYPE_CHECKING:
    from headway.attention.triton.op import Call

TILE = 64
THREADS = 128
TILE_BYTES = TILE * TILE * 2
SHARED_BYTES = {  # one or two tiles that stay, three stages of two that pass, and numbers
    "forward": 7 * TILE_BYTES,
    "query_and_toeplitz": 8 * TILE_BYTES + 4 * 8 * 72 * 4,
    "key_and_value": 8 * TILE_BYTES + 3 * 2 * TILE * 4,
}
PROGRAMS = 3  # of the kernel that sums the gradient of the bias, for each multiprocessor


def fits(call: Call, values: Tensor | None, rows: Tensor | None, weights: bool) -> bool:
    """Whether the kernels take the call: a Toeplitz bias that the batch shares, `causal`, `lengths` and dropout."""
    plain = not any(call.mask_flags[name] for name in ("DOCUMENTS", "MASK"))
    alone = values is not None and values.shape[0] == 1 and call.left is None and rows is None and not weights
    return plain and alone and takes(call.q, call.k, call.v)


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
    """One call on the Hopper kernels; the table of the bias is made once."""

    def __init__(self, call: Call, values: Tensor) -> None:  # values (1, H|1, Lq + Lk - 1)
        self.call = call
        q, k = call.q, call.k
        q_len, k_len = q.shape[2], k.shape[2]
        self.first, self.last = (triton.cdiv(length, TILE) * TILE for length in (q_len, k_len))
        self.span = self.first + self.last
        # From offset -first - 8 on, and once more from the next, so that every pair of numbers is aligned somewhere.
        padded = F.pad(values[0].float() * LOG2E, (self.first + 8 - (q_len - 1), self.last + 9 - (k_len - 1)))
        self.table = torch.stack([padded[:, : self.span + 16], padded[:, 1 : self.span + 17]], 1)
        self.lengths = None if call.lengths is None else call.lengths.to(torch.int32)
        self.causal = int(call.mask_flags["CAUSAL"])
        self.of_table = (0 if self.table.shape[0] == 1 else self.table.stride(0), self.span + 16, self.first)

    def _run(self, name: str, blocks: int, *arguments: Tensor | int | float | None) -> None:
        q, dropout = self.call.q, self.call.dropout
        flags = ["-DDROPOUT"] if dropout > 0 else []
        with torch.cuda.device(q.device):
            run = kernel("hopper_toeplitz.cu", name, SHARED_BYTES[name], q.device.index, q.dtype, *flags)
            run(blocks, THREADS, *arguments, self.call.scale, self.call.noise, dropout)

    def _sizes(self) -> tuple[int, int, int, int, int]:
        q, k = self.call.q, self.call.k
        return q.shape[1], q.shape[1] // k.shape[1], q.shape[2], k.shape[2], self.causal

    def forward(self, out: Tensor, lse: Tensor) -> None:  # both written
        q, k, v = self.call.q, self.call.k, self.call.v
        self._run(
            "forward", q.shape[0] * q.shape[1] * self.first // TILE,
            q, k, v, self.table, self.lengths, out, lse, *strides(q, k, v), *self._sizes(), *self.of_table,
        )  # fmt: skip

    def key_and_value(self, grad: Tensor, lse: Tensor, delta: Tensor, dk: Tensor, dv: Tensor) -> None:
        q, k, v = self.call.q, self.call.k, self.call.v
        self._run(
            "key_and_value", q.shape[0] * q.shape[1] * self.last // TILE,
            q, k, v, grad, lse, delta, self.table, self.lengths, dk, dv, *strides(q, k, v, grad), *self._sizes(),
            *self.of_table,
        )  # fmt: skip

    def query_and_toeplitz(self, grad: Tensor, lse: Tensor, delta: Tensor, dq: Tensor) -> Tensor:
        """Writes dq; gives the gradient of the values of each head, (1, H, Lq + Lk - 1)."""
        q, k, v = self.call.q, self.call.k, self.call.v
        batch, heads, q_len, _ = q.shape
        slots = max(1, min(PROGRAMS * self.call.multiprocessors // heads, batch * self.first // TILE))
        sums = q.new_zeros(slots, heads, 2, self.span, dtype=torch.float32)
        self._run(
            "query_and_toeplitz", slots * heads,
            q, k, v, grad, lse, delta, self.table, self.lengths, dq, sums, *strides(q, k, v, grad),
            batch, *self._sizes(), *self.of_table, self.span,
        )  # fmt: skip
        total = sums.sum((0, 2))
        return total[None, :, self.first - (q_len - 1) : self.first + k.shape[2]]
