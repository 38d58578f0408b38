"""A bias that is a product of two thin factors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from headway.bias.base import Bias, Structured
from headway.bias.checks import (
    Length,
    broadcast_size,
    check_float,
    check_length,
    check_rank,
    check_same_device,
    check_tile,
)


@dataclass(frozen=True, eq=False, repr=False)
class LowRank(Bias):
    """A product of a query factor and a key factor, as ABS-SCALAR, DIET-ABS and TUPE give it.

    Paper:    Chen et al. (2021b), Eq. (1), P_Q P_K^T
    Formula:  bias[b, h, i, j] = sum_r left[b, h, i, r] * right[b, h, j, r]
    Symbols:  P_Q -> left, (B|1, H|1, Lq, R);  P_K -> right, (B|1, H|1, Lk, R);  d_p -> R
    Checked:  tests/unit/bias, tests/parity/test_attention.py
    """

    left: Tensor
    right: Tensor

    TENSORS = ("left", "right")

    def __post_init__(self) -> None:
        check_rank("LowRank.left", self.left, "B|1, H|1, Lq, R")
        check_rank("LowRank.right", self.right, "B|1, H|1, Lk, R")
        check_float("LowRank.left", self.left)
        check_float("LowRank.right", self.right)
        check_same_device("LowRank.right", self.right, "LowRank.left", self.left)
        if self.left.dtype != self.right.dtype:
            raise TypeError(
                f"LowRank: expected factors of one dtype, got {self.left.dtype} and {self.right.dtype}. "
                f"Convert one of them with .to(dtype)."
            )
        if self.left.shape[-1] != self.right.shape[-1]:
            raise ValueError(
                f"LowRank: expected factors of one rank, got {self.left.shape[-1]} (left) and "
                f"{self.right.shape[-1]} (right)."
            )
        broadcast_size("batch", self.left.shape[0], self.right.shape[0])
        broadcast_size("head", self.left.shape[1], self.right.shape[1])

    @property
    def batch(self) -> int:
        return max(self.left.shape[0], self.right.shape[0])

    @property
    def heads(self) -> int:
        return max(self.left.shape[1], self.right.shape[1])

    @property
    def rank(self) -> int:
        return self.left.shape[-1]

    @property
    def lengths(self) -> tuple[Length, Length]:
        return self.left.shape[-2], self.right.shape[-2]

    def bind(self, q_len: int, k_len: int) -> Self:
        check_length("LowRank", "query", self.left.shape[-2], q_len)
        check_length("LowRank", "key", self.right.shape[-2], k_len)
        return self

    def tile(self, q_start: int, q_stop: int, k_start: int, k_stop: int) -> Self:
        check_tile(self.shape, q_start, q_stop, k_start, k_stop)
        return type(self)(self.left[..., q_start:q_stop, :], self.right[..., k_start:k_stop, :])

    def fold(self, other: Structured) -> LowRank | None:
        """Concatenate the factors along the rank; factors that different heads or sequences share are not copied."""
        if (
            not isinstance(other, LowRank)
            or self.left.shape[:-1] != other.left.shape[:-1]
            or self.right.shape[:-1] != other.right.shape[:-1]
            or self.left.dtype != other.left.dtype
        ):
            return None
        return LowRank(torch.cat([self.left, other.left], -1), torch.cat([self.right, other.right], -1))

    def dense(self, q: Tensor | None = None, *, k_len: int | None = None, scale: float | None = None) -> Tensor:
        return self.left @ self.right.transpose(-1, -2)
