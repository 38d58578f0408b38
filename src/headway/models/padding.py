"""Padding: converts the masks that callers give into the two forms that attention takes."""

from __future__ import annotations

import torch
from torch import Tensor

from headway.attention.request import check_lengths
from headway.running import may_read


def lengths_or_mask(
    attention_mask: Tensor | None,  # (B, L); or boolean (B, Lq, Lk) or (B, H|1, Lq, Lk)
    lengths: Tensor | None,  # (B,)
    shape: tuple[int, int],  # B and L of the input
) -> tuple[Tensor | None, Tensor | None]:  # lengths (B,), mask (B, H|1, Lq|1, Lk)
    """Return `lengths` and `mask` for attention, at most one of which is not None.

    On the CPU a mask (B, L) is read: all ones mean no mask, and ones followed by zeros mean lengths, which attention
    handles faster. On a GPU and under torch.compile reading it would wait for the device, so it stays a mask. That is
    exact as well; callers who know the lengths pass them.
    """
    if attention_mask is None:
        if lengths is not None:
            check_lengths(lengths, *shape)
        return lengths, None
    if lengths is not None:
        raise ValueError("lengths: got attention_mask as well. Both describe the padding; pass one of them.")
    if not isinstance(attention_mask, Tensor):
        raise TypeError(f"attention_mask: expected a tensor (B, L), got {type(attention_mask).__name__}.")
    if attention_mask.dim() in (3, 4):
        if attention_mask.dtype != torch.bool:
            raise TypeError(
                f"attention_mask: expected boolean where it has {attention_mask.dim()} axes, True = may attend, "
                f"got {attention_mask.dtype}. Compare to make it boolean (mask > 0)."
            )
        rows = attention_mask.shape[0]
        if attention_mask.shape[-1] != shape[1] or (rows != 1 and rows != shape[0]):
            raise ValueError(
                f"attention_mask: expected a first axis of {shape[0]} and a last one of {shape[1]} (from the input), "
                f"got {tuple(attention_mask.shape)}."
            )
        return None, attention_mask[:, None] if attention_mask.dim() == 3 else attention_mask
    if tuple(attention_mask.shape) != shape:
        raise ValueError(
            f"attention_mask: expected {shape} (from the input), or boolean (B, Lq, Lk) or (B, H, Lq, Lk), "
            f"got {tuple(attention_mask.shape)}."
        )
    keep = attention_mask != 0
    if may_read(attention_mask):
        counted = keep.sum(1)
        if torch.equal(keep, torch.arange(shape[1]) < counted[:, None]):
            return (None if bool(keep.all()) else counted), None
    return None, keep[:, None, None, :]


def keep_mask(
    lengths: Tensor | None, mask: Tensor | None, length: int
) -> Tensor | None:  # (B, L) boolean, None if there is no padding
    """Return which positions are not padding; raise NotImplementedError for a mask that differs between queries."""
    if lengths is not None:
        return torch.arange(length, device=lengths.device) < lengths[:, None]
    if mask is None:
        return None
    if mask.shape[1] != 1 or mask.shape[2] != 1:
        raise NotImplementedError(
            f"attention_mask: here keys are summed before any query sees them, so that a mask cannot differ between "
            f"queries or heads; got {tuple(mask.shape)}. Pass (B, L), or use attention='full'."
        )
    return mask[:, 0, 0]
