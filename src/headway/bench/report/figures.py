"""What the figures of all reports share: their look, and how they are saved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headway.storage import atomic_path

AMOUNT, SIGN = "viridis", "RdBu_r"  # colour maps of amounts and of signed values
SERIES = ("#0b62a4", "#c04f00", "#00795a", "#9b3f7d", "#7a5c00", "#4b4f58")  # as --s1 to --s6 of base.css
DASHES = ("-", "--", ":", "-.", (0, (4, 2)), "-")
DPI = 150

LOOK: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#d3d8de",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "svg.hashsalt": "headway",  # the same data give the same file
}


def save_figure(path: Path, draw: Callable[[Figure], None], size: tuple[float, float]) -> Path:
    """Draw on a new figure with a size in inches, and save it atomically, as PNG or SVG by the name of the file."""
    kind = path.suffix.removeprefix(".")
    with rc_context(LOOK):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        with atomic_path(path) as temporary:
            figure.savefig(temporary, format=kind, dpi=DPI, metadata={"Date": None} if kind == "svg" else None)
    return path


def without_grid(axes: Axes) -> Axes:
    """Remove the grid, for pictures; return the axes."""
    axes.grid(visible=False)
    return axes
