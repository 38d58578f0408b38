"""`attention` and `explain`: check the call, choose a backend, run it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any, cast

import torch
from torch import Tensor

from headway.attention import blockwise, eager, flex, matrix, native, sdpa, triton
from headway.attention.request import Documents, Plan, Request, checked
from headway.bias import Bias, Dense, Toeplitz, ValueBias
from headway.running import must_be_deterministic

BACKENDS: dict[str, Callable[[Request], Plan | str]] = {  # a plan for the call, or the reason why there is none
    "triton": triton.plan,
    "native": native.plan,
    "sdpa": sdpa.plan,
    "matrix": matrix.plan,
    "blockwise": blockwise.plan,
    "flex": flex.plan,
    "eager": eager.plan,
}
Plans = dict[str, Plan | str]  # of one call, each made when it is first asked for

# Up to this many scores a head, the whole matrix is no larger than q, k and v, and one pass over it beats a loop over
# blocks: chosen by trial on two cores.
SHORT = 128 * 128

# From this many queries on, which fill a vector, the native kernel is faster than torch's, with a Toeplitz bias or with
# none: by trial on two cores with AVX-512, and with AVX2.
NATIVE_FROM = 16

# From this many keys on, training with a low-rank bias is faster as one wider product than as two: measured on an H200
# with rank and width 64 (benchmarks/results). Inference gains from four times as many on, where no Hopper kernel fits.
JOINED_FROM = 2048

# Keys: without a bias, our training on Hopper is faster than torch's at 512 and slower at 2048; inference is faster up
# to 64, where a large batch takes longer than Python does, slower at 128, and faster from 512 on (benchmarks/results).
TRAINED_UP_TO, INFERRED_FROM, INFERRED_UP_TO = 1024, 512, 64
MEASURED_WIDTH = 64  # of heads
LARGE_BATCH = 4096  # sequences times heads
ONE_TILE_FROM = 16  # queries and keys


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
    return _planned(request, backend).run(request)


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
    return _planned(request, backend).run(request)


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
    plans: Plans = {}
    chosen, reason, plan = _chosen(request, backend, plans)
    others = {}
    for name in BACKENDS:
        if name != chosen:
            other = _plan(request, name, plans)
            others[name] = other if isinstance(other, str) else f"it would run, but {chosen} is preferred ({reason})"
    return Explanation(chosen, reason, others, plan.not_deterministic)


def _planned(request: Request, backend: str) -> Plan:
    return _chosen(request, backend, {})[2]


def _chosen(request: Request, backend: str, plans: Plans) -> tuple[str, str, Plan]:
    """Choose a backend; return its name, the reason and its plan."""
    if backend != "auto":
        if backend not in BACKENDS:
            raise ValueError(f"backend: expected one of auto, {', '.join(BACKENDS)}, got {backend!r}.")
        plan = _plan(request, backend, plans)
        if isinstance(plan, str):
            raise NotImplementedError(f"backend {backend!r} cannot run this call: {plan}. Use backend='auto'.")
        return backend, "asked for by name", plan
    wanted = _wanted(request, plans)
    wanted.setdefault("eager", "the only one that runs this call")
    for name, reason in wanted.items():
        plan = _plan(request, name, plans)
        if not isinstance(plan, str):
            return name, reason, plan
    raise AssertionError("eager runs every call")


def _plan(request: Request, backend: str, plans: Plans) -> Plan | str:
    if backend not in plans:
        plans[backend] = BACKENDS[backend](request)
    return plans[backend]


def _wanted(request: Request, plans: Plans) -> dict[str, str]:
    """Backends from the most to the least wanted for this call, each with the reason; `eager` runs what they do not."""
    if request.q.device.type != "cpu":
        return _wanted_on_gpu(request, _plan(request, "triton", plans))
    if request.needs_grad or request.q.shape[-2] < NATIVE_FROM:
        return _otherwise(request)
    return {"native": "our own kernel, compiled for this CPU; no gradient is needed", **_otherwise(request)}


def _wanted_on_gpu(request: Request, fused: Plan | str) -> dict[str, str]:
    choice: triton.Choice | None = None if isinstance(fused, str) else fused.kernels
    if request.bias is None and request.value_bias is None:
        if choice is not None and _is_short_training(request, choice):
            return {"triton": "the score matrix is one tile: its backward pass makes each score once"}
        if choice is not None and _is_faster_without_bias(request, choice):
            return {"triton": "fused kernels, here faster than torch's; there is no bias"}
        if not (request.masking.empty or request.masking.only_causal):
            return {"triton": "fused kernels that need no matrix for the mask", "sdpa": "torch's kernels"}
        return {"sdpa": "torch's fused kernels; there is no bias"}
    reads_factors = choice is not None and choice.on_hopper and not choice.padded and not request.needs_grad
    long = request.k.shape[-2] >= (JOINED_FROM if request.needs_grad else 4 * JOINED_FROM)
    if long and not reads_factors and sdpa.widens(request):
        return {"sdpa": "torch's fused kernels; at this length a low-rank bias is best joined to q and k"}
    return {"triton": "fused kernels that take the bias as it is", "sdpa": "torch's kernels, a dense bias"}


def _is_short_training(request: Request, choice: triton.Choice) -> bool:
    trains = request.needs_grad and request.q.dtype != torch.float32
    return trains and choice.one_tile and min(request.q.shape[2], request.k.shape[2]) >= ONE_TILE_FROM


def _is_faster_without_bias(request: Request, choice: triton.Choice) -> bool:
    """Whether a call without a bias is faster on the Hopper kernels than on torch's.

    In training: with dropout, which costs cuDNN much, up to TRAINED_UP_TO keys, and where cuDNN is ruled out because it
    is not deterministic. In inference: from INFERRED_FROM queries and keys on and, in a large batch, up to
    INFERRED_UP_TO.
    """
    if not choice.on_hopper or choice.padded or request.q.stride(3) != 1 or choice.width != MEASURED_WIDTH:
        return False
    q, k = request.q, request.k
    if request.needs_grad:
        return request.dropout > 0 or k.shape[2] <= TRAINED_UP_TO or must_be_deterministic()
    longest = max(q.shape[2], k.shape[2])
    return min(q.shape[2], k.shape[2]) >= INFERRED_FROM or (
        longest <= INFERRED_UP_TO and q.shape[0] * q.shape[1] >= LARGE_BATCH
    )


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
