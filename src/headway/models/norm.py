"""A LayerNorm whose output stays in half precision under autocast."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.running import autocast_dtype


class LayerNorm(nn.LayerNorm):
    """LayerNorm computed in float32 whose output, under autocast, has autocast's dtype.

    The output of torch's LayerNorm would be float32: every layer's output would be written, read and saved for the
    backward pass at twice the size, in addition to the half-precision copy that the next matrix product takes. When
    compiled, residual sum and norm are one kernel, which computes in float32 and rounds once.
    """

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        lowered = autocast_dtype(y.device.type)
        return y if lowered is None or y.dtype != torch.float32 else y.to(lowered)
