"""Launching the one-tile kernels: the bias becomes a small matrix that the batch shares."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from headway.attention.triton import short_kernels
from headway.attention.triton.arguments import Call
from headway.attention.triton.layout import rows_first, strides

SHORTEST, LONGEST = 16, 128
WIDEST = 64


def fits(dtype: torch.dtype, q_len: int, k_len: int, *widths: int) -> bool:
    """Whether all scores of a head are one tile. Beside a bias, the batch must share it."""
    longest = LONGEST if dtype != torch.float32 else LONGEST // 2
    return max(widths) <= WIDEST and min(q_len, k_len) >= SHORTEST and max(q_len, k_len) <= longest


def forward(call: Call) -> tuple[Tensor, Tensor]:  # output, log2 of the denominators
    q, v, matrix = call.q, call.v, call.description.tables.matrix
    out = rows_first(q, q.shape[2], v.shape[3])
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    setting = call.config("short forward")
    block_q = min(setting.pop("BLOCK_Q"), _block(q.shape[2]))
    block_k = _block(call.k.shape[2])
    blocks_q = triton.cdiv(q.shape[2], block_q)
    chunks = _chunks(call, setting.pop("programs"), blocks_q)
    short_kernels.short_forward_kernel[(q.shape[1] * chunks * blocks_q,)](
        q, call.k, v, out, lse, *_read(call, matrix),
        *strides(q, call.k, v), *call.masks, *call.sizes, q.shape[0], chunks,
        BLOCK_Q=block_q, BLOCK_K=block_k, **_flags(call, matrix, call.edges(block_q, block_k)), **setting,
    )  # fmt: skip
    return out, lse


def backward(
    call: Call, grad: Tensor, lse: Tensor, learned: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:  # of q, k, v, and of a learned bias, (H, Lq, Lk)
    q, k, v, matrix = call.q, call.k, call.v, call.description.tables.transposed
    batch, heads, q_len, width = q.shape
    k_len, v_width = v.shape[2:]
    dq, dk, dv = (rows_first(q, *size) for size in ((q_len, width), (k_len, width), (k_len, v_width)))
    setting = call.config("short backward")
    chunks = _chunks(call, setting.pop("programs"), 1)
    partial = q.new_empty((chunks, heads, k_len, q_len) if learned else (0,), dtype=torch.float32)
    block_q, block_k = _block(q_len), _block(k_len)
    short_kernels.short_backward_kernel[(heads * chunks,)](
        q, k, v, grad, lse, dq, dk, dv, partial, *_read(call, matrix),
        *strides(q, k, v, grad), *call.masks, *call.sizes,
        batch, chunks, LEARNED=learned, HALVES=2 if block_q > 64 else 1, BLOCK_Q=block_q, BLOCK_K=block_k,
        **_flags(call, matrix, call.edges(block_q, block_k)), **setting,
    )  # fmt: skip
    return dq, dk, dv, partial.sum(0).mT if learned else None


def _read(call: Call, matrix: Tensor | None) -> tuple[Tensor, int]:
    """The bias as a matrix, (H|1, Lq, Lk) forward and (H|1, Lk, Lq) backward, and the stride of its heads."""
    if matrix is None:
        return call.nothing, 0
    return matrix, 0 if matrix.shape[0] == 1 else matrix.stride(0)


def _flags(call: Call, matrix: Tensor | None, edges: bool) -> dict[str, bool | str | int]:
    flags = {**call.mask_flags, "BIAS": matrix is not None, "EDGES": edges}
    return {**flags, **call.width_flags}


def _chunks(call: Call, programs: int, blocks: int) -> int:
    """Into how many parts the batch is cut, so that there are about `programs` programs for each multiprocessor."""
    wanted = programs * call.multiprocessors // (call.q.shape[1] * blocks)
    return max(1, min(wanted, call.q.shape[0]))


def _block(length: int) -> int:
    return max(16, int(triton.next_power_of_2(length)))
