"""Launching the kernels, registered as torch operators so that `torch.compile` keeps them whole."""

from __future__ import annotations

from typing import Any

import torch
import triton
from torch import Tensor

from headway.attention.triton import kernels, tiles

LOG2E = 1.4426950408889634
Config = dict[str, int]


def config(kind: str, width: int, dtype: torch.dtype) -> Config:
    """Tile sizes, warps and stages, chosen by hand on an H200 for width 64; the others are untuned. No tuner yet."""
    if dtype == torch.float32:
        small = 32 if width > 64 else 64
        return {"BLOCK_Q": small, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2}
    if width > 128:
        return {"BLOCK_Q": 64, "BLOCK_K": 32, "num_warps": 4, "num_stages": 2}
    if width > 64:
        return {"BLOCK_Q": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 2}
    return dict(CONFIGS[kind])


CONFIGS: dict[str, Config] = {
    "forward": {"BLOCK_Q": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 3},
    "query": {"BLOCK_Q": 64, "BLOCK_K": 64, "num_warps": 4, "num_stages": 2},
    "key": {"BLOCK_Q": 32, "BLOCK_K": 64, "num_warps": 4, "num_stages": 2},
    "diagonal": {"BLOCK_Q": 128, "BLOCK_K": 128, "num_warps": 8, "num_stages": 3},
}
DIAGONAL_PROGRAMS = 528  # about four for each of an H200's 132 multiprocessors


@torch.library.custom_op("headway::fused", mutates_args=(), device_types=None)
def fused(
    q: Tensor,  # (B, H, Lq, D)
    k: Tensor,  # (B, Hk, Lk, D)
    v: Tensor,  # (B, Hk, Lk, Dv)
    values: Tensor | None,  # (B|1, H|1, Lq + Lk - 1), a Toeplitz bias
    left: Tensor | None,  # (B|1, H|1, Lq, R), a low-rank bias
    right: Tensor | None,  # (B|1, H|1, Lk, R)
    mask: Tensor | None,
    causal: bool,
    lengths: Tensor | None,
    q_documents: Tensor | None,
    k_documents: Tensor | None,
    scale: float,
    dropout: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor]:  # output (B, H, Lq, Dv); log2 of the softmax's denominators (B, H, Lq)
    call = _Call(q, k, v, left, right, mask, causal, lengths, q_documents, k_documents, scale, dropout, seed)
    out = q.new_empty(*q.shape[:3], v.shape[3])
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    setting = config("forward", max(q.shape[3], v.shape[3]), q.dtype)
    grid = (triton.cdiv(q.shape[2], setting["BLOCK_Q"]) * q.shape[0] * q.shape[1],)
    kernels.forward_kernel[grid](
        q, k, v, out, lse, *call.toeplitz(values, "rows", setting), *call.shared, **call.flags(values), **setting
    )
    return out, lse


@torch.library.custom_op("headway::fused_backward", mutates_args=(), device_types=None)
def fused_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    values: Tensor | None,
    left: Tensor | None,
    right: Tensor | None,
    mask: Tensor | None,
    causal: bool,
    lengths: Tensor | None,
    q_documents: Tensor | None,
    k_documents: Tensor | None,
    scale: float,
    dropout: float,
    seed: Tensor | None,
    learned: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # of q, k, v, values, left, right; empty where none
    call = _Call(q, k, v, left, right, mask, causal, lengths, q_documents, k_documents, scale, dropout, seed)
    batch, heads, q_len, width = q.shape
    k_len, v_width = v.shape[2:]
    pairs = batch * heads
    grad = grad.contiguous()
    delta = torch.empty_like(lse)
    kernels.delta_kernel[(triton.cdiv(pairs * q_len, 64),)](
        out, grad, delta, pairs * q_len, v_width, BLOCK=64, BLOCK_V=triton.next_power_of_2(v_width)
    )
    dq = torch.empty_like(q)
    dk = q.new_empty(batch, heads, k_len, width)
    dv = q.new_empty(batch, heads, k_len, v_width)
    rank = 0 if left is None else left.shape[-1]
    dleft = q.new_empty(batch, heads, q_len, rank, dtype=torch.float32)
    dright = q.new_empty(batch, heads, k_len, rank, dtype=torch.float32)

    widest = max(width, v_width)
    setting = config("key", widest, q.dtype)
    grid = (triton.cdiv(k_len, setting["BLOCK_K"]) * pairs,)
    kernels.key_kernel[grid](
        q, k, v, grad, lse, delta, dk, dv, dright,
        *call.toeplitz(values, "columns", setting), *call.shared, **call.flags(values), **setting,
    )  # fmt: skip
    setting = config("query", widest, q.dtype)
    grid = (triton.cdiv(q_len, setting["BLOCK_Q"]) * pairs,)
    kernels.query_kernel[grid](
        q, k, v, grad, lse, delta, dq, dleft,
        *call.toeplitz(values, "rows", setting), *call.shared, **call.flags(values), **setting,
    )  # fmt: skip
    dvalues, d_left, d_right = (q.new_empty(0) for _ in range(3))  # operators may not return one tensor twice
    if values is not None and learned:
        dvalues = _toeplitz_grad(call, values, grad, lse, delta)
    groups = heads // k.shape[1]
    if groups > 1:
        dk = dk.view(batch, -1, groups, k_len, width).sum(2)
        dv = dv.view(batch, -1, groups, k_len, v_width).sum(2)
    if left is not None and right is not None:
        d_left, d_right = _summed(dleft, left), _summed(dright, right)
    return dq, dk, dv, dvalues, d_left, d_right


def _toeplitz_grad(call: _Call, values: Tensor, grad: Tensor, lse: Tensor, delta: Tensor) -> Tensor:
    q, k, v = call.q, call.k, call.v
    batch, heads, q_len, width = q.shape
    k_len, v_width = v.shape[2:]
    setting = config("diagonal", max(width, v_width), q.dtype)
    block = min(setting.pop("BLOCK_Q"), setting.pop("BLOCK_K"))
    blocks_q, blocks_k = triton.cdiv(q_len, block), triton.cdiv(k_len, block)
    diagonals = blocks_q + blocks_k - 1
    groups = values.shape[0]  # 1 where the batch shares the bias
    together = batch // groups
    chunks = max(1, min(DIAGONAL_PROGRAMS // (diagonals * heads * groups), together * min(blocks_q, blocks_k)))
    sums = q.new_empty(groups, heads, diagonals, chunks, 2, block, dtype=torch.float32)
    flags = call.flags(values)
    del flags["TOEPLITZ"]
    masked = any(flags[name] for name in ("CAUSAL", "LENGTHS", "DOCUMENTS", "MASK"))
    edges = masked or q_len % block != 0 or k_len % block != 0
    kernels.diagonal_kernel[(diagonals * chunks, heads, groups)](
        q, k, v, grad, lse, delta, sums,
        *call.toeplitz(values, "rows", {"BLOCK_Q": block, "BLOCK_K": block}), *call.shared,
        batch, together, chunks, EDGES=edges, BLOCK=block, **flags, **setting,
    )  # fmt: skip
    low, high = sums.sum(3).unbind(3)  # of offsets below and from `gap * block` on, (G, H, diagonals, block)
    total = torch.nn.functional.pad(low, (0, 0, 0, 1)) + torch.nn.functional.pad(high, (0, 0, 1, 0))
    first = blocks_q * block - (q_len - 1)  # where offset -(Lq - 1) stands
    total = total.flatten(2)[..., first : first + q_len + k_len - 1]
    return _summed(total, values)


def _summed(grad: Tensor, like: Tensor) -> Tensor:
    """Sum over the batch and the heads where the original was shared."""
    for axis in (0, 1):
        if like.shape[axis] == 1 and grad.shape[axis] > 1:
            grad = grad.sum(axis, keepdim=True)
    return grad.to(like.dtype)


class _Call:
    """The arguments all kernels share, in their order."""

    def __init__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        left: Tensor | None,
        right: Tensor | None,
        mask: Tensor | None,
        causal: bool,
        lengths: Tensor | None,
        q_documents: Tensor | None,
        k_documents: Tensor | None,
        scale: float,
        dropout: float,
        seed: Tensor | None,
    ) -> None:
        self.q, self.k, self.v = q, k, v
        self.nothing = q.new_empty(0)
        self.half = q.dtype != torch.float32
        factor_dtype = torch.float16 if self.half else torch.float32
        factors: list[Any] = []
        for factor in (left, right):
            if factor is None:
                factors += [self.nothing, 0, 0]
            else:
                factor = factor.to(factor_dtype).contiguous()
                factors += [factor, *_strides(factor)]
        q_docs = self.nothing if q_documents is None else q_documents.contiguous()
        k_docs = self.nothing if k_documents is None else k_documents.contiguous()
        bits = self.nothing if mask is None else mask.view(torch.uint8)
        if mask is not None and mask.stride(3) != 1:
            bits = mask.contiguous().view(torch.uint8)
        self.shared = (
            *factors,
            self.nothing if lengths is None else lengths,
            q_docs, 0 if q_docs.dim() < 2 or q_docs.shape[0] == 1 else q_docs.stride(0),
            k_docs, 0 if k_docs.dim() < 2 or k_docs.shape[0] == 1 else k_docs.stride(0),
            bits, *((0, 0, 0) if mask is None else _mask_strides(bits)),
            scale, dropout, self.nothing if seed is None else seed,
            q.shape[1], q.shape[1] // k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3],
            0 if left is None else left.shape[3],
        )  # fmt: skip
        self._flags = {
            "LOW_RANK": left is not None,
            "CAUSAL": causal,
            "LENGTHS": lengths is not None,
            "DOCUMENTS": q_documents is not None,
            "MASK": mask is not None,
            "DROPOUT": dropout > 0,
            "WHOLE": _whole(q.shape[3]) and _whole(v.shape[3]),
            "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
            "BLOCK_D": max(16, triton.next_power_of_2(q.shape[3])),
            "BLOCK_V": max(16, triton.next_power_of_2(v.shape[3])),
            "BLOCK_R": 16 if left is None else max(16, triton.next_power_of_2(left.shape[3])),
        }

    def flags(self, values: Tensor | None) -> dict[str, Any]:
        return {"TOEPLITZ": values is not None, **self._flags}

    def toeplitz(self, values: Tensor | None, orientation: str, setting: Config) -> tuple[Tensor, int, int, int, int]:
        """The skewed table for tiles whose rows are queries ("rows") or keys ("columns"), its strides and its shift."""
        if values is None:
            return self.nothing, 0, 0, 0, 0
        q_len, k_len = self.q.shape[2], self.k.shape[2]
        rows = triton.cdiv(q_len, setting["BLOCK_Q"]) * setting["BLOCK_Q"]
        columns = triton.cdiv(k_len, setting["BLOCK_K"]) * setting["BLOCK_K"]
        if orientation == "columns":
            rows, columns = columns, rows
        shift = rows  # so that column - 8 * (row // 8) + shift is never negative
        width = rows + columns
        # rows are queries: index = column - row + Lq - 1; rows are keys: index = row - column + Lq - 1
        sign = 1 if orientation == "rows" else -1
        first = q_len - 1 - sign * shift
        count = values.shape[-1]
        flat = values.contiguous().view(-1, count)
        dtype = torch.float16 if self.half else torch.float32
        table = torch.empty(*values.shape[:2], 8, width, dtype=dtype, device=values.device)
        block = 1024
        tiles.skew_kernel[(flat.shape[0], 8, triton.cdiv(width, block))](
            flat, table, count, width, first,
            SIGN=sign, FACTOR=LOG2E, LIMIT=60000.0 if self.half else 3.0e38, BLOCK=block,
        )  # fmt: skip
        return table, *_strides(table), width, shift


def _strides(t: Tensor) -> tuple[int, int]:
    """Strides of batch and head, 0 where shared."""
    return (0 if t.shape[0] == 1 else t.stride(0)), (0 if t.shape[1] == 1 else t.stride(1))


def _mask_strides(t: Tensor) -> tuple[int, int, int]:
    return (*_strides(t), 0 if t.shape[2] == 1 else t.stride(2))


def _whole(width: int) -> bool:
    return width >= 16 and width & (width - 1) == 0


@fused.register_fake
def _(q, k, v, *rest):  # type: ignore[no-untyped-def]
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3], dtype=torch.float32)


@fused_backward.register_fake
def _(grad, q, k, v, out, lse, values, left, right, *rest):  # type: ignore[no-untyped-def]
    dvalues = torch.empty_like(values) if values is not None and rest[-1] else q.new_empty(0)
    factors = [q.new_empty(0) if t is None else torch.empty_like(t) for t in (left, right)]
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), dvalues, *factors


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    q, k, v, values, left, right, mask, causal, lengths, q_documents, k_documents, scale, dropout, seed = inputs
    ctx.save_for_backward(q, k, v, *output, values, left, right, mask, lengths, q_documents, k_documents, seed)
    ctx.settings = causal, scale, dropout, values is not None and values.requires_grad
    ctx.set_materialize_grads(False)


def _differentiate(ctx, grad, _):  # type: ignore[no-untyped-def]
    q, k, v, out, lse, values, left, right, mask, lengths, q_documents, k_documents, seed = ctx.saved_tensors
    causal, scale, dropout, learned = ctx.settings
    if grad is None:
        return (None,) * 14
    dq, dk, dv, dvalues, dleft, dright = fused_backward(
        grad, q, k, v, out, lse, values, left, right, mask, causal, lengths, q_documents, k_documents,
        scale, dropout, seed, learned,
    )  # fmt: skip
    of_bias = (
        dvalues if learned else None,
        None if left is None else dleft,
        None if right is None else dright,
    )
    return dq, dk, dv, *of_bias, *(None,) * 8


def _no_second(ctx, *grads):  # type: ignore[no-untyped-def]
    raise NotImplementedError(
        "attention: the fused kernels have no second derivative. Use backend='eager', which is differentiable twice."
    )


fused.register_autograd(_differentiate, setup_context=_save)
fused_backward.register_autograd(_no_second)
