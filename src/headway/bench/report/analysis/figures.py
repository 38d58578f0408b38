"""`analysis_figures`: the measures of one analysed model as PNG pictures and SVG charts."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from headway.bench.report.analysis.atlas import TRIM, draw_atlas, draw_grid, draw_kinds, draw_profiles
from headway.bench.report.analysis.saved import Array, Saved, read_saved
from headway.bench.report.figures import AMOUNT, DASHES, SERIES, save_figure, without_grid

Figures = dict[str, tuple[Callable[..., None], tuple[float, float]]]  # drawing function, and size in inches


def analysis_figures(folder: str | os.PathLike[str]) -> list[Path]:
    """Write figures/ beside the measures.json and arrays.npz in a folder; return the files."""
    saved = read_saved(folder)
    into = saved.folder / "figures"
    return [
        save_figure(into / name, partial(draw, saved=saved), size) for name, (draw, size) in list_figures(saved).items()
    ]


def list_figures(saved: Saved) -> Figures:
    """Return the figures that can be drawn of a model, by the name of the file."""
    layers, heads = np.shape(saved.measures["heads"]["r2"])
    atlas = (0.9 * heads + 1.0, 0.9 * layers + 0.8)
    grid = (0.5 * heads + 2.2, 0.42 * layers + 1.2)
    figures: Figures = {
        "heads_toeplitz_r2.png": (draw_grid, grid),
        "heads_kinds.png": (draw_kinds, grid),
        "heads_scores.png": (partial(draw_atlas, name="heads.picture", title="Position scores $F_P$"), atlas),
        "heads_attention.png": (partial(draw_atlas, name="heads.attention", title="Attention, positions alone"), atlas),
        "heads_profiles.svg": (draw_profiles, atlas),
        "first_token.svg": (draw_first, (6, 3.5)),
    }
    if saved.measures["table"] is not None:
        figures["position_table.png"] = (draw_table, (10, 8))
        figures["position_cosines.svg"] = (draw_cosines, (6, 3.5))
    if saved.measures["segments"] is not None:
        title = "Attention, positions and two segments"
        figures["segment_attention.png"] = (partial(draw_atlas, name="segments.attention", title=title), atlas)
    if saved.measures["texts"] is not None:
        figures["ranks.svg"] = (draw_ranks, (10, 3.8))
    if saved.measures["curves"] is not None:
        columns = min(4, layers)
        size = (3.2 * columns, 2.4 * -(-layers // columns))
        figures["bias_curves.svg"] = (draw_curves, size)
        for term in saved.curve_terms:
            figures[f"bias_curves_{term}.svg"] = (partial(draw_curves, term=term), size)
    return figures


def draw_table(figure: Figure, saved: Saved) -> None:
    """Draw E_P E_Pᵀ, its windows, lengths and neighbours (Wennberg and Henter 2021, Figs. 1, 2 and 4)."""
    table, length = saved.measures["table"], saved.measures["model"]["positions"]
    (gram, windows), (norms, neighbours) = figure.subplots(2, 2)
    extent = (-0.5, length - 0.5, length - 0.5, -0.5)
    inner = saved.arrays["gram_picture"]
    low, high = np.quantile(inner, TRIM)
    picture = without_grid(gram).imshow(inner, cmap=AMOUNT, extent=extent, vmin=low, vmax=high)
    figure.colorbar(picture, ax=gram, shrink=0.85, extend="both")
    gram.set(title=f"Inner products, Toeplitz R² {table['r2']:.3f}", xlabel="position", ylabel="position")
    starts, size = table["windows"]["starts"], table["windows"]["size"]
    windows.plot(starts, table["windows"]["r2"][0], "o-", color=SERIES[0])
    span = (-0.03 * length, length)  # else a single window would get an axis of fractions
    windows.set(title=f"Toeplitz R² of {size} positions", xlabel="first of them", xlim=span, ylim=(0, 1.02))
    for axes, name, title in (
        (norms, "norms", "Length of each position's vector"),
        (neighbours, "neighbours", "Cosine between p and p + 1"),
    ):
        axes.plot(saved.arrays[f"table.{name}"], color=SERIES[0])
        axes.set(title=title, xlabel="position")
        if table["seam"]["start"] is not None:
            axes.axvline(table["seam"]["start"], color=SERIES[1], linestyle="--", linewidth=1)


def draw_cosines(figure: Figure, saved: Saved) -> None:
    """Draw the distribution of cosines between positions (Chen et al. 2021b, Fig. 5)."""
    edges, counts = saved.arrays["table.cosines.edges"], saved.arrays["table.cosines.counts"]
    axes = figure.subplots()
    axes.stairs(counts / counts.sum(), edges, fill=True, color=SERIES[0])
    axes.set(title="Cosine between all pairs of positions", xlabel="cosine", ylabel="share of pairs", xlim=(-1, 1))


def draw_first(figure: Figure, saved: Saved) -> None:
    """Draw attention to the first token by layer: the mean over heads and the range."""
    axes = figure.subplots()
    parts = {"positions alone": saved.measures["heads"], "on texts": saved.measures["texts"]}
    for n, (name, part) in enumerate(parts.items()):
        if part is not None:
            _by_layer(axes, name, np.array(part["patterns"]["first"]), n)
    axes.set(title="Attention to the first token", xlabel="layer", ylabel="share")
    axes.legend()


def draw_ranks(figure: Figure, saved: Saved) -> None:
    """Draw ranks on texts (Chen et al. 2021b, Figs. 2, 8): whole scores by layer, and parts of them in the first."""
    ranks = saved.measures["texts"]["ranks"]
    layers, heads = figure.subplots(1, 2)
    for n, kind in enumerate(("numerical", "relative", "effective")):
        _by_layer(layers, kind, np.array(ranks["average"]["whole"][kind]), n)
    layers.axhline(ranks["head_dim"], color=SERIES[5], linewidth=1, label=f"width of a head, {ranks['head_dim']}")
    layers.set(title="Whole scores", xlabel="layer", ylabel="rank", ylim=(0, None))
    layers.legend()
    for n, (part, found) in enumerate(ranks["average"].items()):
        heads.plot(found["effective"][0], "os^"[n], color=SERIES[n], label=part)
    heads.set(title="First layer", xlabel="head", ylabel="effective rank", ylim=(0, None))
    heads.legend()


def draw_curves(figure: Figure, saved: Saved, *, term: str | None = None) -> None:
    """Draw what is added to the scores by offset, or one term of it, a line for each head."""
    mean = saved.arrays["curves.mean" if term is None else f"curves.terms.{term}"]
    offsets, what = saved.arrays["curves.offsets"], "" if term is None else f", {term}"
    columns = min(4, len(mean))
    grid = figure.subplots(-(-len(mean) // columns), columns, squeeze=False, sharex=True)
    for axes in grid.flat[len(mean) :]:
        axes.remove()
    for layer, axes in enumerate(grid.flat[: len(mean)]):
        for head, curve in enumerate(mean[layer]):
            axes.plot(offsets, curve, color=SERIES[head % len(SERIES)], linewidth=0.9)
        axes.set(title=f"layer {layer}{what}", xlabel="offset j − i")


def _by_layer(axes: Axes, name: str, values: Array, n: int) -> None:  # (layers, H)
    layers = np.arange(len(values))
    axes.plot(layers, values.mean(axis=1), color=SERIES[n], linestyle=DASHES[n], label=name)
    axes.fill_between(layers, values.min(axis=1), values.max(axis=1), color=SERIES[n], alpha=0.18, linewidth=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
