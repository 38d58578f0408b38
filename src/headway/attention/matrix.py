"""Training on short sequences, on the CPU: the whole score matrix at once, with the backward pass written out.

The formula is the oracle's (`eager.py`). Here each step overwrites the matrix of the one before, and of all matrices
only the weights are kept for the backward pass. The bias comes as its matrix and gets its gradient as one: what that
means for its parameters is torch's to derive.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from headway.attention.request import Plan, Request
from headway.running import without_autocast


def plan(request: Request) -> Plan | str:
    """Plan the call, or say why this backend cannot run it."""
    if request.q.device.type != "cpu":
        return f"it saves passes over memory that count on the CPU only, and q is on {request.q.device.type}"
    if torch.compiler.is_compiling():
        return "what it does by hand torch.compile does to the formula"
    if request.has_tangent or request.is_transformed:
        return "it knows the backward pass alone, and another kind of derivative is asked for"
    return Plan(forward)


def forward(request: Request) -> Tensor:  # (B, H, Lq, Dv)
    q = request.q
    k, v = request.expanded()
    dtype = torch.promote_types(q.dtype, torch.float32)
    with without_autocast("cpu"):
        bias = None
        if request.bias is not None:
            bias = request.bias.at_least(dtype).dense(q, k_len=k.shape[-2], scale=request.scale).to(dtype)
        allowed = request.masking.dense(q.device)
        inputs = q.to(dtype), k.to(dtype), v.to(dtype), bias, allowed, request.scale, request.dropout
        found = _Weighted.apply(*inputs)  # type: ignore[no-untyped-call]
        output, weights = cast("tuple[Tensor, Tensor]", found)
        if request.value_bias is not None:
            output = output + request.value_bias.weigh(weights)
    return output.to(q.dtype)


class _Weighted(torch.autograd.Function):
    """The output without a value bias, and the weights after dropout, (B, H, Lq, Lk), for those who need them."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        allowed: Tensor | None,
        scale: float,
        rate: float,
    ) -> tuple[Tensor, Tensor]:
        scores = (q @ k.mT).mul_(scale)
        if bias is not None:
            scores += bias
        if allowed is not None:
            scores.masked_fill_(~allowed, -torch.inf)
        weights = scores.softmax(-1)
        if allowed is not None:
            sees = allowed.any(-1, keepdim=True)
            if not sees.all():
                weights.masked_fill_(~sees, 0.0)
        keep = torch.empty_like(weights).bernoulli_(1 - rate).div_(1 - rate) if rate > 0 else None
        dropped = weights if keep is None else weights * keep
        ctx.set_materialize_grads(False)
        ctx.scale, ctx.bias_shape = scale, None if bias is None else bias.shape
        ctx.save_for_backward(q, k, v, weights, keep)
        return dropped @ v, dropped

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, g_dropped: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # by create_graph; torch's once_differentiable would not reach all inputs
            raise NotImplementedError(
                "attention: the matrix backend has no second derivative. Use backend='eager', which is differentiable "
                "twice; models take it where output_attentions=True."
            )
        with without_autocast("cpu"):
            return _gradients(ctx, g, g_dropped)


def _gradients(ctx: Any, g: Tensor | None, g_dropped: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, weights, keep = ctx.saved_tensors
    dp, dv = g_dropped, None
    if g is not None:
        dv = (weights if keep is None else weights * keep).mT @ g
        dp = g @ v.mT if dp is None else torch.add(g @ v.mT, dp)
    if dp is None:
        return (None,) * 7
    if keep is not None:
        dp = dp * keep
    ds = torch._softmax_backward_data(dp, weights, -1, weights.dtype)
    dq = (ds @ k).mul_(ctx.scale) if ctx.needs_input_grad[0] else None
    dk = (ds.mT @ q).mul_(ctx.scale) if ctx.needs_input_grad[1] else None
    d_bias = ds.sum_to_size(ctx.bias_shape) if ctx.needs_input_grad[3] else None
    return dq, dk, dv, d_bias, None, None, None
