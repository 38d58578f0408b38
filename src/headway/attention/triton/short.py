"""Launching the one-tile kernels: the bias becomes a small matrix that the batch shares."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from headway.attention.triton import short_kernels
from headway.attention.triton.arguments import Call
from headway.attention.triton.layout import rows_first, strides
from headway.attention.triton.tables import Parts

LONGEST = 128


def fits(q: Tensor, v: Tensor, parts: Parts) -> bool:
    """Whether the scores are one tile, and the parts of the bias are shared by the batch."""
    longest = LONGEST if q.dtype != torch.float32 else LONGEST // 2
    lengths = (q.shape[2], v.shape[2])
    widest = max(q.shape[3], v.shape[3])
    return parts.shared and widest <= 64 and min(lengths) >= 16 and max(lengths) <= longest


def forward(call: Call, tables: list[Tensor]) -> tuple[Tensor, Tensor]:  # output, log2 of the denominators
    q, v = call.q, call.v
    out = rows_first(q, q.shape[2], v.shape[3])
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    setting = call.config("short forward")
    block_q = min(setting.pop("BLOCK_Q"), _block(q.shape[2]))
    block_k = _block(call.k.shape[2])
    blocks_q = triton.cdiv(q.shape[2], block_q)
    chunks = _chunks(call, setting.pop("programs"), blocks_q)
    short_kernels.short_forward_kernel[(q.shape[1] * chunks * blocks_q,)](
        q, call.k, v, out, lse, *_read(call, tables),
        *strides(q, call.k, v), *call.masks, *call.sizes, q.shape[0], chunks,
        BLOCK_Q=block_q, BLOCK_K=block_k, **_flags(call, tables, call.edges(block_q, block_k)), **setting,
    )  # fmt: skip
    return out, lse


def backward(
    call: Call, tables: list[Tensor], grad: Tensor, lse: Tensor, learned: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:  # of q, k, v, and of a learned bias, (H, Lq, Lk)
    q, k, v = call.q, call.k, call.v
    batch, heads, q_len, width = q.shape
    k_len, v_width = v.shape[2:]
    dq, dk, dv = (rows_first(q, *size) for size in ((q_len, width), (k_len, width), (k_len, v_width)))
    setting = call.config("short backward")
    chunks = _chunks(call, setting.pop("programs"), 1)
    partial = q.new_empty((chunks, heads, k_len, q_len) if learned else (0,), dtype=torch.float32)
    block_q, block_k = _block(q_len), _block(k_len)
    short_kernels.short_backward_kernel[(heads * chunks,)](
        q, k, v, grad, lse, dq, dk, dv, partial, *_read(call, tables),
        *strides(q, k, v, grad), *call.masks, *call.sizes,
        batch, chunks, LEARNED=learned, HALVES=2 if block_q > 64 else 1, BLOCK_Q=block_q, BLOCK_K=block_k,
        **_flags(call, tables, call.edges(block_q, block_k)), **setting,
    )  # fmt: skip
    return dq, dk, dv, partial.sum(0).mT if learned else None


def _read(call: Call, tables: list[Tensor]) -> tuple[Tensor, int]:
    """The bias as a matrix, (H|1, Lq, Lk) forward and (H|1, Lk, Lq) backward, and the stride of its heads."""
    if not tables:
        return call.nothing, 0
    return tables[0], 0 if tables[0].shape[0] == 1 else tables[0].stride(0)


def _flags(call: Call, tables: list[Tensor], edges: bool) -> dict[str, bool | str | int]:
    flags = {**call.mask_flags, "BIAS": len(tables) > 0, "EDGES": edges}
    return {**flags, **call.width_flags}


def _chunks(call: Call, programs: int, blocks: int) -> int:
    """Into how many parts the batch is cut, so that there are about `programs` programs for each multiprocessor."""
    wanted = programs * call.multiprocessors // (call.q.shape[1] * blocks)
    return max(1, min(wanted, call.q.shape[0]))


def _block(length: int) -> int:
    return max(16, int(triton.next_power_of_2(length)))
