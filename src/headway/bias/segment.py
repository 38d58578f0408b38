"""A bias looked up by the segments of the query and the key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from headway.bias.base import (
    Bias,
    Length,
    check_float,
    check_ids,
    check_integer,
    check_length,
    check_rank,
    check_same_device,
    check_tile,
    joined,
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
        joined("batch", self.q_segments.shape[0], self.k_segments.shape[0])

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

    def dense(self, q: Tensor | None = None, *, k_len: int | None = None, scale: float | None = None) -> Tensor:
        if self.table.requires_grad and torch.is_grad_enabled():
            with without_autocast(self.table.device.type):
                return self.as_low_rank().dense()  # the same numbers; its gradient costs less than that of a look-up
        i, j = self.q_segments.long()[:, :, None], self.k_segments.long()[:, None, :]
        return self.table[:, i, j].transpose(0, 1)  # (H, B, Lq, Lk) -> (B, H, Lq, Lk)

    def as_low_rank(self) -> LowRank:
        """The same bias with rank S: the table's row of each query against the key's segment as a unit vector."""
        # One-hot products rather than look-ups: their gradients are products too, and add up in a fixed order.
        of_q, of_k = (
            torch.nn.functional.one_hot(ids.long(), self.num_segments)[:, None].to(self.table.dtype)
            for ids in (self.q_segments, self.k_segments)
        )
        with without_autocast(self.table.device.type):
            left = of_q @ self.table
        return LowRank(left, of_k)  # (B, H, Lq, S) and (B, 1, Lk, S)
