"""torch's scaled_dot_product_attention: fed a dense bias, or a Toeplitz or low-rank one without any n x n matrix."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from headway.attention.request import Plan, Request
from headway.bias import LowRank, Toeplitz
from headway.bias.base import rounded
from headway.running import is_transformed, must_be_deterministic, without_autocast

# From this query length on, two flips of n x D cost about as little as reading a kept n x n matrix, and need none.
# Chosen by trial on two cores: at 512 the two are equal, at 2048 flipping is clearly faster.
FLIP_FROM = 512

# On a GPU torch prefers FlashAttention-2; cuDNN's kernels are faster on Hopper (benchmarks/results), but each new shape
# costs it a search. So it is preferred where shapes are few: whole rows of training and of long batches.
CUDNN_FROM = 128
CUDNN_FIRST = (
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
)


def plan(request: Request) -> Plan | str:
    """Plan the call, or say why this backend cannot run it."""
    if request.value_bias is not None:
        return "torch's attention does not give the weights that a value bias needs"
    inputs_need_grad = any(t.requires_grad for t in (request.q, request.k, request.v))
    if request.q.device.type == "cuda" and request.bias_needs_grad and not inputs_need_grad:
        return "torch's kernels keep nothing for a backward pass where q, k and v need no gradient but the bias does"
    if request.has_tangent or _is_nested():
        return "torch's kernels carry no derivative forward, and have no second one"
    return Plan(forward, _why_not_deterministic(request))


def _why_not_deterministic(request: Request) -> str | None:
    """Reason why two runs of the call may give different bits, or None."""
    if request.q.device.type == "cpu" or not request.needs_grad or must_be_deterministic():
        return None
    return "torch's backward passes on a GPU add up in any order unless torch.use_deterministic_algorithms(True)"


def forward(request: Request) -> Tensor:  # (B, H, Lq, Dv)
    request = _readable(request)
    q, k, v = request.q, request.k, request.v
    if _flips(request):
        return _flipped(request)
    if widens(request):
        return _widened(request)
    allowed = None
    causal = False
    if _is_theirs(request) and request.bias is None:
        causal = True
    else:
        allowed = request.masking.dense(q.device)
    rows = None
    if allowed is not None:
        if not request.masking.only_causal:
            k, v = _without_unseen(request, allowed)
        rows = allowed.any(-1, keepdim=True)  # (B|1, H|1, Lq, 1): queries that see anything
        allowed = allowed | ~rows  # the others attend everywhere, finitely, and are zeroed below
    addend: Tensor | None = allowed
    if request.bias is not None:
        if request.bias.needs_query:
            with without_autocast(q.device.type):
                dtype = torch.promote_types(q.dtype, torch.float32)
                matrix = request.bias.at_least(dtype).dense(q, k_len=k.shape[-2], scale=request.scale)
            addend = rounded(matrix, q.dtype, allowed)
        else:
            addend = request.bias.addend(q.dtype, allowed)
    if addend is not None:
        addend = addend.expand(q.shape[0], q.shape[1], -1, -1)
    if addend is None:
        return _plain(request, q, k, v, causal)
    output = F.scaled_dot_product_attention(
        q, k, v, addend, request.dropout, scale=request.scale, enable_gqa=request.groups > 1
    )
    return output if rows is None else output.masked_fill(~rows, 0.0)


def _readable(request: Request) -> Request:
    """The same call as torch's kernels for GPUs can read it.

    They need rows that begin at 16 bytes: torch checks this for some kernels only, and others compute garbage. They
    also need a positive scale: 0 times the -inf of a mask is NaN, and a negative scale makes the lowest score highest.
    """
    if request.q.device.type == "cpu":
        return request
    q, k, v = (
        t if _is_aligned(t) else t.clone(memory_format=torch.contiguous_format)
        for t in (request.q, request.k, request.v)
    )
    if request.scale > 0:
        return replace(request, q=q, k=k, v=v)
    if request.scale == 0:
        return replace(request, q=q * 0.0, k=k, v=v, scale=1.0)
    return replace(request, q=-q, k=k, v=v, scale=-request.scale)


def _is_aligned(t: Tensor) -> bool:
    size = t.element_size()
    if t.shape[3] * size % 16 != 0:  # torch pads such widths, and reads its own copies
        return True
    steps = [t.stride(axis) for axis in range(3) if t.shape[axis] > 1]
    offset = 0 if torch.compiler.is_compiling() else t.storage_offset()  # which torch.compile cannot trace
    return t.stride(3) == 1 and all(step * size % 16 == 0 for step in (*steps, offset))


def _is_theirs(request: Request) -> bool:
    """Whether torch's own causal order is ours: lengths agree, and a masked score stays lowest when it is scaled."""
    return request.masking.only_causal and request.q.shape[-2] == request.k.shape[-2] and request.scale > 0


def _is_nested() -> bool:
    """Whether one transform of torch.func is within another: an outer one's tangents cannot be seen."""
    return is_transformed() and (torch._C._functorch.maybe_current_level() or 0) > 1


def _without_unseen(request: Request, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values with zeros where no query may look: torch adds a mask to scores, and NaN would stay NaN."""
    seen = allowed.any(-2)  # (B|1, H|1, Lk)
    if seen.shape[1] > 1 and request.groups > 1:
        seen = seen.view(seen.shape[0], -1, request.groups, seen.shape[2]).any(2)
    return request.k.masked_fill(~seen[..., None], 0.0), request.v.masked_fill(~seen[..., None], 0.0)


def _plain(request: Request, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Without a matrix of any kind."""

    def run() -> Tensor:
        return F.scaled_dot_product_attention(
            q, k, v, None, request.dropout, causal, scale=request.scale, enable_gqa=q.shape[1] != k.shape[1]
        )

    q_len, k_len = q.shape[-2], k.shape[-2]
    if q.device.type == "cuda" and q_len == k_len and q_len >= CUDNN_FROM and q_len % 64 == 0:
        with sdpa_kernel(list(CUDNN_FIRST), set_priority=True):
            return run()
    return run()


def widens(request: Request) -> bool:
    """Whether a low-rank bias can join q and k: on a GPU, where torch's fused kernels take no bias but any width."""
    q, bias = request.q, request.bias
    return (
        isinstance(bias, LowRank)
        and q.device.type == "cuda"
        and q.dtype in (torch.float16, torch.bfloat16)
        and request.scale != 0
        and q.shape[-1] + bias.left.shape[-1] <= 256
        and (q.shape[-1] + bias.left.shape[-1]) % 8 == 0
        and (request.masking.empty or _is_theirs(request))
    )


def _widened(request: Request) -> Tensor:
    """scale q . k + left . right as one product: [q, left / scale] . [k, right], so that nothing n x n exists."""
    q, k, v, bias = request.q, request.k, request.v, request.bias
    assert isinstance(bias, LowRank)
    if request.groups > 1:  # each query head has a right factor of its own
        k, v = (t.repeat_interleave(request.groups, 1) for t in (k, v))
    wide_q, wide_k = _beside(q, bias.left / request.scale), _beside(k, bias.right)
    return _plain(request, wide_q, wide_k, v, request.masking.causal)


def _beside(x: Tensor, factor: Tensor) -> Tensor:  # (B, H, L, D), (B|1, H|1, L, R) -> (B, H, L, D + R)
    """In the layout of x, rows or heads first. torch is quick to join what is contiguous, and slow otherwise."""
    factor = factor.to(x.dtype).expand(*x.shape[:3], -1)
    if x.transpose(1, 2).is_contiguous():
        return torch.cat([x.transpose(1, 2), factor.transpose(1, 2).contiguous()], -1).transpose(1, 2)
    return torch.cat([x, factor.contiguous()], -1)


def _flips(request: Request) -> bool:
    """Whether the bias can be read in place: a fixed Toeplitz, on the CPU kernel, which takes any strides."""
    q = request.q
    return (
        isinstance(request.bias, Toeplitz)
        and not request.bias_needs_grad
        and request.dropout == 0.0
        and q.device.type == "cpu"
        and q.dtype == torch.float32
        and q.shape[-2] >= FLIP_FROM
        and q.shape[-1] == request.v.shape[-1]
        and (request.masking.empty or (request.masking.only_causal and q.shape[-2] <= request.k.shape[-2]))
        and not torch.compiler.is_compiling()
    )


def _flipped(request: Request) -> Tensor:
    """With the queries in reverse order a Toeplitz bias has strides (1, 1): bias[i', j] = values[j + i'].

    So the kernel reads the Lq + Lk - 1 values themselves and nothing n x n exists. Causal order is an offset too.
    """
    q, k, v = request.q, request.k, request.v
    assert isinstance(request.bias, Toeplitz)
    q_len, k_len = q.shape[-2], k.shape[-2]
    values = request.bias.values.detach().to(q.dtype)
    if request.masking.causal:
        future = torch.arange(-(q_len - 1), k_len, device=q.device) > k_len - q_len
        values = values.masked_fill(future, -torch.inf)
    values = values.contiguous()
    strides = values.stride()
    view = values.as_strided((*values.shape[:2], q_len, k_len), (strides[0], strides[1], 1, 1))
    view = view.expand(q.shape[0], q.shape[1], -1, -1)
    output = F.scaled_dot_product_attention(q.flip(-2), k, v, view, scale=request.scale, enable_gqa=request.groups > 1)
    return output.flip(-2)
