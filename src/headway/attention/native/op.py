"""The call of the kernel, registered as a torch operator so that `torch.compile` keeps it whole."""

from __future__ import annotations

import ctypes
import functools
import struct

import torch
from torch import Tensor
from torch.nn.functional import pad

from headway.attention.native.build import kernel

# With fewer products than this one thread is as fast as several.
ALONE = 2**20

CALL = struct.Struct("6P 7q 12q 2q 2P5q 2P5q f2i P")  # the fields of Call in kernel.cpp


@torch.library.custom_op("headway::native", mutates_args=(), device_types="cpu")
def native(
    q: Tensor,  # (B, H, Lq, D)
    k: Tensor,  # (B, Hk, Lk, D)
    v: Tensor,  # (B, Hk, Lk, Dv)
    values: Tensor | None,  # (B|1, H|1, Lq + Lk - 1), a Toeplitz bias
    of_queries: list[Tensor],  # the tensors of RelativeProducts, or nothing
    of_keys: list[Tensor],  # the same with vectors of keys
    lengths: Tensor | None,  # (B,)
    causal: bool,
    scale: float,
) -> Tensor:  # (B, H, Lq, Dv)
    q, k, v = (t if t.stride(3) == 1 else t.contiguous() for t in (q, k, v))
    batch, heads, q_len, width = q.shape
    k_len, v_width = v.shape[2:]
    out = _rows_first(q, v_width)
    bias_strides = (0, 0)
    if values is not None:
        values = values.to(torch.float32).contiguous()
        bias_strides = (
            0 if values.shape[0] == 1 else values.stride(0),
            0 if values.shape[1] == 1 else values.stride(1),
        )
    if lengths is not None:
        lengths = lengths.to(torch.int64).contiguous()
    multiplied = [_products(pair) for pair in (of_queries, of_keys)]
    products = batch * heads * q_len * k_len * (width + v_width)
    call = CALL.pack(
        *(0 if t is None else t.data_ptr() for t in (q, k, v, values, lengths, out)),
        *(batch, heads, heads // k.shape[1], q_len, k_len, width, v_width),
        *(stride for t in (q, k, v, out) for stride in t.stride()[:3]),
        *bias_strides,
        *(field for _, fields in multiplied for field in fields),
        scale,
        causal,
        1 if products < ALONE else torch.get_num_threads(),
        _parallel(),
    )
    kernel().headway_attention(call)
    return out


def _products(tensors: list[Tensor]) -> tuple[list[Tensor], tuple[int, ...]]:
    """Return tensors that must stay alive during the call, and the fields of Products, some of which point to them."""
    if not tensors:
        return [], (0,) * 7
    vectors, offset_vectors, rows = tensors
    vectors = vectors.to(torch.float32)
    vectors = vectors if vectors.stride(3) == 1 else vectors.contiguous()
    index = torch.where(rows < 0, offset_vectors.shape[1], rows.long()).flip(0)  # greatest offset first
    with_zero = pad(offset_vectors.to(torch.float32), (0, 0, 0, 1))
    table = with_zero.index_select(1, index).mT.contiguous()  # (H|1, W, Lq + Lk - 1)
    batch, head = (0 if vectors.shape[axis] == 1 else vectors.stride(axis) for axis in (0, 1))
    table_head = 0 if table.shape[0] == 1 else table.stride(0)
    fields = (vectors.data_ptr(), table.data_ptr(), batch, head, vectors.stride(2), table_head, table.shape[1])
    return [vectors, table], fields


@native.register_fake
def _(q, k, v, *rest):  # type: ignore[no-untyped-def]
    return _rows_first(q, v.shape[3])


def _rows_first(q: Tensor, width: int) -> Tensor:
    """Return an empty (B, H, Lq, width) whose memory is (B, Lq, H, width), the order in which models read it."""
    return q.new_empty(q.shape[0], q.shape[2], q.shape[1], width).transpose(1, 2)


@functools.cache
def _parallel() -> int:
    """Return the address of the function of torch's OpenMP that runs another function on several threads, or 0.

    These threads exist already, and a second set would compete with them for the cores. With 0 the kernel starts its
    own threads.
    """
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p).value or 0
    except (AttributeError, OSError, TypeError):  # torch was built without OpenMP, or hides it
        return 0
