"""Cross entropy with label smoothing, without a float32 copy of all scores."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.models.losses import IGNORED, number, precise


def smoothed_cross_entropy(
    logits: Tensor,  # (..., V)
    labels: Tensor,  # (...), -100 = none
    smoothing: float,
    count: Tensor | int | None = None,
) -> Tensor:
    """The sum over labels, divided by `count` or, unless it is given, by their number; 0 where there is none.

    Paper:    Szegedy et al. (2016), Sec. 7; Vaswani et al. (2017), Sec. 5.4
    Formula:  lse(z) - (1 - smoothing) * z[label] - smoothing * mean(z),  lse(z) = log sum exp z
    Departs:  the weight `smoothing` is spread over all words, the right one included (Szegedy et al.); tensor2tensor
              spreads it over the others, which is the same with smoothing * V / (V - 1)
    """
    logits, labels = logits.flatten(0, -2), labels.flatten()
    if torch.compiler.is_compiling():  # which keeps float32 out of memory itself
        total = F.cross_entropy(
            precise(logits), labels, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
        )
    else:
        total = cast(Tensor, _Smoothed.apply(logits, labels, smoothing))  # type: ignore[no-untyped-call]
    return total / number(labels, count)


class _Smoothed(torch.autograd.Function):
    """The sum of losses; keeps the scores as they came and one number per row, and makes the rest again backwards."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        total = precise(logits.new_zeros(()))
        for part, y in zip(*_chunks(logits, labels), strict=True):
            z = precise(part)
            right = z.gather(-1, y.clamp(min=0)[:, None])[:, 0]
            losses = z.logsumexp(-1) - (1 - smoothing) * right - smoothing * z.mean(-1)
            total += losses.masked_fill(y == IGNORED, 0.0).sum()
        ctx.save_for_backward(logits, labels)
        ctx.smoothing = smoothing
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        logits, labels = ctx.saved_tensors
        smoothing = ctx.smoothing
        if torch.is_grad_enabled():  # by create_graph: nothing in place, so that there is a second derivative
            weight = ((labels != IGNORED) * grads[0])[:, None]
            p = logits.softmax(-1, dtype=weight.dtype)
            right = F.one_hot(labels.clamp(min=0), logits.shape[-1])
            return (weight * (p - (1 - smoothing) * right - smoothing / logits.shape[-1])).to(logits.dtype), None, None
        grad = torch.empty_like(logits)
        for part, y, out in zip(*_chunks(logits, labels, grad), strict=True):
            weight = ((y != IGNORED) * grads[0])[:, None]
            p = part.softmax(-1, dtype=weight.dtype)
            p.scatter_add_(-1, y.clamp(min=0)[:, None], p.new_full((len(y), 1), smoothing - 1))
            out.copy_(p.mul_(weight).sub_(weight * (smoothing / part.shape[-1])))
        return grad, None, None


def _chunks(*parts: Tensor) -> list[tuple[Tensor, ...]]:
    """The rows in pieces: on a CPU such as stay in its caches, elsewhere of 128 MiB."""
    scores = 2**18 if parts[0].device.type == "cpu" else 2**25
    return [torch.split(part, max(1, scores // parts[0].shape[-1])) for part in parts]
