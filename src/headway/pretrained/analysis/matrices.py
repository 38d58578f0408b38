"""NumPy arrays of torch tensors, and square matrices that may be too large to hold and are made tile by tile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]


def to_array(name: str, tensor: Tensor) -> Array:
    """Return the values of a tensor: a view of float32 and float64 on the CPU, float32 of narrower types."""
    tensor = tensor.detach().cpu()
    if tensor.is_floating_point() and tensor.dtype not in (torch.float32, torch.float64):
        tensor = tensor.float()
    values: Array = tensor.numpy()
    if not np.isfinite(values).all():
        raise ValueError(
            f"{name}: expected finite weights, got NaN or infinity. The file is damaged, or training diverged."
        )
    return values


TILE_ENTRIES = 1 << 21  # 16 MiB of float64; a few such arrays live at once


class Blocks(Protocol):
    """H matrices, L x L."""

    @property
    def heads(self) -> int: ...

    @property
    def length(self) -> int: ...

    def tile(self, q_start: int, q_stop: int, k_start: int, k_stop: int) -> Array:  # (H, Lq, Lk), float64
        """Return the entries of queries q_start..q_stop and keys k_start..k_stop."""
        ...


@dataclass(frozen=True, eq=False)
class Whole:
    """Matrices that are held whole: (H, L, L), or one, (L, L)."""

    matrix: Array

    def __post_init__(self) -> None:
        shape = self.matrix.shape
        if len(shape) not in (2, 3) or shape[-1] != shape[-2]:
            raise ValueError(f"matrix: expected (L, L) or (H, L, L), got {shape}.")

    @property
    def heads(self) -> int:
        return len(self._each)

    @property
    def length(self) -> int:
        return int(self.matrix.shape[-1])

    @property
    def _each(self) -> Array:
        return self.matrix if self.matrix.ndim == 3 else self.matrix[None]

    def tile(self, q_start: int, q_stop: int, k_start: int, k_stop: int) -> Array:
        return self._each[:, q_start:q_stop, k_start:k_stop].astype(np.float64)


@dataclass(frozen=True, eq=False)
class Product:
    """left right^T, from factors (H, L, R)."""

    left: Array
    right: Array

    @property
    def heads(self) -> int:
        return len(self.left)

    @property
    def length(self) -> int:
        return int(self.left.shape[1])

    def tile(self, q_start: int, q_stop: int, k_start: int, k_stop: int) -> Array:
        left, right = self.left[:, q_start:q_stop], self.right[:, k_start:k_stop]
        product: Array = np.matmul(left, right.transpose(0, 2, 1), dtype=np.float64)
        return product


@dataclass(frozen=True, eq=False)
class Window:
    """Positions start..stop of other matrices, as queries and as keys."""

    whole: Blocks
    start: int
    stop: int

    @property
    def heads(self) -> int:
        return self.whole.heads

    @property
    def length(self) -> int:
        return self.stop - self.start

    def tile(self, q_start: int, q_stop: int, k_start: int, k_stop: int) -> Array:
        at = self.start
        return self.whole.tile(at + q_start, at + q_stop, at + k_start, at + k_stop)


def bands(blocks: Blocks) -> Iterator[tuple[int, Array]]:
    """Yield all rows, in bands of a bounded number of entries: (first row, (H, rows, L))."""
    rows = max(1, TILE_ENTRIES // (blocks.heads * blocks.length))
    for start in range(0, blocks.length, rows):
        stop = min(start + rows, blocks.length)
        yield start, blocks.tile(start, stop, 0, blocks.length)
