"""ALiBi: a penalty on the scores that grows linearly with the distance."""

from __future__ import annotations

import torch
from torch import Tensor

from headway.bias import Bias, Toeplitz
from headway.encodings.base import Dimensions, PositionEncoding


class Alibi(PositionEncoding):
    """Linear distance penalty with one fixed slope per head.

    Paper:    Press, Smith and Lewis (2022), "Train Short, Test Long", Sec. 3
    Formula:  bias[h, i, j] = -slope[h] * |j - i|,  slope[h] = 2^(-8 (h + 1) / H)
    Symbols:  m -> slope, (H,)
    Departs:  the paper is causal (j <= i); |j - i| lets encoders use it too. If H is not a power of two, the slopes
              are those of the released code: those of the next lower power P, then every second one of 2P
    Yields:   Toeplitz, no parameters; any length
    Checked:  tests/parity/test_alibi.py

    Values are float32 or wider.
    """

    name = "alibi"
    paper = "Press et al. 2022, Sec. 3"
    places = ("scores",)

    log2_slopes: Tensor  # (H,); stored instead of the slopes because half precision represents them exactly

    def __init__(self, dims: Dimensions, *, sharing: str | None = None) -> None:
        super().__init__(dims, sharing=sharing)
        self.register_buffer("log2_slopes", torch.empty(dims.num_heads), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        heads = self.dims.num_heads
        power = 1 << (heads.bit_length() - 1)
        exponents = [-8 * (h + 1) / power for h in range(power)]
        exponents += [-4 * (2 * h + 1) / power for h in range(heads - power)]
        self.log2_slopes.copy_(torch.tensor(exponents))

    @property
    def slopes(self) -> Tensor:  # (H,)
        return torch.exp2(self.log2_slopes.to(torch.promote_types(self.log2_slopes.dtype, torch.float32)))

    def _bias(
        self, layer: int, q_len: int, k_len: int, q_start: int, segments: Tensor | None, documents: Tensor | None
    ) -> Bias:
        slopes = self.slopes
        distance = torch.arange(-(q_start + q_len - 1), k_len - q_start, device=slopes.device).abs()
        return Toeplitz(-slopes[None, :, None] * distance, q_len)
