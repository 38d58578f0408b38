"""The chart of the README, from a record of `benchmarks.attention`; `python -m benchmarks.report` draws it."""

from __future__ import annotations

import io
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from benchmarks.attention_tables import MODES, medians

BASE = "torch, FlashAttention-2, no bias"
LINES: tuple[tuple[tuple[str, ...], str, str, str, str], ...] = (  # names in records, label, colour, dash, marker
    (("torch, learned Toeplitz made dense", "torch, dense learned Toeplitz"), "torch, dense bias", "#d55e00", "-", "s"),
    (("torch, FlexAttention, learned Toeplitz",), "FlexAttention", "#b98a00", "-", "^"),
    ((BASE,), "FlashAttention-2, no bias", "#808890", "--", ""),
    (("torch, cuDNN, no bias",), "cuDNN, no bias", "#808890", ":", ""),
    (("headway, learned Toeplitz",), "headway", "#2f8fd8", "-", "o"),
)
INK = "#7d8590"  # readable on white and on black
LOOK: dict[str, Any] = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "grid.color": INK,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "headway",  # the same numbers give the same file
}


def draw_attention(record: dict[str, Any]) -> bytes:
    """Draw times of each row over FlashAttention-2's by length, as SVG: forward, and forward with backward pass."""
    shapes = medians(record, "replayed")
    lengths = [int(shape.split()[0].removeprefix("n=")) for shape in shapes]
    with rc_context(LOOK):
        figure = Figure(figsize=(10, 4.4), layout="constrained")
        handles: list[Line2D] = []
        for axes, mode in zip(figure.subplots(1, 2, sharey=True), MODES, strict=True):
            base = [row[BASE][mode] for row in shapes.values()]
            handles = []
            for names, label, color, dash, marker in LINES:
                name = next(name for name in names if all(name in row for row in shapes.values()))
                times = [row[name][mode] / unit for row, unit in zip(shapes.values(), base, strict=True)]
                handles += axes.plot(lengths, times, color=color, linestyle=dash, marker=marker, label=label, lw=2)
            axes.set(title=mode.replace("+", " + "), xlabel="sequence length n", xscale="log", yscale="log")
            axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
            axes.set_yticks([0.2, 0.5, 1, 2, 5, 10, 20], ["0.2", "0.5", "1", "2", "5", "10", "20"])
            axes.minorticks_off()
            axes.grid(visible=True, axis="y")
        figure.axes[0].set_ylabel("time / FlashAttention-2 without a bias")
        figure.legend(handles=handles, loc="outside lower center", ncols=len(LINES))
        file = io.BytesIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return file.getvalue()
