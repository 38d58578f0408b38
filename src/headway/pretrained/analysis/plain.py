"""Dataclasses of arrays as plain values for JSON, and as one flat dictionary of arrays."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from headway.pretrained.analysis.arrays import Array

DIGITS = 6


def plain(value: Any, *, leave_out: Set[str] = frozenset()) -> Any:
    """Dictionaries, lists, strings and finite numbers; None for what is not finite. Fields named are left out,
    unless they hold one number."""
    if is_dataclass(value):
        return {
            name: plain(part, leave_out=leave_out)
            for name, part in _parts(value)
            if name not in leave_out or isinstance(part, float)
        }
    if isinstance(value, dict):
        return {str(name): plain(part, leave_out=leave_out) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part, leave_out=leave_out) for part in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist(), leave_out=leave_out)
    if isinstance(value, np.generic):
        return plain(value.item(), leave_out=leave_out)
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None
    return value


def flattened(value: Any) -> dict[str, Array]:
    """Every array by its dotted name; floats as float32."""
    return {
        ".".join(path): array.astype(np.float32) if array.dtype == np.float64 else array
        for path, array in _arrays(value, ())
    }


def _arrays(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Array]]:
    if isinstance(value, np.ndarray):
        yield path, value
    elif is_dataclass(value) or isinstance(value, dict):
        for name, part in value.items() if isinstance(value, dict) else _parts(value):
            yield from _arrays(part, (*path, str(name)))


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    return ((field.name, getattr(value, field.name)) for field in fields(value))
