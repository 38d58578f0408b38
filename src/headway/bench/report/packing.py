"""Arrays packed for a page: quantised to 8 or 16 bits, as differences, compressed.

Each row of the first axis has its own range, so that a head with small scores keeps its precision. `unpack` in
templates/scripts/data.js reads them.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def pack(arrays: Mapping[str, tuple[Array, int]]) -> dict[str, Any]:
    """Pack arrays, each with its number of bits, into one value for JSON."""
    index: dict[str, Any] = {}
    parts: list[bytes] = []
    at = 0
    for name, (array, bits) in arrays.items():
        low, step, numbers = quantize(array.reshape(len(array), -1), bits)
        content = np.diff(numbers, axis=-1, prepend=numbers.dtype.type(0)).tobytes()  # differences compress better
        index[name] = {"shape": list(array.shape), "bits": bits, "at": at, "low": low.tolist(), "step": step.tolist()}
        parts.append(content + b"\0" * (-len(content) % 2))  # arrays of 16 bits begin at even places
        at += len(parts[-1])
    blob = base64.b64encode(zlib.compress(b"".join(parts), 9)).decode()
    return {"index": index, "blob": blob}


def quantize(rows: Array, bits: int) -> tuple[Array, Array, Array]:  # (N, M)
    """Quantise rows: return minimum (N,), step (N,) and integers (N, M), with row = minimum + step * integer."""
    whole = np.issubdtype(rows.dtype, np.integer)
    rows = rows.astype(np.float64)
    if not np.isfinite(rows).all():
        raise ValueError("arrays: expected finite numbers, got NaN or infinity. Measure the model again.")
    low, high = rows.min(axis=1), rows.max(axis=1)
    step = (high - low) / (2**bits - 1)
    if whole:
        step = np.maximum(step, 1.0)  # whole numbers that fit come back exactly
    numbers = np.round((rows - low[:, None]) / np.where(step == 0.0, 1.0, step)[:, None])
    return low, step, numbers.astype({8: "<u1", 16: "<u2"}[bits])
