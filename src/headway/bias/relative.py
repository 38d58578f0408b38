"""Vectors per offset, or per labelled edge, that are multiplied with the query (keys) or added to the values.

Shaw, Uszkoreit and Vaswani (2018): Sec. 3.1 for labelled graphs, Sec. 3.2 for clipped offsets, Eq. (5) for the
efficient form, which is the one used: q is multiplied with the table first, and the products are then looked up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from headway.bias.base import Bias, Structured, ValueBias
from headway.bias.checks import (
    Length,
    check_float,
    check_ids,
    check_integer,
    check_length,
    check_rank,
    check_same_device,
    check_tile,
    offsets,
)


class _ByOffset:
    """A table of 2K+1 vectors, (H|1, 2K+1, D), looked up by the offset j - i clipped to -K..K."""

    table: Tensor
    q_start: int
    q_len: Length
    k_len: Length

    TENSORS: ClassVar[tuple[str, ...]] = ("table",)
    STATICS: ClassVar[tuple[str, ...]] = ("q_start", "q_len", "k_len")

    def __post_init__(self) -> None:
        name = f"{type(self).__name__}.table"
        check_rank(name, self.table, "H|1, 2K+1, D")
        check_float(name, self.table)
        if self.table.shape[1] % 2 == 0:
            raise ValueError(f"{name}: expected an odd number of rows, 2K+1, got {self.table.shape[1]}.")

    @property
    def clip(self) -> int:
        """K: offsets beyond it share the outermost vectors."""
        return self.table.shape[1] // 2

    @property
    def batch(self) -> int:
        return 1

    @property
    def heads(self) -> int:
        return self.table.shape[0]

    @property
    def lengths(self) -> tuple[Length, Length]:
        return self.q_len, self.k_len

    def bind(self, q_len: int, k_len: int) -> Self:
        check_length(type(self).__name__, "query", self.q_len, q_len)
        check_length(type(self).__name__, "key", self.k_len, k_len)
        return type(self)(self.table, self.q_start, q_len, k_len)  # type: ignore[call-arg]

    def tile(self, q_start: int, q_stop: int, k_start: int, k_stop: int) -> Self:
        check_tile((1, self.heads, self.q_len, self.k_len), q_start, q_stop, k_start, k_stop)
        shift = self.q_start + q_start - k_start
        return type(self)(self.table, shift, q_stop - q_start, k_stop - k_start)  # type: ignore[call-arg]

    def fold(self, other: Structured) -> Self | None:
        if not isinstance(other, type(self)) or self.table.shape[1:] != other.table.shape[1:]:
            return None
        settings = (self.q_start, self.q_len, self.k_len)
        if settings != (other.q_start, other.q_len, other.k_len):
            return None
        return type(self)(self.table + other.table, *settings)

    def rows(self, q_len: int, k_len: int) -> Tensor:
        """Return the row of the table for every pair, (Lq, Lk)."""
        offset = offsets(q_len, k_len, self.q_start, device=self.table.device)
        return offset.clamp(-self.clip, self.clip) + self.clip


class _ByLabel:
    """A table of N vectors, (H|1, N, D), looked up by the label of the edge from query i to key j."""

    table: Tensor
    labels: Tensor

    TENSORS: ClassVar[tuple[str, ...]] = ("table", "labels")

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_rank(f"{name}.table", self.table, "H|1, N, D")
        check_float(f"{name}.table", self.table)
        check_rank(f"{name}.labels", self.labels, "B|1, Lq, Lk")
        check_integer(f"{name}.labels", self.labels)
        check_same_device(f"{name}.labels", self.labels, f"{name}.table", self.table)

    @property
    def batch(self) -> int:
        return self.labels.shape[0]

    @property
    def heads(self) -> int:
        return self.table.shape[0]

    @property
    def lengths(self) -> tuple[Length, Length]:
        return self.labels.shape[1], self.labels.shape[2]

    def bind(self, q_len: int, k_len: int) -> Self:
        check_length(type(self).__name__, "query", self.labels.shape[1], q_len)
        check_length(type(self).__name__, "key", self.labels.shape[2], k_len)
        return self

    def tile(self, q_start: int, q_stop: int, k_start: int, k_stop: int) -> Self:
        check_tile((self.batch, self.heads, *self.lengths), q_start, q_stop, k_start, k_stop)
        return type(self)(self.table, self.labels[:, q_start:q_stop, k_start:k_stop])  # type: ignore[call-arg]

    def check_values(self) -> None:
        name = type(self).__name__
        super().check_values()  # type: ignore[misc]
        check_ids(f"{name}.labels", self.labels, self.table.shape[1], "rows of the table")


@dataclass(frozen=True, eq=False, repr=False)
class RelativeKeys(_ByOffset, Bias):
    """Relative keys: each offset has a vector that is multiplied with the query.

    Paper:    Shaw et al. (2018), Eq. (4) with Sec. 3.2
    Formula:  bias[b, h, i, j] = scale * q[b, h, i] . table[h, clip(j - (i + q_start), -K, K) + K]
    Symbols:  w^K -> table, (H|1, 2K+1, D);  k -> K;  q_start: where query 0 stands among the keys
    Checked:  tests/unit/bias, tests/parity/test_shaw.py
    """

    table: Tensor
    q_start: int = 0
    q_len: Length = None
    k_len: Length = None

    needs_query = True

    def dense(self, q: Tensor | None = None, *, k_len: int | None = None, scale: float | None = None) -> Tensor:
        q = _checked_query(self, q)
        k_len = k_len or self.k_len or q.shape[-2]
        products = _scaled_products(q, self.table, scale)  # (B, H, Lq, 2K+1)
        rows = self.rows(q.shape[-2], k_len)
        return products.gather(-1, rows.expand(*products.shape[:2], -1, -1))


@dataclass(frozen=True, eq=False, repr=False)
class EdgeKeys(_ByLabel, Bias):
    """Keys of a labelled graph: each edge label has a vector that is multiplied with the query.

    Paper:    Shaw et al. (2018), Sec. 3.1, Eq. (4), a^K_ij chosen by an arbitrary edge label
    Formula:  bias[b, h, i, j] = scale * q[b, h, i] . table[h, labels[b, i, j]]
    Symbols:  a^K -> table, (H|1, N, D);  labels, (B|1, Lq, Lk), integers below N
    Checked:  tests/unit/bias, tests/parity/test_shaw.py
    """

    table: Tensor
    labels: Tensor

    needs_query = True

    def dense(self, q: Tensor | None = None, *, k_len: int | None = None, scale: float | None = None) -> Tensor:
        q = _checked_query(self, q)
        products = _scaled_products(q, self.table, scale)  # (B, H, Lq, N)
        batch = max(products.shape[0], self.batch)
        return products.expand(batch, -1, -1, -1).gather(
            -1, self.labels.long()[:, None].expand(batch, products.shape[1], -1, -1)
        )


@dataclass(frozen=True, eq=False, repr=False)
class RelativeValues(_ByOffset, ValueBias):
    """Relative values: each offset has a vector that is added to the value.

    Paper:    Shaw et al. (2018), Eq. (3) with Sec. 3.2
    Formula:  out[b, h, i] += sum_j w[b, h, i, j] * table[h, clip(j - (i + q_start), -K, K) + K]
    Symbols:  w^V -> table, (H|1, 2K+1, D);  alpha -> w, the weights after dropout
    Checked:  tests/unit/bias, tests/parity/test_shaw.py
    """

    table: Tensor
    q_start: int = 0
    q_len: Length = None
    k_len: Length = None

    def dense(self, *, q_len: int | None = None, k_len: int | None = None) -> Tensor:
        q_len, k_len = q_len or self.q_len, k_len or self.k_len
        if q_len is None or k_len is None:
            raise ValueError("RelativeValues: fits any length. Give q_len= and k_len= to dense().")
        return self.table[None, :, self.rows(q_len, k_len)]

    def weigh(self, weights: Tensor) -> Tensor:
        rows = self.rows(weights.shape[-2], weights.shape[-1]).expand(weights.shape)
        total = weights.new_zeros(*weights.shape[:-1], self.table.shape[1]).scatter_add(-1, rows, weights)
        return total @ self.table.to(weights.dtype)  # sum the weights of each row first, then one product


@dataclass(frozen=True, eq=False, repr=False)
class EdgeValues(_ByLabel, ValueBias):
    """Values of a labelled graph: each edge label has a vector that is added to the value.

    Paper:    Shaw et al. (2018), Sec. 3.1, Eq. (3), a^V_ij chosen by an arbitrary edge label
    Formula:  out[b, h, i] += sum_j w[b, h, i, j] * table[h, labels[b, i, j]]
    Symbols:  a^V -> table, (H|1, N, D);  labels, (B|1, Lq, Lk), integers below N
    Checked:  tests/unit/bias, tests/parity/test_shaw.py
    """

    table: Tensor
    labels: Tensor

    def dense(self, *, q_len: int | None = None, k_len: int | None = None) -> Tensor:
        return self.table[:, self.labels.long()].transpose(0, 1)  # (H, B, Lq, Lk, D) -> (B, H, Lq, Lk, D)

    def weigh(self, weights: Tensor) -> Tensor:
        rows = self.labels.long()[:, None].expand(weights.shape)
        total = weights.new_zeros(*weights.shape[:-1], self.table.shape[1]).scatter_add(-1, rows, weights)
        return total @ self.table.to(weights.dtype)


def _checked_query(bias: Bias, q: Tensor | None) -> Tensor:
    name = type(bias).__name__
    if q is None:
        raise ValueError(f"{name}.dense: expected the query q (B, H, Lq, D), got None. The bias depends on it.")
    own = bias.lengths[0]
    if own is not None and own != q.shape[-2]:
        raise ValueError(f"{name}.dense: expected query length {own}, got {q.shape[-2]} from q.")
    return q


def _scaled_products(q: Tensor, table: Tensor, scale: float | None) -> Tensor:
    """Compute scale * q . table[n] for every row n, (B, H, Lq, N): the second term of Eq. (5) before the look-up."""
    if q.shape[-1] != table.shape[-1]:
        raise ValueError(
            f"bias: expected vectors of width {q.shape[-1]} (from q), got {table.shape[-1]}. Build the encoding with "
            f"head_dim={q.shape[-1]}."
        )
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    dtype = torch.promote_types(q.dtype, table.dtype)
    return (q.to(dtype) * scale) @ table.to(dtype).transpose(-1, -2)
