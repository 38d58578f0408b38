"""`attention` and `explain`: check the call, choose a backend, run it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from headway.attention import blockwise, eager, flex, matrix, native, sdpa, triton
from headway.attention.request import Documents, Request, checked
from headway.bias import Bias, Dense, Toeplitz, ValueBias


def _always(request: Request) -> str | None:
    """Our own kernels and loops add up in one order: they are deterministic."""
    return None


class Backend(NamedTuple):
    why_not: Callable[[Request], str | None]
    forward: Callable[[Request], Tensor]
    why_not_deterministic: Callable[[Request], str | None] = _always


BACKENDS = {
    "triton": Backend(triton.why_not, triton.forward),
    "native": Backend(native.why_not, native.forward),
    "sdpa": Backend(sdpa.why_not, sdpa.forward, sdpa.why_not_deterministic),
    "matrix": Backend(matrix.why_not, matrix.forward),
    "blockwise": Backend(blockwise.why_not, blockwise.forward),
    "flex": Backend(flex.why_not, flex.forward, flex.why_not_deterministic),
    "eager": Backend(eager.why_not, eager.forward, eager.why_not_deterministic),
}

# Up to this many scores a head, the whole matrix is no larger than q, k and v, and one pass over it beats a loop over
# blocks: chosen by trial on two cores.
SHORT = 128 * 128

# From this many queries on, which fill a vector, the native kernel is faster than torch's, with a Toeplitz bias or with
# none: by trial on two cores with AVX-512, and with AVX2.
NATIVE_FROM = 16

# From this many keys on, training with a low-rank bias is faster as one wider product than as two: measured on an H200
# with rank and width 64 (benchmarks/results). Inference gains from four times as many on, where no Hopper kernel fits.
JOINED_FROM = 2048


def attention(
    q: Tensor,  # (B, H, Lq, D)
    k: Tensor,  # (B, Hk, Lk, D), Hk divides H
    v: Tensor,  # (B, Hk, Lk, Dv)
    bias: Bias | Tensor | None = None,
    value_bias: ValueBias | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    lengths: Tensor | None = None,
    documents: Documents | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    backend: str = "auto",
) -> Tensor:  # (B, H, Lq, Dv)
    """softmax(scale * q k^T + bias) (v + value_bias), by the fastest path that is exact for the call.

    Args:
        bias: added to the scaled scores; a structured bias, a sum of them, or a tensor (B|1, H|1, Lq, Lk).
        value_bias: added to the values as seen from each query (Shaw's relative values).
        mask: boolean (B|1, H|1, Lq|1, Lk), True = may attend.
        causal: no attention to later keys; the last query sees every key, whatever the lengths.
        lengths: (B,) integers; keys at and beyond are padding: any numbers, as long as they are finite.
        documents: (B, L) ids of packed texts, which do not see one another; a pair (query ids, key ids) if Lq != Lk.
        scale: D ** -0.5 unless given.
        dropout: probability with which a weight is dropped, during training; pass 0 to evaluate.
        backend: auto, triton, native, sdpa, matrix, blockwise, flex or eager. One asked for by name runs or raises.

    A query that may attend to nothing gives zeros, and zero gradients.
    """
    request = checked(
        q,
        k,
        v,
        bias=bias,
        value_bias=value_bias,
        mask=mask,
        causal=causal,
        lengths=lengths,
        documents=documents,
        scale=scale,
        dropout=dropout,
    )
    return BACKENDS[_chosen(request, backend)].forward(request)


def self_attention(
    qkv: Tensor,  # (B, L, 3, H, D)
    bias: Bias | Tensor | None = None,
    value_bias: ValueBias | None = None,
    mask: Tensor | None = None,
    causal: bool = False,
    lengths: Tensor | None = None,
    documents: Documents | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    backend: str = "auto",
) -> Tensor:  # (B, H, L, D)
    """`attention` of q, k and v that one projection made, with the same options.

    The kernels for Hopper GPUs write the gradients into one tensor like `qkv`, where three would have to be joined for
    the projection: one copy of them less in each layer.
    """
    if not isinstance(qkv, Tensor) or qkv.dim() != 5 or qkv.shape[2] != 3:
        got = tuple(qkv.shape) if isinstance(qkv, Tensor) else type(qkv).__name__
        raise ValueError(
            f"qkv: expected q, k and v beside one another, (B, L, 3, H, D), got {got}. "
            f"Split the projection: x.unflatten(-1, (3, H, D))."
        )
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    request = checked(
        q,
        k,
        v,
        bias=bias,
        value_bias=value_bias,
        mask=mask,
        causal=causal,
        lengths=lengths,
        documents=documents,
        scale=scale,
        dropout=dropout,
        qkv=qkv,
    )
    return BACKENDS[_chosen(request, backend)].forward(request)


@dataclass(frozen=True)
class Explanation:
    """Which backend a call would run on, why not on each other one, and whether it gives the same bits every time."""

    backend: str
    reason: str
    others: dict[str, str]
    not_deterministic: str | None = None  # why not; None: it is deterministic

    @property
    def deterministic(self) -> bool:
        """Whether two runs on one machine give the same bits, gradients included."""
        return self.not_deterministic is None

    def __str__(self) -> str:
        why = self.not_deterministic
        lines = [f"{self.backend}: {self.reason}"]
        lines.append("  deterministic" if why is None else f"  not deterministic: {why}")
        lines += [f"  not {name}: {why}" for name, why in self.others.items()]
        return "\n".join(lines)


def explain(*args: Any, **kwargs: Any) -> Explanation:
    """Say which backend `attention` would run with these arguments, and why each other one would not."""
    bound = signature(attention).bind(*args, **kwargs)
    bound.apply_defaults()
    backend = bound.arguments.pop("backend")
    request = checked(**bound.arguments)
    chosen = _chosen(request, backend)
    order = _preference(request)
    reason = "asked for by name" if backend != "auto" else order[chosen]
    others = {}
    for name in BACKENDS:
        if name != chosen:
            cannot = BACKENDS[name].why_not(request)
            others[name] = cannot or f"it would run, but {chosen} is preferred ({reason})"
    return Explanation(chosen, reason, others, BACKENDS[chosen].why_not_deterministic(request))


def _chosen(request: Request, backend: str) -> str:
    if backend != "auto":
        if backend not in BACKENDS:
            raise ValueError(f"backend: expected one of auto, {', '.join(BACKENDS)}, got {backend!r}.")
        reason = BACKENDS[backend].why_not(request)
        if reason is not None:
            raise NotImplementedError(f"backend {backend!r} cannot run this call: {reason}. Use backend='auto'.")
        return backend
    return next(name for name in _preference(request) if BACKENDS[name].why_not(request) is None)


def _preference(request: Request) -> dict[str, str]:
    """Backends from the most to the least wanted for this call, each with the reason; last, what runs everything."""
    order = _wanted(request)
    order.setdefault("eager", "the only one that runs this call")
    return order


def _wanted(request: Request) -> dict[str, str]:
    bias = request.bias
    if request.q.device.type != "cpu":
        if bias is None and request.value_bias is None:
            plain = request.needs_grad and request.q.dtype != torch.float32
            if plain and triton.INSTALLED and triton.is_one_tile(request):
                return {"triton": "the score matrix is one tile: its backward pass makes each score once"}
            if triton.INSTALLED and triton.is_faster_without_bias(request):
                return {"triton": "fused kernels, here faster than torch's; there is no bias"}
            if not (request.masking.empty or request.masking.only_causal):
                return {"triton": "fused kernels that need no matrix for the mask", "sdpa": "torch's kernels"}
            return {"sdpa": "torch's fused kernels; there is no bias"}
        joined = sdpa.widens(request) and not (triton.INSTALLED and triton.takes_factors(request))
        if joined and request.k.shape[-2] >= (JOINED_FROM if request.needs_grad else 4 * JOINED_FROM):
            return {"sdpa": "torch's fused kernels; at this length a low-rank bias is best joined to q and k"}
        return {"triton": "fused kernels that take the bias as it is", "sdpa": "torch's kernels, a dense bias"}
    if request.needs_grad or request.q.shape[-2] < NATIVE_FROM:
        return _otherwise(request)
    return {"native": "our own kernel, compiled for this CPU; no gradient is needed", **_otherwise(request)}


def _otherwise(request: Request) -> dict[str, str]:
    """On the CPU, where the native kernel is not wanted or cannot run."""
    bias = request.bias
    if bias is None and request.value_bias is None:
        return {"sdpa": "torch's fused kernel; there is no bias"}
    if request.needs_grad and request.q.shape[-2] * request.k.shape[-2] <= SHORT:
        return {"matrix": "the sequences are short: the score matrix is no larger than q, k and v"}
    if request.value_bias is None and bias is not None and not request.bias_needs_grad and _at_hand(bias):
        return {"sdpa": "torch's fused kernel; the bias needs no gradient and its matrix costs little"}
    return {"blockwise": "linear memory; tiles of the bias and sums of its gradient are made block by block"}


def _at_hand(bias: Bias) -> bool:
    """Whether the dense matrix is there already, or is a plain copy of few values, shared by the batch."""
    return not bias.needs_query and (
        all(
            term.is_frozen or isinstance(term, Dense) or (isinstance(term, Toeplitz) and term.batch == 1)
            for term in cast("Sequence[Bias]", bias.terms)
        )
        or bias.is_frozen
    )
