"""Attention in blocks of queries, with every bias: forward, backward and gradients of the bias.

The scores of one block exist only while that block is worked on. The backward pass is given the weights, where these
fit into 64 MiB, or computes them again. How the tile of each kind of bias is computed, and how its gradient is summed,
stands in `terms.py`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headway.attention.blockwise import op
from headway.attention.blockwise.terms import OF_KEYS, SCORE_TERMS, VALUE_TERMS
from headway.attention.request import Plan, Request
from headway.bias import RelativeKeys, RelativeProducts, RelativeValues, SegmentTable, Structured

__all__ = ["forward", "plan"]


def plan(request: Request) -> Plan | str:
    """Plan the call, or say why this backend cannot run it."""
    if request.q.device.type != "cpu":
        return f"its loops pay on the CPU only, and q is on {request.q.device.type}"
    if request.has_tangent or request.is_transformed:
        return "it knows the backward pass alone, and another kind of derivative is asked for"
    for part, known in ((request.bias, {*SCORE_TERMS, "SegmentTable"} - {OF_KEYS}), (request.value_bias, VALUE_TERMS)):
        for term in () if part is None else part.terms:
            if type(term).__name__ not in known:
                return f"it has no loop for {type(term).__name__}, only for {', '.join(sorted(known))}"
    return Plan(forward)


def forward(request: Request) -> Tensor:  # (B, H, Lq, Dv)
    k, v = request.expanded()
    masking = request.masking
    kinds, tensors, starts = _flat(request)
    seed = torch.randint(2**62, (1,)) if request.dropout > 0 else None
    batch, heads, q_len, _ = request.q.shape
    keep = request.needs_grad and batch * heads * q_len * k.shape[2] <= op.KEPT
    output: Tensor = op.blockwise(
        request.q.contiguous(),
        k.contiguous(),
        v.contiguous(),
        tensors,
        kinds,
        starts,
        masking.mask,
        masking.causal,
        masking.lengths,
        masking.q_documents,
        masking.k_documents,
        request.scale,
        request.dropout,
        seed,
        keep,
    )[0]
    return output


def _flat(request: Request) -> tuple[str, list[Tensor], list[int]]:
    """Flatten the terms into what a custom operator takes: names, tensors and integers."""
    kinds: list[str] = []
    tensors: list[Tensor] = []
    starts: list[int] = []
    terms: list[Structured] = []
    for part in (request.bias, request.value_bias):
        if part is not None:
            terms.extend(part.terms)
    for term in terms:
        if isinstance(term, SegmentTable):
            term = term.as_low_rank()
        of_keys = isinstance(term, RelativeProducts) and term.of_keys
        kinds.append(OF_KEYS if of_keys else type(term).__name__)
        tensors.extend(term.tensors.values())
        starts.append(term.q_start if isinstance(term, RelativeKeys | RelativeValues) else 0)
    return ",".join(kinds), tensors, starts
