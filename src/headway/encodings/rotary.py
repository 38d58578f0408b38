"""Rotary position embedding: q and k are rotated by angles proportional to the position."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headway.encodings.absolute import frequencies
from headway.encodings.base import Dimensions, PositionEncoding, positions

SCALINGS = ("linear", "ntk", "yarn")
SLOW, FAST = 1.0, 32.0  # turns within max_length: below SLOW a pair is interpolated whole, above FAST not at all


class Rope(PositionEncoding):
    """Rotation of pairs of coordinates of q and k, by angles proportional to the position.

    Paper:    Su et al. (2021), "RoFormer", Eq. (34); for longer texts than those of training, Chen et al. (2023),
              "Extending Context Window of Large Language Models via Positional Interpolation" (linear), and Peng et al.
              (2023), "YaRN", Sec. 3.1 (ntk) and Secs. 3.2 and 3.4 (yarn)
    Formula:  (q[2m], q[2m + 1]) at position p is rotated by p * theta_m, and k likewise, theta_m = base^(-2m / R)
              linear: theta_m / s;  ntk: base * s^(R / (R - 2)) in place of base
              yarn: theta_m * (g + (1 - g) / s), g = clamp((r - 1) / (32 - 1), 0, 1), r = L * theta_m / (2 pi), and
              scores (0.1 ln s + 1)^2 times as large
    Symbols:  d, |D| -> R, the rotated part of the head width, fraction * D;  s -> factor;  L -> max_length
    Departs:  fraction < 1 leaves the last coordinates as they are (GPT-NeoX); interleaved=False pairs coordinate m with
              m + R / 2 in place of 2m with 2m + 1 (GPT-NeoX, Llama), the same up to the order of coordinates. yarn's
              g is that of the paper, in turns r; common code interpolates between numbers of pairs
    Yields:   rotated q and k, no parameters; any length
    Checked:  tests/parity/test_rotary.py

    Options that reach longer texts, `scaling` and `factor`, can be given to a model that was trained without them.
    """

    name = "rope"
    paper = "Su et al. 2021, Eq. 34"
    places = ("queries and keys",)

    def __init__(
        self,
        dims: Dimensions,
        *,
        sharing: str | None = None,
        base: float = 10000.0,
        fraction: float = 1.0,
        interleaved: bool = True,
        scaling: str | None = None,
        factor: float = 1.0,
    ) -> None:
        super().__init__(dims, sharing=sharing)
        if base <= 0:
            raise ValueError(f"base: expected more than 0, got {base}.")
        if not 0 < fraction <= 1:
            raise ValueError(f"fraction: expected more than 0 and at most 1, got {fraction}.")
        self.base = base
        self.width = int(fraction * dims.head_dim + 1e-6)  # R; without the small number, 0.29 * 100 would be 28
        self.interleaved = interleaved
        self.scaling = scaling
        self.factor = factor
        if self.width < 2 or self.width % 2:
            raise ValueError(
                f"head_dim: expected an even number of coordinates to rotate, got {self.width} "
                f"(head_dim {dims.head_dim}, fraction {fraction})."
            )
        if scaling is not None and scaling not in SCALINGS:
            raise ValueError(f"scaling: expected None or one of {', '.join(SCALINGS)}, got {scaling!r}.")
        if factor < 1 or (scaling is None and factor != 1):
            expected = "1 without scaling" if scaling is None else "at least 1, how many times as long texts may be"
            raise ValueError(f"factor: expected {expected}, got {factor}.")
        if scaling == "ntk" and self.width < 4:
            raise ValueError(f"scaling: ntk expected at least 4 coordinates to rotate, got {self.width}.")

    @property
    def scale(self) -> float | None:
        if self.scaling != "yarn":
            return None
        temperature = (0.1 * math.log(self.factor) + 1.0) ** 2  # 1 / t of Sec. 3.4
        return float(self.dims.head_dim**-0.5 * temperature)

    def frequencies(self, device: torch.device) -> Tensor:  # (R / 2,)
        """Return the angle by which each pair of coordinates turns from one position to the next."""
        base = self.base
        if self.scaling == "ntk":
            base *= self.factor ** (self.width / (self.width - 2))
        found = frequencies(self.width, base, device)
        if self.scaling == "linear":
            return found / self.factor
        if self.scaling == "yarn":
            turns = self.dims.max_length * found / (2 * math.pi)
            kept = ((turns - SLOW) / (FAST - SLOW)).clamp(0.0, 1.0)
            return found * (kept + (1.0 - kept) / self.factor)
        return found

    def _rotate(
        self, q: Tensor, k: Tensor, layer: int, q_start: int | Tensor, documents: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        position = positions(q.shape[-2], q_start, documents, device=q.device)
        frequency = self.frequencies(q.device)
        angle = (position.to(frequency.dtype)[..., None] * frequency)[:, None]  # (B|1, 1, L, R / 2)
        return self._rotated(q, angle), self._rotated(k, angle)

    def _rotated(self, x: Tensor, angle: Tensor) -> Tensor:
        """Rotate the first R coordinates of x by angle, (B|1, 1, L, R / 2)."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
        pairs, axis = ((-1, 2), -1) if self.interleaved else ((2, -1), -2)
        a, b = x[..., : self.width].to(dtype).reshape(*x.shape[:-1], *pairs).unbind(axis)
        rotated = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=axis).flatten(-2).to(x.dtype)
        return rotated if self.width == x.shape[-1] else torch.cat([rotated, x[..., self.width :]], dim=-1)
