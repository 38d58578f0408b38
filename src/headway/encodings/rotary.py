"""Rotary position embedding: q and k are rotated by angles proportional to the position."""

from __future__ import annotations

import torch
from torch import Tensor

from headway.encodings.absolute import angles
from headway.encodings.base import Dimensions, PositionEncoding, positions


class Rope(PositionEncoding):
    """Rotation of pairs of coordinates of q and k, by angles proportional to the position.

    Paper:    Su et al. (2021), "RoFormer", Eq. (34)
    Formula:  (q[2m], q[2m + 1]) at position p is rotated by p * base^(-2m / R), and k likewise
    Symbols:  theta_m -> base^(-2m / R);  d -> R, the rotated part of the head width, fraction * D
    Departs:  fraction < 1 leaves the last coordinates as they are (GPT-NeoX); interleaved=False pairs coordinate m with
              m + R / 2 in place of 2m with 2m + 1 (GPT-NeoX, Llama), the same up to the order of coordinates
    Yields:   rotated q and k, no parameters; any length
    Checked:  tests/parity/test_rotary.py
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
    ) -> None:
        super().__init__(dims, sharing=sharing)
        if base <= 0:
            raise ValueError(f"base: expected more than 0, got {base}.")
        if not 0 < fraction <= 1:
            raise ValueError(f"fraction: expected more than 0 and at most 1, got {fraction}.")
        self.base = base
        self.width = int(fraction * dims.head_dim + 1e-6)  # R; without the small number, 0.29 * 100 would be 28
        self.interleaved = interleaved
        if self.width < 2 or self.width % 2:
            raise ValueError(
                f"head_dim: expected an even number of coordinates to rotate, got {self.width} "
                f"(head_dim {dims.head_dim}, fraction {fraction})."
            )

    def _rotate(
        self, q: Tensor, k: Tensor, layer: int, q_start: int | Tensor, documents: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        position = positions(q.shape[-2], q_start, documents, device=q.device)
        angle = angles(position, self.width, self.base)[:, None]  # (B|1, 1, L, R / 2)
        return self._rotated(q, angle), self._rotated(k, angle)

    def _rotated(self, x: Tensor, angle: Tensor) -> Tensor:
        """Rotate the first R coordinates of x by angle, (B|1, 1, L, R / 2)."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
        pairs, axis = ((-1, 2), -1) if self.interleaved else ((2, -1), -2)
        a, b = x[..., : self.width].to(dtype).reshape(*x.shape[:-1], *pairs).unbind(axis)
        rotated = torch.stack([a * cos - b * sin, a * sin + b * cos], dim=axis).flatten(-2).to(x.dtype)
        return rotated if self.width == x.shape[-1] else torch.cat([rotated, x[..., self.width :]], dim=-1)
