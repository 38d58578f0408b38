"""The arrays that the page of an analysis shows, reduced so that the page has at most a few megabytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from headway.bench.report.analysis.saved import Array, Saved
from headway.bench.report.packing import pack

PICTURES = 2_500_000  # most numbers in all pictures of F_P together; with many heads, pictures are smaller
CORNERS = 800_000  # most numbers in all pictures of the first positions together; many heads show fewer positions
PATTERN = 24  # offsets to either side in patterns of attention
NEAR, FAR = 512, 512  # all offsets up to NEAR are drawn, and beyond it about FAR to either side


def pack_arrays(saved: Saved) -> dict[str, Any]:
    """Pack all arrays that scripts draw into one value for JSON."""
    arrays = saved.arrays
    offsets = choose_offsets(arrays["heads.offsets"])
    chosen: dict[str, tuple[Array, int]] = {
        "offsets": (arrays["heads.offsets"][None, offsets], 16),
        "mean": (saved.per_head("heads.mean")[:, offsets], 16),
        "std": (saved.per_head("heads.std")[:, offsets], 8),
        "picture": (shrink_pictures(saved.per_head("heads.picture")), 8),
        "corner": (crop_pictures(saved.per_head("heads.corner")), 8),
        "attention": (crop_pictures(saved.per_head("heads.attention")), 8),
        **_patterns(saved, "heads", "pattern"),
    }
    if saved.measures["table"] is not None:
        chosen["gram"] = (arrays["gram_picture"][None], 16)
        inner = choose_offsets(arrays["table.gram.offsets"])
        chosen["gramOffsets"] = (arrays["table.gram.offsets"][None, inner], 16)
        chosen["gramMean"] = (arrays["table.gram.mean"][:, inner], 16)
        chosen["gramStd"] = (np.sqrt(arrays["table.gram.variance"][:, inner]), 16)
        for name in ("norms", "neighbours", "seam.jump", "cosines.counts"):
            chosen[name.split(".")[-1]] = (arrays[f"table.{name}"][None], 16)
    if saved.measures["texts"] is not None:
        chosen |= _patterns(saved, "texts", "textPattern")
    if saved.measures["segments"] is not None:
        chosen["segmentAttention"] = (saved.per_head("segments.attention"), 8)
    if saved.measures["curves"] is not None:
        chosen["curve"] = (saved.per_head("curves.mean")[:, offsets], 16)
        chosen["curveSpread"] = (saved.per_head("curves.std")[:, offsets], 16)
        for term in saved.curve_terms:
            chosen[f"curveTerm {term}"] = (saved.per_head(f"curves.terms.{term}")[:, offsets], 16)
    return pack(chosen)


def _patterns(saved: Saved, part: str, name: str) -> dict[str, tuple[Array, int]]:
    offsets = saved.arrays[f"{part}.patterns.offsets"]
    near = np.abs(offsets) <= PATTERN
    shares = saved.per_head(f"{part}.patterns.by_offset")[:, near]
    return {f"{name}Offsets": (offsets[None, near], 16), name: (shares, 16)}


def choose_offsets(offsets: Array) -> Array:
    """Choose the offsets to draw: all near ones, evenly spaced far ones, and both ends."""
    distance = np.abs(offsets)
    step = max(1, -(-(int(distance.max()) - NEAR) // FAR))
    return np.flatnonzero((distance <= NEAR) | (distance % step == 0) | (distance == distance.max()))


def shrink_pictures(pictures: Array) -> Array:  # (heads, P, P)
    """Halve the side of pictures, by means of four pixels, until all together are small enough."""
    while pictures.size > PICTURES and pictures.shape[-1] % 2 == 0 and pictures.shape[-1] > 16:
        heads, side, _ = pictures.shape
        pictures = pictures.reshape(heads, side // 2, 2, side // 2, 2).mean(axis=(2, 4))
    return pictures


def crop_pictures(pictures: Array) -> Array:  # (heads, C, C)
    """Crop pictures to the first positions, to fewer if there are many heads."""
    side = pictures.shape[-1]
    while len(pictures) * side * side > CORNERS and side > 16:
        side //= 2
    return pictures[:, :side, :side]
