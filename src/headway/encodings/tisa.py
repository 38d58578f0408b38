"""TISA: a smooth function of the offset for each head, a sum of a few Gaussian bumps."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.bias import Bias, Toeplitz
from headway.encodings.base import Dimensions, PositionEncoding


class Tisa(PositionEncoding):
    """A sum of radial basis functions of the offset in each head.

    Paper:    Wennberg and Henter (2021), "The Case for Translation-Invariant Self-Attention", Eq. (5)
    Formula:  bias[h, i, j] = sum_s amplitude[l, h, s] * exp(-|sharpness[l, h, s]| * (j - i - center[l, h, s])^2)
    Symbols:  a_s -> amplitude, b_s -> sharpness, c_s -> center, all (layers, heads, kernels);  S -> kernels
    Departs:  the paper fits the parameters to a pretrained model; the initialisation here is ours. Centers lie at
              0, -1, 1, -2, 2, ..., widths grow from under one token to about twenty, amplitudes are normal with
              `init_std`, so that every parameter has a gradient from the start and heads differ
    Yields:   Toeplitz, 3 * kernels * layers * heads parameters; any length
    Checked:  tests/parity/test_tisa.py

    "tisa" is the paper's Eq. (4b), "learned+tisa" its Eq. (4a), with position embeddings in the input. kernels=0 is the
    paper's bag of words (Table 3b, S = 0), which has no bias and does not see order. The values are float32 or wider.

    With `reach`, offsets beyond it take the value at ±reach, and the formula is computed only for those within. A bump
    of sharpness b has fallen to a millionth of its height sqrt(14 / b) tokens from its center, which is 118 tokens for
    the widest one at the start. None computes the formula at every offset.
    """

    name = "tisa"
    paper = "Wennberg & Henter 2021, Eq. 5"
    places = ("scores",)
    default_sharing = "none"

    amplitude: Tensor
    sharpness: Tensor
    center: Tensor

    def __init__(
        self,
        dims: Dimensions,
        *,
        sharing: str | None = None,
        kernels: int = 5,
        reach: int | None = None,
        init_std: float = 0.1,
    ) -> None:
        super().__init__(dims, sharing=sharing)
        if kernels < 0:
            raise ValueError(f"kernels: expected at least 0, got {kernels}.")
        if reach is not None and reach < 1:
            raise ValueError(f"reach: expected at least 1, or None (no limit), got {reach}.")
        self.kernels = kernels
        self.reach = reach
        self.init_std = init_std
        size = (self.layer_sets, self.head_sets, kernels)
        for name in ("amplitude", "sharpness", "center"):
            self.register_parameter(name, nn.Parameter(torch.empty(size)) if kernels else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if not self.kernels:
            return
        nn.init.normal_(self.amplitude, std=self.init_std)
        with torch.no_grad():
            order = torch.arange(self.kernels, device=self.center.device)
            self.center.copy_((order + 1) // 2 * (1 - order % 2 * 2))  # 0, -1, 1, -2, 2, ...
            self.sharpness.copy_(torch.logspace(0, -3, self.kernels, device=self.center.device))

    def _bias(
        self, layer: int, q_len: int, k_len: int, q_start: int, segments: Tensor | None, documents: Tensor | None
    ) -> Bias | None:
        if not self.kernels:
            return None
        layer = self.layer_set(layer)
        dtype = torch.promote_types(
            self.center.dtype, torch.float32
        )  # half precision cannot represent all integers up to 4096
        amplitude, sharpness, center = (p[layer].to(dtype) for p in (self.amplitude, self.sharpness, self.center))
        first, last = -(q_start + q_len - 1), k_len - q_start - 1
        if self.reach is not None:
            first, last = -self.reach, self.reach
        offset = torch.arange(first, last + 1, device=center.device).to(dtype)
        bumps = torch.exp(-sharpness.abs()[..., None] * (offset - center[..., None]) ** 2)  # (H|1, S, offsets)
        values = (amplitude[..., None] * bumps).sum(dim=-2)[None]
        return Toeplitz(values, q_len) if self.reach is None else Toeplitz.clipped(values, q_len, k_len, q_start)
