"""The best of many scores, and what they sum to."""

from __future__ import annotations

import torch
from torch import Tensor


def top(z: Tensor, count: int, group: int = 128) -> tuple[Tensor, Tensor]:  # (..., V) to (..., count) twice
    """z.topk(count) by way of the greatest of each group of words: the best are in the `count` best groups.

    torch's topk sorts; the greatest of a group is a plain pass over the scores.
    """
    groups = z.shape[-1] // group
    if z.device.type != "cpu" or groups < 4 * count:
        best, index = z.topk(count, dim=-1)
        return best, index
    grouped = z[..., : groups * group].reshape(*z.shape[:-1], groups, group)
    which = grouped.amax(-1).topk(count, dim=-1).indices  # (..., count)
    near = grouped.gather(-2, which[..., None].expand(*which.shape, group)).flatten(-2)
    near = torch.cat([near, z[..., groups * group :]], dim=-1)
    best, index = near.topk(count, dim=-1)
    inside = index < count * group
    from_group = which.gather(-1, (index // group).clamp(max=count - 1)) * group + index % group
    return best, torch.where(inside, from_group, index - count * group + groups * group)


def logsumexp(z: Tensor, rows: int = 8) -> Tensor:  # (..., V) to (...)
    """z.logsumexp(-1); on a CPU a few rows at a time, so that what torch writes between its passes stays in caches."""
    if z.device.type != "cpu":
        return z.logsumexp(-1)
    return torch.cat([part.logsumexp(-1) for part in torch.split(z.flatten(0, -2), rows)]).view(z.shape[:-1])
