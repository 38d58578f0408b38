"""Products of given vectors with a vector for each offset: a row of the table for each j - i."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from headway.bias.base import Bias, Structured
from headway.bias.checks import (
    Length,
    broadcast_size,
    check_float,
    check_integer,
    check_length,
    check_rank,
    check_same_device,
    check_tile,
)


@dataclass(frozen=True, eq=False, repr=False)
class RelativeProducts(Bias):
    """Each query, or each key, has a vector that is multiplied with the vector of the offset.

    Paper:    He et al. (2021), "DeBERTa", Eq. (4), content-to-position and position-to-content; Dai et al. (2019),
              "Transformer-XL", Sec. 3.3, terms (b) and (d)
    Formula:  bias[b, h, i, j] = vectors[b, h, i] . offset_vectors[h, rows[j - i + Lq - 1]]; with of_keys=True
              vectors[b, h, j] in place of vectors[b, h, i]; 0 where the row is -1
    Symbols:  vectors, (B|1, H|1, Lq, W), or (B|1, H|1, Lk, W) of keys;  offset_vectors, (H|1, N, W);
              rows, (Lq + Lk - 1,), integers from -1 to N - 1, offset -(Lq - 1) first;  W may differ from D
    Departs:  DeBERTa's delta(i, j) is a bucket of i - j; rows are indexed by j - i here, as everywhere in headway
    Checked:  tests/unit/bias, tests/parity/test_attention.py

    Nothing is scaled here: a bias of the queries themselves takes `scale * q` as its vectors. `clipped` makes the rows
    of clipped offsets, `of_every_offset` those of a table that has a vector for each offset.
    """

    vectors: Tensor
    offset_vectors: Tensor
    rows: Tensor
    of_keys: bool = False

    TENSORS = ("vectors", "offset_vectors", "rows")
    STATICS = ("of_keys",)

    def __post_init__(self) -> None:
        check_rank("RelativeProducts.vectors", self.vectors, "B|1, H|1, L, W")
        check_rank("RelativeProducts.offset_vectors", self.offset_vectors, "H|1, N, W")
        check_rank("RelativeProducts.rows", self.rows, "Lq+Lk-1")
        check_float("RelativeProducts.vectors", self.vectors)
        check_float("RelativeProducts.offset_vectors", self.offset_vectors)
        check_integer("RelativeProducts.rows", self.rows)
        for name in ("offset_vectors", "rows"):
            check_same_device(f"RelativeProducts.{name}", getattr(self, name), "RelativeProducts.vectors", self.vectors)
        if self.vectors.dtype != self.offset_vectors.dtype:
            raise TypeError(
                f"RelativeProducts: expected vectors of one dtype, got {self.vectors.dtype} and "
                f"{self.offset_vectors.dtype} (offset_vectors)."
            )
        if self.vectors.shape[-1] != self.offset_vectors.shape[-1]:
            raise ValueError(
                f"RelativeProducts: expected vectors of one width, got {self.vectors.shape[-1]} and "
                f"{self.offset_vectors.shape[-1]} (offset_vectors)."
            )
        broadcast_size("head", self.vectors.shape[1], self.offset_vectors.shape[0])
        if self.rows.shape[0] < self.vectors.shape[2]:
            raise ValueError(
                f"RelativeProducts.rows: expected a row for each of the Lq + Lk - 1 offsets, at least "
                f"{self.vectors.shape[2]} (the number of vectors), got {self.rows.shape[0]}."
            )

    @classmethod
    def clipped(
        cls,
        vectors: Tensor,  # (B|1, H|1, Lq, W), or (B|1, H|1, Lk, W) with of_keys
        offset_vectors: Tensor,  # (H|1, left + 1 + right, W), offset -left first
        q_len: int,
        k_len: int,
        left: int,
        *,
        q_start: int = 0,
        zero_beyond: bool = False,
        of_keys: bool = False,
    ) -> Self:
        """Build it from a table of the offsets -left to right.

        Args:
            vectors: one for each query, or for each key.
            offset_vectors: one for each offset from -left on.
            q_len: number of queries.
            k_len: number of keys.
            left: how far to the left the table reaches; to the right it reaches as far as it has rows.
            q_start: position of the first query among the keys, for cached decoding.
            zero_beyond: offsets beyond the table get zero; otherwise they share its outermost vectors.
            of_keys: the vectors are those of the keys.
        """
        check_rank("RelativeProducts.clipped: offset_vectors", offset_vectors, "H|1, left+1+right, W")
        right = offset_vectors.shape[1] - 1 - left
        if left < 0 or right < 0:
            raise ValueError(
                f"RelativeProducts.clipped: expected left from 0 to {offset_vectors.shape[1] - 1} (a row for each "
                f"offset from -left on), got {left}."
            )
        offset = torch.arange(1 - q_len, k_len, device=vectors.device) - q_start
        rows = offset.clamp(-left, right) + left
        if zero_beyond:
            rows = rows.masked_fill((offset < -left) | (offset > right), -1)
        return cls(vectors, offset_vectors, rows, of_keys).bind(q_len, k_len)

    @classmethod
    def of_every_offset(cls, vectors: Tensor, offset_vectors: Tensor, *, of_keys: bool = False) -> Self:
        """Build it from a vector for each offset, offset -(Lq - 1) first, offset Lk - 1 last."""
        check_rank("RelativeProducts.of_every_offset: offset_vectors", offset_vectors, "H|1, Lq+Lk-1, W")
        return cls(
            vectors, offset_vectors, torch.arange(offset_vectors.shape[1], device=offset_vectors.device), of_keys
        )

    @property
    def batch(self) -> int:
        return self.vectors.shape[0]

    @property
    def heads(self) -> int:
        return max(self.vectors.shape[1], self.offset_vectors.shape[0])

    @property
    def lengths(self) -> tuple[Length, Length]:
        own = self.vectors.shape[2]
        other = self.rows.shape[0] - own + 1
        return (other, own) if self.of_keys else (own, other)

    def bind(self, q_len: int, k_len: int) -> Self:
        own = self.lengths
        check_length("RelativeProducts", "query", own[0], q_len)
        check_length("RelativeProducts", "key", own[1], k_len)
        return self

    def tile(self, q_start: int, q_stop: int, k_start: int, k_stop: int) -> Self:
        check_tile(self.shape, q_start, q_stop, k_start, k_stop)
        q_len = self.lengths[0]
        assert q_len is not None
        # The least offset of the tile, k_start - (q_stop - 1), and the greatest, k_stop - 1 - q_start.
        rows = self.rows[k_start - (q_stop - 1) + q_len - 1 : k_stop - 1 - q_start + q_len]
        start, stop = (k_start, k_stop) if self.of_keys else (q_start, q_stop)
        return type(self)(self.vectors[:, :, start:stop], self.offset_vectors, rows, self.of_keys)

    def check_values(self) -> None:
        super().check_values()
        low, high = int(self.rows.min()), int(self.rows.max())
        last = self.offset_vectors.shape[1] - 1
        if low < -1 or high > last:
            raise ValueError(
                f"RelativeProducts.rows: expected -1 (no vector) to {last} (rows of offset_vectors), "
                f"got {low} to {high}."
            )

    def fold(self, other: Structured) -> RelativeProducts | None:
        """Add the tables of two biases that hold the same vectors and rows; these are compared by identity."""
        if (
            not isinstance(other, RelativeProducts)
            or self.of_keys != other.of_keys
            or self.vectors is not other.vectors
            or self.rows is not other.rows
            or self.offset_vectors.shape[1] != other.offset_vectors.shape[1]
        ):
            return None
        return RelativeProducts(self.vectors, self.offset_vectors + other.offset_vectors, self.rows, self.of_keys)

    def dense(self, q: Tensor | None = None, *, k_len: int | None = None, scale: float | None = None) -> Tensor:
        by_offset = with_zero_row(self.offset_vectors)[:, self.rows.long()]  # (H|1, Lq + Lk - 1, W); -1 is the zero row
        q_len, k_len = self.lengths
        assert q_len is not None and k_len is not None
        if not self.of_keys:
            return skewed(self.vectors @ by_offset.transpose(-1, -2), k_len)
        # From a key's side the greatest offset comes first: that of query 0.
        return skewed(self.vectors @ by_offset.flip(1).transpose(-1, -2), q_len).transpose(-1, -2)


def with_zero_row(table: Tensor) -> Tensor:  # (H|1, N, W) -> (H|1, N + 1, W)
    """Return the table with a row of zeros at its end, where -1 finds it."""
    return pad(table, (0, 0, 0, 1))


def skewed(
    by_offset: Tensor,  # (..., M, M + width - 1)
    width: int,
) -> Tensor:  # (..., M, width)
    """Shift row r left by M - 1 - r: out[r, c] = by_offset[r, c + M - 1 - r].

    The result is a view where the rows are contiguous: read with a stride one short of the row's length, each row
    begins one number earlier than the one before. Slices have derivatives of every kind, and sum in a fixed order.
    """
    rows, columns = by_offset.shape[-2:]
    if rows == 1:
        return by_offset
    flat = by_offset.flatten(-2)[..., rows - 1 : rows - 1 + rows * (columns - 1)]
    return flat.view(*flat.shape[:-1], rows, columns - 1)[..., :width]
