"""NumPy arrays out of torch tensors, without a copy where one is not needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]


def array(name: str, tensor: Tensor) -> Array:
    """The values of a tensor: a view of float32 and float64 on the CPU, float32 of narrower types."""
    tensor = tensor.detach().cpu()
    if tensor.is_floating_point() and tensor.dtype not in (torch.float32, torch.float64):
        tensor = tensor.float()
    values: Array = tensor.numpy()
    if not np.isfinite(values).all():
        raise ValueError(
            f"{name}: expected finite weights, got NaN or infinity. The file is damaged, or training diverged."
        )
    return values
