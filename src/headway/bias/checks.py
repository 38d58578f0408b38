"""Checks of a bias' arguments, with messages that name the argument, the expected value and the remedy."""

from __future__ import annotations

import torch
from torch import Tensor

Length = int | None  # None: the bias does not fix it; it comes from the call
IDS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)  # torch has no min() for wider unsigned types


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


def broadcast_size(name: str, a: int, b: int) -> int:
    """Return the size that two axes broadcast to."""
    if a != b and 1 not in (a, b):
        raise ValueError(f"bias: expected equal {name} sizes or 1, got {a} and {b}.")
    return max(a, b)


def offsets(q_len: int, k_len: int, q_start: int = 0, *, device: torch.device | None = None) -> Tensor:
    """Return the offset j - i of every pair, (Lq, Lk), where query 0 is at position q_start of the keys."""
    i = torch.arange(q_start, q_start + q_len, device=device)
    j = torch.arange(k_len, device=device)
    return j[None, :] - i[:, None]
