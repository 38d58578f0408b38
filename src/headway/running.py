"""The state of torch, Triton and models: whether values may be read, which transformations and modes are active."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

TRITON_INSTALLED = find_spec("triton") is not None
TRITON_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # kernels on CPU tensors, for tests


def is_transformed() -> bool:
    """Return whether a transformation of torch.func (vmap, grad, jvp) is active."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def carries_tangents() -> bool:
    """Return whether forward-mode differentiation is active, whose tangents many operators would drop silently."""
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def may_read(t: Tensor) -> bool:
    """Return whether values may be read: on the CPU, and neither while compiling nor under torch.func.

    Elsewhere reading would wait for the device, break the graph, or raise.
    """
    return t.device.type == "cpu" and not torch.compiler.is_compiling() and not is_transformed()


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """Return the dtype that autocast lowers products to, or None if it is off."""
    if device_type == "meta" or not torch.is_autocast_enabled(device_type):
        return None
    return torch.get_autocast_dtype(device_type)


def must_be_deterministic() -> bool:
    """Return whether torch.use_deterministic_algorithms(True) is set, and not only to warn."""
    enabled = torch.are_deterministic_algorithms_enabled()
    return enabled and not torch.is_deterministic_algorithms_warn_only_enabled()


def without_autocast(device_type: str) -> AbstractContextManager[object]:
    """Return a context without autocast, in which products keep the precision of their factors."""
    return nullcontext() if device_type == "meta" else torch.autocast(device_type, enabled=False)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put a model in evaluation mode; afterwards, put those modules that were in training mode back into it."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
