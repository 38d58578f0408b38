"""A bias that depends on the offset j - i alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from headway.bias.base import Bias, Structured
from headway.bias.checks import Length, check_float, check_length, check_rank, check_tile, offsets


@dataclass(frozen=True, eq=False, repr=False)
class Toeplitz(Bias):
    """One value per offset: T5, TISA, ALiBi, REL-SCALAR and DIET-REL differ only in how they fill it.

    Paper:    Chen et al. (2021b), Eq. (3), R_{i-j}; Wennberg and Henter (2021), Sec. 4.2, f(j - i)
    Formula:  bias[b, h, i, j] = values[b, h, j - i + Lq - 1]
    Symbols:  values, (B|1, H|1, Lq + Lk - 1), offset -(Lq - 1) first, offset Lk - 1 last
    Departs:  R_{i-j} of the paper is indexed by j - i here, as everywhere in headway
    Checked:  tests/unit/bias, tests/parity/test_attention.py

    Lq is taken from the call unless `q_len` is given; alone, an odd number of values means Lq = Lk.
    """

    values: Tensor
    q_len: Length = None

    TENSORS = ("values",)
    STATICS = ("q_len",)

    def __post_init__(self) -> None:
        check_rank("Toeplitz.values", self.values, "B|1, H|1, Lq+Lk-1")
        check_float("Toeplitz.values", self.values)
        if self.q_len is not None and not 1 <= self.q_len <= self.values.shape[-1]:
            raise ValueError(
                f"Toeplitz.q_len: expected 1 to {self.values.shape[-1]} (the number of values), got {self.q_len}."
            )

    @classmethod
    def clipped(cls, table: Tensor, q_len: int, k_len: int, q_start: int = 0) -> Self:
        """Build it from a table (B|1, H|1, 2 * reach + 1) of offsets -reach to reach, clipping offsets beyond them.

        The table is sliced and its two ends are repeated, so that its gradient is a sum in a fixed order. Indexing the
        table by clamped offsets gives the same values, but on a GPU the gradient of that sorts all offsets, or is not
        deterministic once compiled.
        """
        check_rank("Toeplitz.clipped: table", table, "B|1, H|1, 2*reach+1")
        if table.shape[-1] % 2 == 0:
            raise ValueError(
                f"Toeplitz.clipped: expected an odd number of values (offsets -reach to reach), got {table.shape[-1]}."
            )
        reach = table.shape[-1] // 2
        first, last = -(q_start + q_len - 1), k_len - 1 - q_start  # least and greatest offset asked for
        if torch.compiler.is_exporting():  # the exported graph must fit any length, and needs no gradients
            asked = torch.arange(q_len + k_len - 1, device=table.device) + first
            return cls(table[..., asked.clamp(-reach, reach) + reach], q_len)
        below, above = min(last, -reach - 1) - first + 1, last - max(first, reach + 1) + 1
        inner = table[..., max(first + reach, 0) : max(last + reach + 1, 0)]
        if below <= 0 and above <= 0:
            return cls(inner, q_len)
        ends = table[..., :1].expand(-1, -1, max(below, 0)), table[..., -1:].expand(-1, -1, max(above, 0))
        return cls(torch.cat([ends[0], inner, ends[1]], -1), q_len)

    @property
    def batch(self) -> int:
        return self.values.shape[0]

    @property
    def heads(self) -> int:
        return self.values.shape[1]

    @property
    def lengths(self) -> tuple[Length, Length]:
        return (None, None) if self.q_len is None else (self.q_len, self.values.shape[-1] - self.q_len + 1)

    def bind(self, q_len: int, k_len: int) -> Self:
        own = self.lengths
        if self.q_len is None and self.values.shape[-1] != q_len + k_len - 1:
            raise ValueError(
                f"bias: expected Lq + Lk - 1 = {q_len + k_len - 1} offsets (Lq {q_len} from q, Lk {k_len} from k), "
                f"got {self.values.shape[-1]} from Toeplitz. Rebuild it for these lengths."
            )
        check_length("Toeplitz", "query", own[0], q_len)
        check_length("Toeplitz", "key", own[1], k_len)
        return self if self.q_len is not None else self._cache_bound(type(self)(self.values, q_len))

    def fold(self, other: Structured) -> Toeplitz | None:
        if not isinstance(other, Toeplitz):
            return None
        if self.q_len is not None and other.q_len is not None and self.q_len != other.q_len:
            raise ValueError(
                f"bias: two Toeplitz terms were made for different query lengths, {self.q_len} and {other.q_len}. "
                f"Make both for one call."
            )
        if self.values.shape[-1] != other.values.shape[-1]:
            counts = f"{self.values.shape[-1]} and {other.values.shape[-1]}"
            raise ValueError(
                f"bias: two Toeplitz terms have {counts} offsets. Make both for the same q_len and k_len, each with "
                f"q_len + k_len - 1 values."
            )
        return Toeplitz(self.values + other.values, self.q_len or other.q_len)

    def _bound_or_square(self) -> Self:
        """Return the bias with its lengths fixed, assuming Lq = Lk if `q_len` was not given."""
        if self.q_len is not None:
            return self
        count = self.values.shape[-1]
        if count % 2 == 0:
            raise ValueError(
                f"Toeplitz: {count} offsets fit no square matrix (2 L - 1 do). Give q_len= or call bind(Lq, Lk)."
            )
        return self.bind((count + 1) // 2, (count + 1) // 2)

    def tile(self, q_start: int, q_stop: int, k_start: int, k_stop: int) -> Self:
        bound = self._bound_or_square()
        check_tile(bound.shape, q_start, q_stop, k_start, k_stop)
        assert bound.q_len is not None
        # The least offset of the tile, k_start - (q_stop - 1), and the greatest, k_stop - 1 - q_start.
        first = k_start - (q_stop - 1) + bound.q_len - 1
        last = k_stop - 1 - q_start + bound.q_len - 1
        return type(self)(self.values[..., first : last + 1], q_stop - q_start)

    def dense(self, q: Tensor | None = None, *, k_len: int | None = None, scale: float | None = None) -> Tensor:
        if self.q_len is None and k_len is not None:
            bound = self.bind(self.values.shape[-1] - k_len + 1, k_len)
        else:
            bound = self._bound_or_square()
        q_len, k_len = bound.lengths
        assert q_len is not None and k_len is not None
        return self.values[..., offsets(q_len, k_len, device=self.values.device) + q_len - 1]
