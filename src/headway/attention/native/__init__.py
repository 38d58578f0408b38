"""Attention in a C++ kernel of our own, for inference on the CPU in float32: a Toeplitz bias costs next to nothing.

torch's kernel makes one more pass over the scores for any bias. Here a score's bias joins it in a register: rows of a
Toeplitz matrix are neighbouring values, read where they are. RelativeProducts are summed up in the same register.
The kernel is compiled for this machine on first use.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from headway.attention.request import Plan, Request
from headway.bias import RelativeProducts, Structured, Toeplitz
from headway.bias.base import dtype_name

__all__ = ["forward", "plan"]

KINDS = ("Toeplitz", "RelativeProducts", "RelativeProducts of keys")  # of terms, at most one of each


def plan(request: Request) -> Plan | str:
    """Plan the call, or say why this backend cannot run it."""
    q, masking = request.q, request.masking
    if q.device.type != "cpu":
        return f"its kernel runs on the CPU, and q is on {q.device.type}"
    if q.dtype != torch.float32:
        return f"its kernel is for float32, and q is {dtype_name(q.dtype)}"
    if request.needs_grad:
        return "it has no derivatives, and one is needed"
    if request.dropout > 0:
        return "it is for inference and has no dropout"
    if request.value_bias is not None:
        return "it has no kernel for a value bias"
    kinds = [] if request.bias is None else [_kind(term) for term in request.bias.terms]
    for kind in kinds:
        if kind not in KINDS:
            return f"it has no kernel for {kind}, only for {', '.join(KINDS)}"
        if kinds.count(kind) > 1:
            return f"it has a kernel for one term of {kind}, and the bias has {kinds.count(kind)}"
    if masking.mask is not None or masking.q_documents is not None:
        return f"its kernel takes causal order and lengths, no {'mask' if masking.mask is not None else 'documents'}"
    if request.has_tangent:
        return "it has no derivatives, and one is carried forward"
    return _missing() or Plan(forward)


def _kind(term: Structured) -> str:
    of_keys = isinstance(term, RelativeProducts) and term.of_keys
    return f"{type(term).__name__}{' of keys' if of_keys else ''}"


def _missing() -> str | None:
    """Return why there is no kernel on this machine, or None; compile it first if that has not been done."""
    from headway.attention.native import build

    try:
        build.kernel()
    except build.Unavailable as reason:
        return str(reason)
    return None


# As torch.compiler.assume_constant_result, without importing the compiler: graphs take the answer as a constant.
_missing._dynamo_marked_constant = True  # type: ignore[attr-defined]


def forward(request: Request) -> Tensor:  # (B, H, Lq, Dv)
    from headway.attention.native import op

    terms = {} if request.bias is None else {_kind(term): term for term in request.bias.terms}
    toeplitz, of_queries, of_keys = (terms.get(kind) for kind in KINDS)
    masking = request.masking
    return cast(
        "Tensor",
        op.native(
            request.q,
            request.k,
            request.v,
            toeplitz.values if isinstance(toeplitz, Toeplitz) else None,
            [] if of_queries is None else list(of_queries.tensors.values()),
            [] if of_keys is None else list(of_keys.tensors.values()),
            masking.lengths,
            masking.causal,
            request.scale,
        ),
    )
