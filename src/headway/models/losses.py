"""Losses of the heads: in float32 or wider, and 0, not NaN, where a batch has no label."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -100  # a label that is none


def cross_entropy(
    logits: Tensor,  # (..., classes)
    labels: Tensor,  # (...), -100 = none
    count: Tensor | int | None = None,
) -> Tensor:
    """The sum over labels, divided by `count` or, unless it is given, by their number."""
    total = F.cross_entropy(
        precise(logits).flatten(0, -2), labels.flatten().long(), ignore_index=IGNORED, reduction="sum"
    )
    return total / number(labels, count)


def number(labels: Tensor, count: Tensor | int | None) -> Tensor | int:
    """What to divide a sum over labels by: `count` or, unless it is given, how many there are; at least 1."""
    found = (labels != IGNORED).sum() if count is None else count
    return found.clamp(min=1) if isinstance(found, Tensor) else max(1, found)


def precise(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def span_loss(logits: Tensor, positions: Tensor) -> Tensor:  # (B, L) and (B,) or (B, 1)
    """Of one end of an answer; positions beyond the sequence do not count."""
    positions = positions.flatten().clamp(min=0)
    return cross_entropy(logits, positions.masked_fill(positions >= logits.shape[1], IGNORED))
