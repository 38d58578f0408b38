"""Losses of the heads: in float32 or wider, and 0 rather than NaN for a batch without labels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORED = -100  # label of positions that have no part in the loss


def cross_entropy(
    logits: Tensor,  # (..., classes)
    labels: Tensor,  # (...), -100 = none
    count: Tensor | int | None = None,
) -> Tensor:
    """Sum the cross entropy over the labels and divide by `count`, by default the number of labels."""
    total = F.cross_entropy(
        upcast(logits).flatten(0, -2), labels.flatten().long(), ignore_index=IGNORED, reduction="sum"
    )
    return total / label_count(labels, count)


def label_count(labels: Tensor, count: Tensor | int | None) -> Tensor | int:
    """Return the divisor of a summed loss: `count`, or by default the number of labels; at least 1."""
    found = (labels != IGNORED).sum() if count is None else count
    return found.clamp(min=1) if isinstance(found, Tensor) else max(1, found)


def upcast(x: Tensor) -> Tensor:
    """Convert half precision to float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def span_loss(logits: Tensor, positions: Tensor) -> Tensor:  # (B, L) and (B,) or (B, 1)
    """Compute the loss of the first or the last token of an answer; positions beyond the sequence are ignored."""
    positions = positions.flatten().clamp(min=0)
    return cross_entropy(logits, positions.masked_fill(positions >= logits.shape[1], IGNORED))
