"""What torch is about while our code runs: whether values may be read, and whether autocast lowers products."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.autograd import forward_ad


def is_transformed() -> bool:
    """Whether torch.func (vmap, grad, jvp) is at work, where a value may stand for many."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def carries_tangents() -> bool:
    """Whether forward-mode differentiation is on its way through, which many operators would lose in silence."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def may_read(t: Tensor) -> bool:
    """Whether looking at values costs nothing: on the CPU, not while compiling or under torch.func. Elsewhere it would
    wait for the device, break the graph, or raise."""
    return t.device.type == "cpu" and not torch.compiler.is_compiling() and not is_transformed()


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """What autocast lowers products to, or None where it is off. The meta device has none."""
    if device_type == "meta" or not torch.is_autocast_enabled(device_type):
        return None
    return torch.get_autocast_dtype(device_type)


def must_be_deterministic() -> bool:
    """Whether torch.use_deterministic_algorithms(True) is in force, not only as a warning."""
    enabled = torch.are_deterministic_algorithms_enabled()
    return enabled and not torch.is_deterministic_algorithms_warn_only_enabled()


def without_autocast(device_type: str) -> AbstractContextManager[object]:
    """Products as they are written: those of a bias must not lose digits that nobody gave away."""
    return nullcontext() if device_type == "meta" else torch.autocast(device_type, enabled=False)
