"""Structured biases and their sums: small immutable values that name their tensors, their shape and their formula."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Self, TypeVar, cast

import torch
from torch import Tensor

from headway.bias.checks import IDS as IDS  # attention imports it, and dtype_name, from here
from headway.bias.checks import Length, broadcast_size, check_finite
from headway.bias.checks import dtype_name as dtype_name
from headway.running import without_autocast


class Structured:
    """Base of what `attention` adds to scores (`Bias`) or to values (`ValueBias`).

    A kind lists its tensors in `TENSORS` and its integer settings in `STATICS`, both in the order of its constructor.
    Moving, detaching, rebuilding around other tensors and printing follow from these two lists.
    """

    TENSORS: ClassVar[tuple[str, ...]] = ()
    STATICS: ClassVar[tuple[str, ...]] = ()

    # Shape: (B|1, H|1, Lq, Lk), the same rule for every kind.

    @property
    def batch(self) -> int:
        raise NotImplementedError

    @property
    def heads(self) -> int:
        raise NotImplementedError

    @property
    def lengths(self) -> tuple[Length, Length]:
        """(Lq, Lk); None where the bias fits any length."""
        raise NotImplementedError

    @property
    def shape(self) -> tuple[int, int, Length, Length]:
        return (self.batch, self.heads, *self.lengths)

    def bind(self, q_len: int, k_len: int) -> Self:
        """Return this bias with both lengths fixed; raise ValueError if they do not fit."""
        raise NotImplementedError

    def tile(self, q_start: int, q_stop: int, k_start: int, k_stop: int) -> Self:
        """Return the bias of queries q_start..q_stop and keys k_start..k_stop, in the same structure."""
        raise NotImplementedError

    def check_values(self) -> None:
        """Raise ValueError if a number is not finite or an id is out of range.

        This reads the tensors, which on a GPU would wait for the device, so callers decide when to do it.
        """
        for name, tensor in self.tensors.items():
            if tensor.is_floating_point():
                check_finite(f"{type(self).__name__}.{name}", tensor)

    def fold(self, other: Structured) -> Structured | None:
        """Return one term equal to `self + other`, or None if the two do not share a structure and size."""
        return None

    # Generic handling of the tensors.

    @property
    def terms(self) -> Sequence[Structured]:
        """The terms of a sum; a bias that is no sum is its own only term."""
        return (self,)

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in self.TENSORS}

    @property
    def statics(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.STATICS}

    @property
    def requires_grad(self) -> bool:
        return any(tensor.requires_grad for term in self.terms for tensor in term.tensors.values())

    @property
    def device(self) -> torch.device:
        return next(iter(self.tensors.values())).device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the floating-point tensors."""
        return next(t.dtype for t in self.tensors.values() if t.is_floating_point())

    def rebuilt(self, tensors: Sequence[Tensor]) -> Self:
        """Return a bias of the same kind and settings around other tensors."""
        return type(self)(*tensors, **self.statics)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move or convert as `Tensor.to` does; integer tensors move to the device and keep their dtype."""
        moved = {name: t.to(*args, **kwargs) for name, t in self.tensors.items() if t.is_floating_point()}
        device = next(iter(moved.values())).device
        # Integers must not pass through the new dtype: half precision cannot represent 257.
        return self.rebuilt([moved[name] if name in moved else t.to(device) for name, t in self.tensors.items()])

    def detach(self) -> Self:
        return self.rebuilt([tensor.detach() for tensor in self.tensors.values()])

    def __repr__(self) -> str:
        sizes = ", ".join(f"{n}={tuple(t.shape)}" for n, t in self.tensors.items())
        shape = ", ".join("any" if length is None else str(length) for length in self.shape)
        learned = ", learned" if self.requires_grad else ""
        return f"{type(self).__name__}({sizes}; {dtype_name(self.dtype)}{learned}) of shape ({shape})"

    def __radd__(self, other: int | None) -> Self:
        if other is None or (isinstance(other, int) and other == 0):  # so that sum(biases) works
            return self
        raise TypeError(f"bias: expected another bias to add, got {type(other).__name__}. Wrap a matrix as Dense.")


class Bias(Structured):
    """A term added to the scaled scores: `softmax(scale * q k^T + bias) v`."""

    needs_query: ClassVar[bool] = False  # whether the term depends on the content of q

    def __add__(self, other: Bias | None) -> Bias:
        return self if other is None else cast(Bias, add(self, other))

    def dense(self, q: Tensor | None = None, *, k_len: int | None = None, scale: float | None = None) -> Tensor:
        """Compute the whole matrix by the formula as written, (B|1, H|1, Lq, Lk).

        Args:
            q: (B, H, Lq, D), needed by kinds that meet the query (`needs_query`), ignored by the others.
            k_len: key length, for kinds that fit any length; Lq unless given.
            scale: the attention's scale, for kinds that meet the query; D**-0.5 unless given.
        """
        raise NotImplementedError

    def at_least(self, dtype: torch.dtype) -> Self:
        """Return the bias with floating-point tensors that are narrower than `dtype` upcast to it."""
        tensors = self.tensors.values()
        wide = [t.to(torch.promote_types(t.dtype, dtype)) if t.is_floating_point() else t for t in tensors]
        return self if all(new is old for new, old in zip(wide, tensors, strict=True)) else self.rebuilt(wide)

    def frozen(self) -> Self:
        """Return a detached copy that computes its dense matrix once and caches it, for inference.

        The copy owns its tensors, so later changes of the originals cannot make the cached matrix wrong.
        """
        copy = self.rebuilt([tensor.detach().clone() for tensor in self.tensors.values()])
        object.__setattr__(copy, "_cache", {})
        return copy

    @property
    def is_frozen(self) -> bool:
        """Whether this is a copy made by `frozen`."""
        return hasattr(self, "_cache")

    def _cache_bound(self, bound: Self) -> Self:
        """Return `bound`; a frozen bias freezes it too, and returns the same object for the same lengths."""
        cache: dict[Any, Any] | None = getattr(self, "_cache", None)
        if cache is None:
            return bound
        if bound.lengths not in cache:
            object.__setattr__(bound, "_cache", {})  # its tensors are those of the frozen bias
            cache[bound.lengths] = bound
        found: Self = cache[bound.lengths]
        return found

    def dense_once(self, dtype: torch.dtype) -> Tensor:
        """Return `dense()` in `dtype`; a frozen bias computes it once."""
        cache: dict[torch.dtype, Tensor] | None = getattr(self, "_cache", None)
        if cache is None:
            with without_autocast(self.device.type):
                return self.at_least(dtype).dense().to(dtype)
        if dtype not in cache:
            with torch.inference_mode(False), torch.no_grad(), without_autocast(self.device.type):
                cache[dtype] = self.at_least(dtype).dense().to(dtype).contiguous()
        return cache[dtype]

    def addend(self, dtype: torch.dtype, allowed: Tensor | None) -> Tensor:
        """Return the matrix to add to scores of `dtype`, with -inf at pairs that are not allowed; see `rounded`."""
        tensors = [tensor for term in self.terms for tensor in term.tensors.values() if tensor.is_floating_point()]
        own = functools.reduce(
            torch.promote_types, (tensor.dtype for tensor in tensors), torch.promote_types(dtype, torch.float32)
        )
        cache: dict[tuple[str, torch.dtype], Tensor] | None = getattr(self, "_cache", None)
        if cache is None or own == dtype or allowed is not None:
            return rounded(self.dense_once(own), dtype, allowed)
        if ("addend", dtype) not in cache:
            with torch.inference_mode(False), torch.no_grad():
                cache["addend", dtype] = rounded(self.dense_once(own), dtype, None)
        return cache["addend", dtype]


def rounded(
    matrix: Tensor,
    dtype: torch.dtype,
    allowed: Tensor | None,  # boolean, True = may attend, at least one in each row; None: everything
) -> Tensor:
    """Round a matrix that is added to scores to `dtype`, with -inf at pairs that may not attend.

    The maximum over the allowed keys is first subtracted from each row. That changes no attention weight, and a large
    common offset would cost all numbers of the row their precision. Numbers too low for `dtype` stay finite.
    """
    if allowed is not None:
        matrix = matrix.masked_fill(~allowed, -torch.inf)  # a low finite number could be a bias
    if torch.finfo(matrix.dtype).eps >= torch.finfo(dtype).eps:
        return matrix.to(dtype)
    low = (matrix - matrix.detach().amax(-1, keepdim=True)).clamp(min=torch.finfo(dtype).min).to(dtype)
    return low if allowed is None else low.masked_fill(~allowed, -torch.inf)


class ValueBias(Structured):
    """A term added to each value as seen from each query: `out_i = sum_j w_ij (v_j + value_bias_ij)`."""

    def __add__(self, other: ValueBias | None) -> ValueBias:
        return self if other is None else cast(ValueBias, add(self, other))

    def dense(self, *, q_len: int | None = None, k_len: int | None = None) -> Tensor:
        """Compute the whole tensor by the formula as written, (B|1, H|1, Lq, Lk, D)."""
        raise NotImplementedError

    def weigh(self, weights: Tensor) -> Tensor:
        """Compute sum_j weights_ij value_bias_ij, (B, H, Lq, Lk) to (B, H, Lq, D), without the tensor of `dense`."""
        raise NotImplementedError


T = TypeVar("T", bound=Structured)


class _Terms(Structured, Generic[T]):
    """Two or more terms that are added; their shapes broadcast as those of tensors do."""

    def __init__(self, *terms: T) -> None:
        if len(terms) < 2:
            raise ValueError(f"{type(self).__name__}: expected at least two terms, got {len(terms)}.")
        self._terms: Sequence[T] = tuple(part for term in terms for part in term.terms)  # type: ignore[misc]
        _ = self.shape  # raises if the shapes of the terms do not broadcast

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
            size = broadcast_size("batch", size, term.batch)
        return size

    @property
    def heads(self) -> int:
        size = 1
        for term in self._terms:
            size = broadcast_size("head", size, term.heads)
        return size

    @property
    def lengths(self) -> tuple[Length, Length]:
        q_len: Length = None
        k_len: Length = None
        for term in self._terms:
            q_len = _common_length("query", q_len, term.lengths[0])
            k_len = _common_length("key", k_len, term.lengths[1])
        return q_len, k_len

    def bind(self, q_len: int, k_len: int) -> Self:
        terms = [term.bind(q_len, k_len) for term in self._terms]
        unchanged = all(new is old for new, old in zip(terms, self._terms, strict=True))
        return self if unchanged else type(self)(*terms)

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
        return self if bound is self else self._cache_bound(bound)

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
        total = self._terms[0].dense_once(dtype)  # a term may be frozen on its own
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
    """Add two biases: a flat sum in which terms of one structure are folded into one."""
    for base, whole in ((Bias, Sum), (ValueBias, ValueSum)):
        if isinstance(a, base) and isinstance(b, base):
            broadcast_size("batch", a.batch, b.batch)
            broadcast_size("head", a.heads, b.heads)
            terms: list[Structured] = list(a.terms)
            for term in b.terms:
                _add_term(terms, term)
            return terms[0] if len(terms) == 1 else whole(*terms)  # type: ignore[arg-type]
    raise TypeError(
        f"bias: expected two score biases or two value biases to add, got {type(a).__name__} and {type(b).__name__}. "
        f"Wrap a matrix as Dense; pass value biases as value_bias=."
    )


def _add_term(terms: list[Structured], new: Structured) -> None:
    """Fold a new term into the first one that takes it, or append it."""
    for index, old in enumerate(terms):
        folded = old.fold(new)
        if folded is not None:
            terms[index] = folded
            return
    terms.append(new)


def _common_length(axis: str, a: Length, b: Length) -> Length:
    if a is not None and b is not None and a != b:
        raise ValueError(
            f"bias: its terms were made for different {axis} lengths, {a} and {b}. Make all of them for one call."
        )
    return a if a is not None else b
