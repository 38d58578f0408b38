"""Fused GPU attention: learned biases inside the kernel, memory linear in n, exact and deterministic gradients.

A Toeplitz bias is read from eight shifted copies of its values, so that every load is aligned; its gradient is summed
along block diagonals over the whole batch before it is turned into offsets. A low-rank bias, and segments, are a second
product inside the tile.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch
from torch import Tensor

from headway.attention.request import Request
from headway.bias import LowRank, SegmentTable, Toeplitz

__all__ = ["forward", "why_not"]

INSTALLED = find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # kernels on CPU tensors, for tests


def why_not(request: Request) -> str | None:
    """Reason this backend cannot run the call, or None."""
    if not INSTALLED:
        return "triton is not installed"
    q = request.q
    if q.device.type != "cuda" and not INTERPRETED:
        return f"its kernels run on CUDA, and q is on {q.device.type}"
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"it has no kernel for {q.dtype}"
    if max(q.shape[-1], request.v.shape[-1]) > 256:
        return f"it has kernels for head widths up to 256, and got {max(q.shape[-1], request.v.shape[-1])}"
    if request.value_bias is not None:
        return "it has no kernel for a bias on the values yet"
    for term in () if request.bias is None else request.bias.terms:
        if not isinstance(term, Toeplitz | LowRank | SegmentTable):
            return f"it has no kernel for {type(term).__name__} yet"
    if request.dropout > 0 and q.shape[-2] * request.k.shape[-2] >= 2**31:
        return "its dropout numbers the pairs of a head with 31 bits"
    return None


def forward(request: Request) -> Tensor:  # (B, H, Lq, Dv)
    from headway.attention.triton import op

    values, left, right = _parts(request)
    masking = request.masking
    seed = None
    if request.dropout > 0:
        seed = torch.randint(2**31, (1,), device=request.q.device)
    output: Tensor = op.fused(
        request.q.contiguous(),
        request.k.contiguous(),
        request.v.contiguous(),
        values,
        left,
        right,
        masking.mask,
        masking.causal,
        masking.lengths,
        masking.q_documents,
        masking.k_documents,
        request.scale,
        request.dropout,
        seed,
    )[0]
    return output


def _parts(request: Request) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """All terms as one Toeplitz bias and one low-rank one."""
    values: Tensor | None = None
    pairs: list[LowRank] = []
    for term in () if request.bias is None else request.bias.terms:
        if isinstance(term, Toeplitz):
            values = term.values if values is None else values + term.values
        elif isinstance(term, SegmentTable):
            pairs.append(term.as_low_rank())
        elif isinstance(term, LowRank):
            pairs.append(term)
    if not pairs:
        return values, None, None
    return values, _beside([pair.left for pair in pairs]), _beside([pair.right for pair in pairs])


def _beside(factors: list[Tensor]) -> Tensor:
    if len(factors) == 1:
        return factors[0]
    batch, heads = max(f.shape[0] for f in factors), max(f.shape[1] for f in factors)
    dtype = torch.promote_types(factors[0].dtype, factors[-1].dtype)
    return torch.cat([f.to(dtype).expand(batch, heads, -1, -1) for f in factors], -1)
