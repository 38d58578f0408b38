"""Words in and words out: embeddings, and the loss of naming words, with as few passes over a vocabulary as there are.

For a CPU, where a tensor of the size of a vocabulary takes longer to make than to fill: the scores of all words of a
batch are never in memory at once, and the gradients of words that were read join that of the words to be named.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

# Scores that one product makes: enough rows that reading the weights is not what takes the time (by trial, on two
# cores). And scores that are worked on at a time: 1 MiB in float32, which stays in a core's cache.
PRODUCT = 2**23
PIECE = 2**18


def read(weight: Tensor, *ids: Tensor) -> tuple[Tensor, ...]:  # (V, E) and (...) to (..., E) for each, then (V, E)
    """The rows of a weight at `ids`, and the weight, for `loss_of_words` and nothing else.

    Backwards, the rows' gradients are added in place to the weight's, which the loss has made and hands over.
    """
    return cast(tuple[Tensor, ...], _Reading.apply(weight, *ids))  # type: ignore[no-untyped-call]


class _Reading(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, *ids: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(weight, *ids)
        return (*(F.embedding(some, weight) for some in ids), weight.view_as(weight))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        _check_first()
        weight, *ids = ctx.saved_tensors
        total = torch.zeros_like(weight) if grads[-1] is None else grads[-1]
        for some, grad in zip(ids, grads, strict=False):
            if grad is not None:
                total.index_add_(0, some.flatten(), grad.flatten(0, -2))
        return (total, *(None for _ in ids))


def loss_of_words(
    x: Tensor,  # (N, E)
    words: Tensor,  # (V, E)
    labels: Tensor,  # (N,)
    smoothing: float,
    count: float,
) -> Tensor:
    """`smoothed_cross_entropy(x @ words.T, labels, smoothing, count)`, and its gradients in the same pass."""
    wants_grads = torch.is_grad_enabled() and (x.requires_grad or words.requires_grad)
    return cast(Tensor, _Loss.apply(x, words, labels, smoothing, count, wants_grads))  # type: ignore[no-untyped-call]


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, words: Tensor, labels: Tensor, smoothing: float, count: float, wants_grads: bool
    ) -> Tensor:
        ctx.save_for_backward(x, words, labels)
        ctx.choices = (smoothing, count)
        loss, ctx.grads = _worked_out(x, words, labels, smoothing, count, wants_grads)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        _check_first()
        made, ctx.grads = ctx.grads, None
        if made is None:  # a second backward pass
            x, words, labels = ctx.saved_tensors
            smoothing, count = ctx.choices
            _, made = _worked_out(x, words, labels, smoothing, count, True)
        grad_x, grad_words = made if grads[0] == 1 else (part * grads[0] for part in made)
        return grad_x, grad_words, None, None, None, None


def _check_first() -> None:
    """torch's once_differentiable would not reach all inputs: a second derivative would be lost in silence."""
    if torch.is_grad_enabled():  # by create_graph
        raise NotImplementedError(
            "loss: expected one derivative, because gradients are made with the loss, got create_graph=True. Take the "
            "second one of the whole output: loss_only=False."
        )


def _worked_out(
    x: Tensor, words: Tensor, labels: Tensor, smoothing: float, count: float, wants_grads: bool
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:  # the loss, and the gradients of x and words
    total, size = x.new_zeros(()), words.shape[0]
    products = max(1, -(-len(x) * size // PRODUCT))
    rows = max(1, -(-len(x) // products))
    scores = x.new_empty(rows, size)
    grad_x, grad_words = torch.empty_like(x), torch.empty_like(words) if len(x) else torch.zeros_like(words)
    for start in range(0, len(x), rows):
        some = x[start : start + rows]
        z = torch.mm(some, words.T, out=scores[: len(some)])
        pieces = max(1, PIECE // size)
        parts = (torch.split(each, pieces) for each in (z, labels[start : start + rows]))
        for piece, y in zip(*parts, strict=True):
            total += _softened(piece, y, smoothing, count)
        if wants_grads:
            torch.mm(z, words, out=grad_x[start : start + rows])
            torch.addmm(grad_words, z.T, some, beta=0 if start == 0 else 1, out=grad_words)
    return total / count, (grad_x, grad_words) if wants_grads else None


def _softened(z: Tensor, y: Tensor, smoothing: float, count: float) -> Tensor:
    """The sum of the losses of scores z, (N, V), in whose place their gradient is left.

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
