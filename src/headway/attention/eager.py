"""The oracle: the formula as written, in whatever dtype comes, differentiable any number of times."""

from __future__ import annotations

import torch
from torch import Tensor

from headway.attention.request import Plan, Request
from headway.running import must_be_deterministic, without_autocast


def plan(request: Request) -> Plan:
    """Plan the call; the oracle runs everything."""
    return Plan(forward, _why_not_deterministic(request))


def _why_not_deterministic(request: Request) -> str | None:
    """Reason why two runs of the call may give different bits, or None."""
    if request.q.device.type == "cpu" or must_be_deterministic():
        return None
    of_keys = request.needs_grad and request.bias is not None and request.bias.needs_query
    if of_keys or request.value_bias is not None:
        return "torch's scatter_add on a GPU is not deterministic unless torch.use_deterministic_algorithms(True)"
    return None


def forward(request: Request) -> Tensor:  # (B, H, Lq, Dv)
    """softmax(scale * q k^T + bias) (v + value_bias), with rows that may attend to nothing set to zero."""
    output, _ = weighted(request)
    return output


def weighted(request: Request) -> tuple[Tensor, Tensor]:
    """The output and the attention weights before dropout, (B, H, Lq, Lk), for those who want to look at them."""
    q = request.q
    k, v = request.expanded()
    dtype = torch.promote_types(q.dtype, torch.float32)  # half precision: sums and softmax in float32
    with without_autocast(q.device.type):
        scores = ((q * request.scale) @ k.transpose(-1, -2)).to(dtype)  # scaled first: float16 ends at 65504
        if request.bias is not None:
            bias = request.bias.at_least(dtype).dense(q, k_len=k.shape[-2], scale=request.scale)
            scores = scores + bias.to(dtype)
        allowed = request.masking.dense(q.device)
        if allowed is not None:
            # Not a low number, which a bias may have too. A row without any key stays finite, as does its gradient.
            scores = scores.masked_fill(~allowed, -torch.inf).masked_fill(~allowed.any(-1, keepdim=True), 0.0)
        weights = scores.softmax(-1)
        if allowed is not None:
            weights = weights.masked_fill(~allowed, 0.0)
        dropped = torch.nn.functional.dropout(weights, request.dropout)
        output = dropped.to(v.dtype) @ v
        if request.value_bias is not None:
            output = output + request.value_bias.weigh(dropped).to(output.dtype)
    return output, weights
