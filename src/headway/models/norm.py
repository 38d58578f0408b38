"""LayerNorm that keeps the layers' outputs in half precision under autocast."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.running import autocast_dtype


class LayerNorm(nn.LayerNorm):
    """LayerNorm in float32 whose output, under autocast, has autocast's dtype.

    torch's own leaves float32 behind it: every layer's output would then be written, read and kept for the backward
    pass at twice the size, beside the half-precision copy that the next matrix product takes. Compiled, sum and norm
    are one kernel that works in float32 and rounds once.
    """

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        lowered = autocast_dtype(y.device.type)
        return y if lowered is None or y.dtype != torch.float32 else y.to(lowered)
