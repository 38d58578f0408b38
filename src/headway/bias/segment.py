"""A bias looked up by the segments of the query and the key."""

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
    check_ids,
    check_integer,
    check_length,
    check_rank,
    check_same_device,
    check_tile,
)
from headway.bias.low_rank import LowRank
from headway.running import without_autocast


@dataclass(frozen=True, eq=False, repr=False)
class SegmentTable(Bias):
    """One scalar per head for each pair of segments.

    Paper:    Chen et al. (2021b), Eq. (2), E_S(S(i), S(j)); Chen et al. (2021a), Eqs. (9) and (10)
    Formula:  bias[b, h, i, j] = table[h, q_segments[b, i], k_segments[b, j]]
    Symbols:  table, (H|1, S, S);  q_segments, (B|1, Lq);  k_segments, (B|1, Lk), integers below S
    Checked:  tests/unit/bias, tests/parity/test_attention.py
    """

    table: Tensor
    q_segments: Tensor
    k_segments: Tensor

    TENSORS = ("table", "q_segments", "k_segments")

    def __post_init__(self) -> None:
        check_rank("SegmentTable.table", self.table, "H|1, S, S")
        check_float("SegmentTable.table", self.table)
        if self.table.shape[1] != self.table.shape[2]:
            raise ValueError(f"SegmentTable.table: expected (H|1, S, S), got {tuple(self.table.shape)}.")
        for name in ("q_segments", "k_segments"):
            ids = getattr(self, name)
            check_rank(f"SegmentTable.{name}", ids, "B|1, L")
            check_integer(f"SegmentTable.{name}", ids)
            check_same_device(f"SegmentTable.{name}", ids, "SegmentTable.table", self.table)
        broadcast_size("batch", self.q_segments.shape[0], self.k_segments.shape[0])

    @property
    def num_segments(self) -> int:
        return self.table.shape[-1]

    @property
    def batch(self) -> int:
        return max(self.q_segments.shape[0], self.k_segments.shape[0])

    @property
    def heads(self) -> int:
        return self.table.shape[0]

    @property
    def lengths(self) -> tuple[Length, Length]:
        return self.q_segments.shape[1], self.k_segments.shape[1]

    def bind(self, q_len: int, k_len: int) -> Self:
        check_length("SegmentTable", "query", self.q_segments.shape[1], q_len)
        check_length("SegmentTable", "key", self.k_segments.shape[1], k_len)
        return self

    def tile(self, q_start: int, q_stop: int, k_start: int, k_stop: int) -> Self:
        check_tile(self.shape, q_start, q_stop, k_start, k_stop)
        return type(self)(self.table, self.q_segments[:, q_start:q_stop], self.k_segments[:, k_start:k_stop])

    def check_values(self) -> None:
        super().check_values()
        for name in ("q_segments", "k_segments"):
            check_ids(f"SegmentTable.{name}", getattr(self, name), self.num_segments, "segments of the table")

    def fold(self, other: Structured) -> SegmentTable | None:
        """Add the tables of two biases that hold the same id tensors; the ids are compared by identity."""
        if not isinstance(other, SegmentTable) or self.num_segments != other.num_segments:
            return None
        if self.q_segments is not other.q_segments or self.k_segments is not other.k_segments:
            return None
        return SegmentTable(self.table + other.table, self.q_segments, self.k_segments)

    def dense(self, q: Tensor | None = None, *, k_len: int | None = None, scale: float | None = None) -> Tensor:
        if self.table.requires_grad and torch.is_grad_enabled():
            with without_autocast(self.table.device.type):
                return self.as_low_rank().dense()  # the same numbers, with a cheaper gradient than that of indexing
        i, j = self.q_segments.long()[:, :, None], self.k_segments.long()[:, None, :]
        return self.table[:, i, j].transpose(0, 1)  # (H, B, Lq, Lk) -> (B, H, Lq, Lk)

    def as_low_rank(self) -> LowRank:
        """Return the same bias with rank S: the table's row of each query times the one-hot segment of each key."""
        # Products with one-hot vectors, because their gradients are products too, whose sums have a fixed order.
        q_one_hot, k_one_hot = (
            torch.nn.functional.one_hot(ids.long(), self.num_segments)[:, None].to(self.table.dtype)
            for ids in (self.q_segments, self.k_segments)
        )
        with without_autocast(self.table.device.type):
            left = q_one_hot @ self.table
        return LowRank(left, k_one_hot)  # (B, H, Lq, S) and (B, 1, Lk, S)
