"""Sums of biases: they flatten, and terms of one structure fold into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor

from headway.bias.base import Bias, Length, Structured, ValueBias, joined
from headway.bias.dense import Dense
from headway.bias.low_rank import LowRank
from headway.bias.relative import RelativeKeys, RelativeValues
from headway.bias.segment import SegmentTable
from headway.bias.toeplitz import Toeplitz

T = TypeVar("T", bound=Structured)


class _Terms(Structured, Generic[T]):
    """Two or more terms that are added; shapes broadcast as tensors' do."""

    def __init__(self, *terms: T) -> None:
        if len(terms) < 2:
            raise ValueError(f"{type(self).__name__}: expected at least two terms, got {len(terms)}.")
        self._terms: Sequence[T] = tuple(part for term in terms for part in term.terms)  # type: ignore[misc]
        _ = self.shape  # raises where the terms do not fit one another

    @property
    def terms(self) -> Sequence[T]:
        return self._terms

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {f"{n}.{name}": t for n, term in enumerate(self._terms) for name, t in term.tensors.items()}

    @property
    def batch(self) -> int:
        size = 1
        for term in self._terms:
            size = joined("batch", size, term.batch)
        return size

    @property
    def heads(self) -> int:
        size = 1
        for term in self._terms:
            size = joined("head", size, term.heads)
        return size

    @property
    def lengths(self) -> tuple[Length, Length]:
        q_len: Length = None
        k_len: Length = None
        for term in self._terms:
            q_len = _one_length("query", q_len, term.lengths[0])
            k_len = _one_length("key", k_len, term.lengths[1])
        return q_len, k_len

    def bind(self, q_len: int, k_len: int) -> Self:
        terms = [term.bind(q_len, k_len) for term in self._terms]
        unchanged = all(new is old for new, old in zip(terms, self._terms, strict=True))
        return self if unchanged else type(self)(*terms)  # itself where it can be

    def tile(self, q_start: int, q_stop: int, k_start: int, k_stop: int) -> Self:
        q_len, k_len = self.lengths
        terms = self._terms if q_len is None or k_len is None else self.bind(q_len, k_len).terms
        return type(self)(*(term.tile(q_start, q_stop, k_start, k_stop) for term in terms))

    def check_values(self) -> None:
        for term in self._terms:
            term.check_values()

    def to(self, *args: Any, **kwargs: Any) -> Self:
        return type(self)(*(term.to(*args, **kwargs) for term in self._terms))

    def detach(self) -> Self:
        return type(self)(*(term.detach() for term in self._terms))

    def rebuilt(self, tensors: Sequence[Tensor]) -> Self:
        terms, start = [], 0
        for term in self._terms:
            stop = start + len(term.TENSORS)
            terms.append(term.rebuilt(tensors[start:stop]))
            start = stop
        return type(self)(*terms)

    def __repr__(self) -> str:
        return " + ".join(repr(term) for term in self._terms)


class Sum(_Terms[Bias], Bias):
    """A sum of score biases, e.g. DIET-REL's R_{i-j} + E_S(S(i), S(j)).

    Paper:    Chen et al. (2021b), Eqs. (1) and (3): position and segment terms add
    Formula:  bias = terms[0] + terms[1] + ...
    Checked:  tests/properties/test_bias_algebra.py
    """

    @property
    def needs_query(self) -> bool:  # type: ignore[override]
        return any(term.needs_query for term in self._terms)

    def bind(self, q_len: int, k_len: int) -> Self:
        bound = super().bind(q_len, k_len)
        return self if bound is self else self._bound_once(bound)

    def dense(self, q: Tensor | None = None, *, k_len: int | None = None, scale: float | None = None) -> Tensor:
        q_len, own_k_len = self.lengths
        k_len = k_len or own_k_len
        if q_len is None and q is not None:
            q_len, k_len = q.shape[-2], k_len or q.shape[-2]
        terms = self._terms if q_len is None or k_len is None else self.bind(q_len, k_len).terms
        total = terms[0].dense(q, k_len=k_len, scale=scale)
        for term in terms[1:]:
            total = total + term.dense(q, k_len=k_len, scale=scale)
        return total

    def dense_once(self, dtype: torch.dtype) -> Tensor:
        if self.is_frozen:
            return super().dense_once(dtype)
        total = self._terms[0].dense_once(dtype)  # some of the terms may be frozen
        for term in self._terms[1:]:
            total = total + term.dense_once(dtype)
        return total


class ValueSum(_Terms[ValueBias], ValueBias):
    """A sum of value biases.

    Paper:    Shaw et al. (2018), Eq. (3), which is linear in a^V
    Formula:  value_bias = terms[0] + terms[1] + ...
    Checked:  tests/properties/test_bias_algebra.py
    """

    def dense(self, *, q_len: int | None = None, k_len: int | None = None) -> Tensor:
        own_q_len, own_k_len = self.lengths
        q_len, k_len = q_len or own_q_len, k_len or own_k_len
        total = self._terms[0].dense(q_len=q_len, k_len=k_len)
        for term in self._terms[1:]:
            total = total + term.dense(q_len=q_len, k_len=k_len)
        return total

    def weigh(self, weights: Tensor) -> Tensor:
        total = self._terms[0].weigh(weights)
        for term in self._terms[1:]:
            total = total + term.weigh(weights)
        return total


def add(a: Structured, b: Structured) -> Structured:
    """a + b, flat and with foldable terms folded."""
    for base, whole in ((Bias, Sum), (ValueBias, ValueSum)):
        if isinstance(a, base) and isinstance(b, base):
            joined("batch", a.batch, b.batch)
            joined("head", a.heads, b.heads)
            terms: list[Structured] = list(a.terms)
            for term in b.terms:
                _fold_into(terms, term)
            return terms[0] if len(terms) == 1 else whole(*terms)  # type: ignore[arg-type]
    raise TypeError(
        f"bias: expected two score biases or two value biases to add, got {type(a).__name__} and {type(b).__name__}. "
        f"Wrap a matrix as Dense; pass value biases as value_bias=."
    )


def _fold_into(terms: list[Structured], new: Structured) -> None:
    for index, old in enumerate(terms):
        folded = _fold(old, new)
        if folded is not None:
            terms[index] = folded
            return
    terms.append(new)


def _fold(a: Structured, b: Structured) -> Structured | None:
    """One term equal to a + b, or None where there is none of the same structure and size."""
    if isinstance(a, Toeplitz) and isinstance(b, Toeplitz):
        if a.q_len is not None and b.q_len is not None and a.q_len != b.q_len:
            raise ValueError(f"bias: expected equal query lengths, got {a.q_len} and {b.q_len}.")
        if a.values.shape[-1] != b.values.shape[-1]:
            counts = f"{a.values.shape[-1]} and {b.values.shape[-1]}"
            raise ValueError(f"bias: expected Toeplitz terms of equally many offsets, got {counts}.")
        return Toeplitz(a.values + b.values, a.q_len or b.q_len)
    if isinstance(a, Dense) and isinstance(b, Dense) and a.lengths == b.lengths:
        return Dense(a.matrix + b.matrix)
    if isinstance(a, LowRank) and isinstance(b, LowRank) and _same_axes(a, b):
        return LowRank(torch.cat([a.left, b.left], -1), torch.cat([a.right, b.right], -1))
    if isinstance(a, SegmentTable) and isinstance(b, SegmentTable):
        same_ids = a.q_segments is b.q_segments and a.k_segments is b.k_segments
        if same_ids and a.num_segments == b.num_segments:
            return SegmentTable(a.table + b.table, a.q_segments, a.k_segments)
    for kind in (RelativeKeys, RelativeValues):
        if isinstance(a, kind) and isinstance(b, kind) and _same_rows(a, b):
            return kind(a.table + b.table, **a.statics)
    return None


def _same_axes(a: LowRank, b: LowRank) -> bool:
    return (
        a.left.shape[:-1] == b.left.shape[:-1]
        and a.right.shape[:-1] == b.right.shape[:-1]
        and a.left.dtype == b.left.dtype
    )


def _same_rows(a: RelativeKeys | RelativeValues, b: RelativeKeys | RelativeValues) -> bool:
    return a.table.shape[1:] == b.table.shape[1:] and a.statics == b.statics


def _one_length(axis: str, a: Length, b: Length) -> Length:
    if a is not None and b is not None and a != b:
        raise ValueError(f"bias: expected terms of one {axis} length, got {a} and {b}.")
    return a if a is not None else b
