"""Figures with a place for every head: layers are rows, heads columns."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from headway.bench.report.analysis.saved import Array, Saved
from headway.bench.report.figures import AMOUNT, SERIES, without_grid

GAP = 0.08  # space between heads, as a share of a head's side
TRIM = (0.005, 0.995)  # quantiles of the values that the colours span, so that outliers do not take them all
REACH = 64  # offsets to either side in profiles
KIND_COLOURS = {  # the same as KINDS in analysis/explorer.js
    "previous": "#0072b2",
    "next": "#56b4e9",
    "first": "#e69f00",
    "local": "#009e73",
    "broad": "#cc79a7",
    "other": "#969696",
}


def draw_grid(figure: Figure, saved: Saved) -> None:
    """Draw the Toeplitz R² of every head, as colours and numbers."""
    values = np.array(saved.measures["heads"]["r2"])
    axes = _grid_axes(figure, "Toeplitz R² of position scores", values.shape)
    picture = axes.imshow(values, cmap=AMOUNT, vmin=0, vmax=1, aspect="auto")
    for (layer, head), value in np.ndenumerate(values):
        axes.text(
            head, layer, f"{value:.2f}", ha="center", va="center", fontsize=7, color="black" if value > 0.5 else "white"
        )
    figure.colorbar(picture, ax=axes)


def draw_kinds(figure: Figure, saved: Saved) -> None:
    """Draw the kind of every head, from positions alone."""
    kinds = np.array(saved.measures["heads"]["kinds"])
    names = list(KIND_COLOURS)
    axes = _grid_axes(figure, "Kinds of heads, from positions alone", kinds.shape)
    numbers = np.vectorize(names.index)(kinds)
    picture = axes.imshow(
        numbers, cmap=ListedColormap(list(KIND_COLOURS.values())), vmin=-0.5, vmax=len(names) - 0.5, aspect="auto"
    )
    for (layer, head), kind in np.ndenumerate(kinds):
        axes.text(
            head,
            layer,
            kind[0].upper(),
            ha="center",
            va="center",
            fontsize=7,
            color="white" if kind == "previous" else "black",
        )
    figure.colorbar(picture, ax=axes, ticks=range(len(names))).ax.set_yticklabels(names)


def draw_atlas(figure: Figure, saved: Saved, *, name: str, title: str) -> None:
    """Draw a picture of every head, each in its own range of colours."""
    pictures = saved.arrays[name].astype(np.float64)  # (layers, H, P, P)
    low, high = np.quantile(pictures, TRIM, axis=(2, 3), keepdims=True)
    shares = np.clip((pictures - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0)
    axes = _grid_axes(figure, f"{title}, each head in its own colours", shares.shape[:2])
    axes.imshow(
        _join_pictures(shares),
        cmap=AMOUNT,
        extent=(-0.5, shares.shape[1] - 0.5, shares.shape[0] - 0.5, -0.5),
        interpolation="none",
    )


def _join_pictures(pictures: Array) -> Array:
    """Join the pictures of all heads into one (layers * side, H * side), with gaps between them."""
    layers, heads, side, _ = pictures.shape
    gap = max(1, round(side * GAP))
    framed = np.full((layers, heads, side + gap, side + gap), np.nan)
    framed[..., gap // 2 : gap // 2 + side, gap // 2 : gap // 2 + side] = pictures
    tiled: Array = framed.transpose(0, 2, 1, 3).reshape(layers * (side + gap), heads * (side + gap))
    return tiled


def draw_profiles(figure: Figure, saved: Saved) -> None:
    """Draw every head's profile near offset 0 and its fit with most kernels (Wennberg and Henter 2021, Fig. 3)."""
    offsets = saved.arrays["heads.offsets"]
    near = np.abs(offsets) <= REACH
    x, profile = offsets[near], saved.arrays["heads.mean"][..., near]  # (layers, H, N)
    most = max(saved.measures["heads"]["fits"], key=int)
    fit = _curves(saved, most, x)
    low, high = (extreme(np.stack([profile, fit]), axis=(0, 3)) for extreme in (np.min, np.max))
    title = f"Profiles of $F_P$ within {REACH} tokens, and fits with {most} kernels (dashed)"
    axes = _grid_axes(figure, title, profile.shape[:2])
    for curves, colour, style in ((profile, SERIES[0], "solid"), (fit, SERIES[1], "dashed")):
        height = (curves - low[..., None]) / np.where(high > low, high - low, 1.0)[..., None]
        lines = [
            np.column_stack([head + (x - x.mean()) / np.ptp(x) * (1 - GAP), layer + (0.5 - one) * (1 - 2 * GAP)])
            for layer, row in enumerate(height)
            for head, one in enumerate(row)
        ]
        axes.add_collection(LineCollection(lines, colors=colour, linewidths=0.9, linestyles=style))
    axes.set(xlim=(-0.5, profile.shape[1] - 0.5), ylim=(profile.shape[0] - 0.5, -0.5))


def _curves(saved: Saved, kernels: str, offsets: Array) -> Array:  # (layers, H, N)
    amplitude, sharpness, center, constant = (
        saved.arrays[f"heads.fits.{kernels}.{part}"].astype(np.float64)[..., None]
        for part in ("amplitude", "sharpness", "center", "constant")
    )
    bells = amplitude * np.exp(-sharpness * (offsets - center) ** 2)  # (layers, H, S, N)
    curves: Array = bells.sum(axis=2) + constant
    return curves


def _grid_axes(figure: Figure, title: str, shape: tuple[int, ...]) -> Axes:
    axes = without_grid(figure.subplots())
    axes.set(title=title, xlabel="head", ylabel="layer", xticks=range(shape[1]), yticks=range(shape[0]))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return axes
