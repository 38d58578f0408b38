"""Cross entropy with label smoothing: from given scores, or fused with the product that makes them.

`smoothed_cross_entropy` takes scores and makes no float32 copy of all of them. `fused_cross_entropy` is for training on
a CPU, where a tensor of the size of the vocabulary takes longer to allocate than to fill. It never holds the scores of
all words of a batch, and its gradients are computed in the same pass.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.models.losses import IGNORED, label_count, upcast

# By trial on two cores: how many scores one product computes, so that reading the weight does not dominate, and how
# many are processed at a time, 1 MiB in float32, which stays in a core's cache.
SCORES_PER_PRODUCT = 2**23
SCORES_PER_PIECE = 2**18


def smoothed_cross_entropy(
    logits: Tensor,  # (..., V)
    labels: Tensor,  # (...), -100 = none
    smoothing: float,
    count: Tensor | int | None = None,
) -> Tensor:
    """Sum the losses over the labels and divide by `count`, by default their number; without labels the loss is 0.

    Paper:    Szegedy et al. (2016), Sec. 7; Vaswani et al. (2017), Sec. 5.4
    Formula:  lse(z) - (1 - smoothing) * z[label] - smoothing * mean(z),  lse(z) = log sum exp z
    Departs:  the weight `smoothing` is spread over all words including the target (Szegedy et al.); tensor2tensor
              spreads it over the others, which equals this with smoothing * V / (V - 1)
    """
    logits, labels = logits.flatten(0, -2), labels.flatten()
    if torch.compiler.is_compiling():  # the compiler fuses the conversion to float32
        total = F.cross_entropy(
            upcast(logits), labels, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing
        )
    else:
        total = cast(Tensor, _Smoothed.apply(logits, labels, smoothing))  # type: ignore[no-untyped-call]
    return total / label_count(labels, count)


class _Smoothed(torch.autograd.Function):
    """The sum of the losses; saves only scores and labels, and computes the softmax again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
        total = upcast(logits.new_zeros(()))
        for part, y in zip(*_chunks(logits, labels), strict=True):
            z = upcast(part)
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
        if torch.is_grad_enabled():  # create_graph: no in-place operation, so that it can be differentiated again
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
    """Split the rows into pieces that fit a CPU's cache, or of 128 MiB on other devices."""
    scores = SCORES_PER_PIECE if parts[0].device.type == "cpu" else 2**25
    return [torch.split(part, max(1, scores // parts[0].shape[-1])) for part in parts]


def lookup_with_weight(
    weight: Tensor, *ids: Tensor
) -> tuple[Tensor, ...]:  # (V, E) and (...) to (..., E) for each, then (V, E)
    """Return the rows of an embedding at `ids`, and the weight itself as `fused_cross_entropy` must take it.

    In the backward pass the gradients of the rows are added in place to the gradient of the weight, which the loss
    hands over. So the returned weight must be passed to `fused_cross_entropy` and used nowhere else.
    """
    return cast(tuple[Tensor, ...], _LookupWithWeight.apply(weight, *ids))  # type: ignore[no-untyped-call]


class _LookupWithWeight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, *ids: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(weight, *ids)
        return (*(F.embedding(some, weight) for some in ids), weight.view_as(weight))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        _refuse_second_derivative()
        weight, *ids = ctx.saved_tensors
        total = torch.zeros_like(weight) if grads[-1] is None else grads[-1]
        for some, grad in zip(ids, grads, strict=False):
            if grad is not None:
                total.index_add_(0, some.flatten(), grad.flatten(0, -2))
        return (total, *(None for _ in ids))


def fused_cross_entropy(
    x: Tensor,  # (N, E)
    words: Tensor,  # (V, E)
    labels: Tensor,  # (N,)
    smoothing: float,
    count: float,
) -> Tensor:
    """Compute `smoothed_cross_entropy(x @ words.T, labels, smoothing, count)` and its gradients in one pass."""
    wants_grads = torch.is_grad_enabled() and (x.requires_grad or words.requires_grad)
    return cast(Tensor, _FusedLoss.apply(x, words, labels, smoothing, count, wants_grads))  # type: ignore[no-untyped-call]


class _FusedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, words: Tensor, labels: Tensor, smoothing: float, count: float, wants_grads: bool
    ) -> Tensor:
        ctx.save_for_backward(x, words, labels)
        ctx.choices = (smoothing, count)
        loss, ctx.grads = _loss_and_grads(x, words, labels, smoothing, count, wants_grads)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        _refuse_second_derivative()
        saved, ctx.grads = ctx.grads, None
        if saved is None:  # a second backward pass
            x, words, labels = ctx.saved_tensors
            smoothing, count = ctx.choices
            _, saved = _loss_and_grads(x, words, labels, smoothing, count, True)
        grad_x, grad_words = saved if grads[0] == 1 else (part * grads[0] for part in saved)
        return grad_x, grad_words, None, None, None, None


def _refuse_second_derivative() -> None:
    """Raise if a second derivative is wanted; torch's once_differentiable would miss some of the inputs."""
    if torch.is_grad_enabled():  # create_graph
        raise NotImplementedError(
            "loss: loss_only=True computes the gradients together with the loss, so that it has no second derivative "
            "(create_graph=True). Call the model with loss_only=False."
        )


def _loss_and_grads(
    x: Tensor, words: Tensor, labels: Tensor, smoothing: float, count: float, wants_grads: bool
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:  # the loss, and the gradients of x and words
    total, size = x.new_zeros(()), words.shape[0]
    products = max(1, -(-len(x) * size // SCORES_PER_PRODUCT))
    rows = max(1, -(-len(x) // products))
    scores = x.new_empty(rows, size)
    grad_x, grad_words = torch.empty_like(x), torch.empty_like(words) if len(x) else torch.zeros_like(words)
    for start in range(0, len(x), rows):
        some = x[start : start + rows]
        z = torch.mm(some, words.T, out=scores[: len(some)])
        pieces = max(1, SCORES_PER_PIECE // size)
        parts = (torch.split(each, pieces) for each in (z, labels[start : start + rows]))
        for piece, y in zip(*parts, strict=True):
            total += _loss_in_place(piece, y, smoothing, count)
        if wants_grads:
            torch.mm(z, words, out=grad_x[start : start + rows])
            torch.addmm(grad_words, z.T, some, beta=0 if start == 0 else 1, out=grad_words)
    return total / count, (grad_x, grad_words) if wants_grads else None


def _loss_in_place(z: Tensor, y: Tensor, smoothing: float, count: float) -> Tensor:
    """Return the sum of the losses of scores z, (N, V), and overwrite z with its gradient.

    Formula:  lse(z) - (1 - smoothing) * z[y] - smoothing * mean(z),  lse(z) = max(z) + log sum exp(z - max(z))
              its derivative by z[j] is softmax(z)[j] - smoothing / V - (1 - smoothing) * [j = y]
    """
    right, mean = z.gather(1, y[:, None]), z.mean(1, keepdim=True)
    greatest = z.amax(1, keepdim=True)
    total = z.sub_(greatest).exp_().sum(1, keepdim=True)
    share = z.new_full((1, 1), -smoothing / z.shape[1] / count)
    torch.addcmul(share, z, 1 / (total * count), out=z)
    z.scatter_add_(1, y[:, None], z.new_full((len(y), 1), (smoothing - 1) / count))
    return (greatest + total.log() - (1 - smoothing) * right - smoothing * mean).sum()
