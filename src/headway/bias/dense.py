"""A bias given as the matrix itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from headway.bias.base import Bias, Structured
from headway.bias.checks import Length, check_float, check_length, check_rank, check_tile


@dataclass(frozen=True, eq=False, repr=False)
class Dense(Bias):
    """Any bias as a whole matrix, for what has no other structure; it takes n x n memory.

    Paper:    none; every bias of the papers can be written as a matrix
    Formula:  bias[b, h, i, j] = matrix[b, h, i, j]
    Symbols:  matrix, (B|1, H|1, Lq, Lk)
    Checked:  tests/unit/bias, tests/parity/test_attention.py
    """

    matrix: Tensor

    TENSORS = ("matrix",)

    def __post_init__(self) -> None:
        check_rank("Dense.matrix", self.matrix, "B|1, H|1, Lq, Lk")
        check_float("Dense.matrix", self.matrix)

    @property
    def batch(self) -> int:
        return self.matrix.shape[0]

    @property
    def heads(self) -> int:
        return self.matrix.shape[1]

    @property
    def lengths(self) -> tuple[Length, Length]:
        return self.matrix.shape[2], self.matrix.shape[3]

    def bind(self, q_len: int, k_len: int) -> Self:
        check_length("Dense", "query", self.matrix.shape[2], q_len)
        check_length("Dense", "key", self.matrix.shape[3], k_len)
        return self

    def tile(self, q_start: int, q_stop: int, k_start: int, k_stop: int) -> Self:
        check_tile(self.shape, q_start, q_stop, k_start, k_stop)
        return type(self)(self.matrix[..., q_start:q_stop, k_start:k_stop])

    def fold(self, other: Structured) -> Dense | None:
        if not isinstance(other, Dense) or self.lengths != other.lengths:
            return None
        return Dense(self.matrix + other.matrix)

    def dense(self, q: Tensor | None = None, *, k_len: int | None = None, scale: float | None = None) -> Tensor:
        return self.matrix
