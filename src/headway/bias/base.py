"""What every structured bias is: a small immutable value that names its tensors, its shape and its formula."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor

from headway.running import without_autocast

Length = int | None  # None: not fixed by the bias itself, taken from the call
IDS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)  # of wider unsigned ones torch knows no minimum


class Structured:
    """Base of everything that `attention` adds to scores (`Bias`) or to values (`ValueBias`).

    A kind lists its tensors in `TENSORS` and its whole-number settings in `STATICS`, both in the order of its
    constructor. Everything generic (moving, detaching, flattening for custom operators, printing) follows from that.
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
        """The same bias with both lengths fixed; raises where they do not fit."""
        raise NotImplementedError

    def tile(self, q_start: int, q_stop: int, k_start: int, k_stop: int) -> Self:
        """The bias of queries q_start..q_stop and keys k_start..k_stop, in the same structure."""
        raise NotImplementedError

    def check_values(self) -> None:
        """Raise where a value, not a shape, is wrong. Reads the tensors, so it runs only where that is cheap."""
        for name, tensor in self.tensors.items():
            if tensor.is_floating_point():
                check_finite(f"{type(self).__name__}.{name}", tensor)

    # Generic handling of the tensors.

    @property
    def terms(self) -> Sequence[Structured]:
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
        """The dtype of the floating tensors."""
        return next(t.dtype for t in self.tensors.values() if t.is_floating_point())

    def rebuilt(self, tensors: Sequence[Tensor]) -> Self:
        """The same kind and settings around other tensors."""
        return type(self)(*tensors, **self.statics)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """As `Tensor.to`; integer tensors follow the device and keep their dtype."""
        moved = {name: t.to(*args, **kwargs) for name, t in self.tensors.items() if t.is_floating_point()}
        device = next(iter(moved.values())).device
        # Not by way of the new dtype: half precision has no 257.
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
        return self if other is None else cast(Bias, _add(self, other))

    def dense(self, q: Tensor | None = None, *, k_len: int | None = None, scale: float | None = None) -> Tensor:
        """The formula as written, (B|1, H|1, Lq, Lk).

        Args:
            q: (B, H, Lq, D), needed by kinds that meet the query (`needs_query`), ignored by the others.
            k_len: key length, for kinds that fit any length; Lq unless given.
            scale: the attention's scale, for kinds that meet the query; D**-0.5 unless given.
        """
        raise NotImplementedError

    def at_least(self, dtype: torch.dtype) -> Self:
        """The bias with numbers of `dtype` where its own have fewer digits: what is made of them then has not fewer."""
        tensors = self.tensors.values()
        wide = [t.to(torch.promote_types(t.dtype, dtype)) if t.is_floating_point() else t for t in tensors]
        return self if all(new is old for new, old in zip(wide, tensors, strict=True)) else self.rebuilt(wide)

    def frozen(self) -> Self:
        """A detached copy that works out its dense matrix once and keeps it: for inference with unchanged parameters.

        The copy owns its tensors, so nothing that happens to the originals later can make the kept matrix wrong.
        """
        copy = self.rebuilt([tensor.detach().clone() for tensor in self.tensors.values()])
        object.__setattr__(copy, "_kept", {})
        return copy

    @property
    def is_frozen(self) -> bool:
        return hasattr(self, "_kept")

    def _bound_once(self, bound: Self) -> Self:
        """The bias with both lengths fixed; of a frozen one always the same for the same lengths, and frozen too."""
        kept: dict[Any, Any] | None = getattr(self, "_kept", None)
        if kept is None:
            return bound
        if bound.lengths not in kept:
            object.__setattr__(bound, "_kept", {})  # its tensors are the frozen one's own
            kept[bound.lengths] = bound
        found: Self = kept[bound.lengths]
        return found

    def dense_once(self, dtype: torch.dtype) -> Tensor:
        """`dense()` in `dtype`, kept by a frozen bias."""
        kept: dict[torch.dtype, Tensor] | None = getattr(self, "_kept", None)
        if kept is None:
            with without_autocast(self.device.type):
                return self.at_least(dtype).dense().to(dtype)
        if dtype not in kept:
            with torch.inference_mode(False), torch.no_grad(), without_autocast(self.device.type):
                kept[dtype] = self.at_least(dtype).dense().to(dtype).contiguous()
        return kept[dtype]

    def addend(self, dtype: torch.dtype, allowed: Tensor | None) -> Tensor:
        """What scores may have added in place of `dense()` where that must be in `dtype`: see `rounded`."""
        tensors = [tensor for term in self.terms for tensor in term.tensors.values() if tensor.is_floating_point()]
        own = functools.reduce(
            torch.promote_types, (tensor.dtype for tensor in tensors), torch.promote_types(dtype, torch.float32)
        )
        kept: dict[tuple[str, torch.dtype], Tensor] | None = getattr(self, "_kept", None)
        if kept is None or own == dtype or allowed is not None:
            return rounded(self.dense_once(own), dtype, allowed)
        if ("addend", dtype) not in kept:
            with torch.inference_mode(False), torch.no_grad():
                kept["addend", dtype] = rounded(self.dense_once(own), dtype, None)
        return kept["addend", dtype]


def rounded(
    matrix: Tensor,
    dtype: torch.dtype,
    allowed: Tensor | None,  # boolean, True = may attend, at least one in each row; None: everything
) -> Tensor:
    """A matrix to be added to scores, in `dtype`, -inf where nothing may be seen.

    Before it is rounded to fewer digits, each row loses the largest number that is seen, which changes no weight and
    would take digits from all others; and what is then too low stays finite.
    """
    if allowed is not None:
        matrix = matrix.masked_fill(~allowed, -torch.inf)  # not a low number, which a bias may have too
    if torch.finfo(matrix.dtype).eps >= torch.finfo(dtype).eps:
        return matrix.to(dtype)
    low = (matrix - matrix.detach().amax(-1, keepdim=True)).clamp(min=torch.finfo(dtype).min).to(dtype)
    return low if allowed is None else low.masked_fill(~allowed, -torch.inf)


class ValueBias(Structured):
    """A term added to each value as seen from each query: `out_i = sum_j w_ij (v_j + value_bias_ij)`."""

    def __add__(self, other: ValueBias | None) -> ValueBias:
        return self if other is None else cast(ValueBias, _add(self, other))

    def dense(self, *, q_len: int | None = None, k_len: int | None = None) -> Tensor:
        """The formula as written, (B|1, H|1, Lq, Lk, D)."""
        raise NotImplementedError

    def weigh(self, weights: Tensor) -> Tensor:
        """sum_j weights_ij value_bias_ij: (B, H, Lq, Lk) to (B, H, Lq, D), without the five-dimensional array."""
        raise NotImplementedError


def _add(a: Structured, b: Structured) -> Structured:
    from headway.bias.sums import add  # sums know the kinds; the kinds do not know sums

    return add(a, b)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_rank(name: str, tensor: Tensor, axes: str) -> None:
    rank = len(axes.split(","))
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: expected a tensor ({axes}), got {type(tensor).__name__}.")
    if tensor.dim() != rank:
        raise ValueError(
            f"{name}: expected {rank} axes ({axes}), got {tensor.dim()} in shape {tuple(tensor.shape)}."
            + (" Add the missing axes with size 1 to share over them." if tensor.dim() < rank else "")
        )
    if 0 in tensor.shape:
        raise ValueError(f"{name}: expected no empty axis ({axes}), got shape {tuple(tensor.shape)}.")


def check_float(name: str, tensor: Tensor) -> None:
    if not tensor.is_floating_point():
        raise TypeError(f"{name}: expected a floating dtype, got {dtype_name(tensor.dtype)}. Convert it with .float().")


def check_integer(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in IDS:
        raise TypeError(f"{name}: expected integer ids, got {dtype_name(tensor.dtype)}. Convert it with .long().")


def check_same_device(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    if tensor.device != other.device:
        raise ValueError(
            f"{name}: expected device {other.device} (from {other_name}), got {tensor.device}. Move it with .to()."
        )


def check_finite(name: str, tensor: Tensor) -> None:
    # One cheap pass first: a sum is finite unless something in it is not (or it overflowed).
    if not torch.isfinite(tensor.detach().sum()) and not torch.isfinite(tensor.detach()).all():
        raise ValueError(
            f"{name}: expected finite values, got NaN or infinity. "
            f"Check the parameters (a diverged run?); to forbid attention use mask=, not an infinite bias."
        )


def check_ids(name: str, ids: Tensor, size: int, size_name: str) -> None:
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= size:
        raise ValueError(f"{name}: expected ids from 0 to {size - 1} ({size_name}), got {low} to {high}.")


def check_length(kind: str, axis: str, own: Length, asked: int) -> None:
    if own is not None and own != asked:
        source = "q" if axis == "query" else "k"
        raise ValueError(
            f"bias: expected {axis} length {asked} (from {source}), got {own} from {kind}. "
            f"Rebuild it for these lengths, e.g. encoding.bias(layer, q_len, k_len)."
        )


def check_tile(shape: tuple[int, int, Length, Length], q_start: int, q_stop: int, k_start: int, k_stop: int) -> None:
    for axis, start, stop, length in (("query", q_start, q_stop, shape[2]), ("key", k_start, k_stop, shape[3])):
        if not 0 <= start < stop or (length is not None and stop > length):
            limit = "any length" if length is None else f"length {length}"
            raise ValueError(f"tile: expected a non-empty {axis} range within {limit}, got {start}:{stop}.")


def joined(name: str, a: int, b: int) -> int:
    """The common size of two axes of which either may be 1."""
    if a != b and 1 not in (a, b):
        raise ValueError(f"bias: expected equal {name} sizes or 1, got {a} and {b}.")
    return max(a, b)


def offsets(q_len: int, k_len: int, q_start: int = 0, *, device: torch.device | None = None) -> Tensor:
    """j - i for every pair, (Lq, Lk), with query 0 standing at key position q_start."""
    i = torch.arange(q_start, q_start + q_len, device=device)
    j = torch.arange(k_len, device=device)
    return j[None, :] - i[:, None]
