"""Pictures of E_P E_P^T of several models, and Toeplitz R² against scores: Figures 1, 2 and 4 of the TISA paper."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.image import imsave

from headway.bench.report.figures import AMOUNT, save_figure, without_grid
from headway.bench.report.study.pictures import scatter

Results = Mapping[str, Any]
ACROSS = 4  # pictures beside one another in a figure
SIDE = 2.4  # inches of a picture's side
R2 = "table_r2"


def position_tables(results: Results) -> list[dict[str, Any]]:
    """Return, for each row with a table of positions, its name, R² and a picture to embed in a page."""
    return [{"row": row, **table, "image": _embed(table["picture"])} for row, table in _tables(results).items()]


def save_position_tables(results: Results, folder: Path) -> list[Path]:
    """Draw the tables side by side, in the order of the rows, as PNG and SVG; return the files, none without tables."""
    tables = _tables(results)
    if not tables:
        return []
    down = -(-len(tables) // ACROSS)

    def draw(figure: Figure) -> None:
        cells = figure.subplots(down, min(ACROSS, len(tables)), squeeze=False)
        for axes in cells.flat:
            axes.set_axis_off()
        for axes, (row, table) in zip(cells.flat, tables.items(), strict=False):
            low, high = _range(table["picture"])
            without_grid(axes).imshow(table["picture"], cmap=AMOUNT, interpolation="nearest", vmin=low, vmax=high)
            axes.set_title(f"{row}\nR² = {table['r2']:.3f}")

    size = (SIDE * min(ACROSS, len(tables)), (SIDE + 0.5) * down)
    return [save_figure(folder / f"position_tables.{kind}", draw, size) for kind in ("png", "svg")]


def draw_versions(results: Results) -> Markup | None:
    """Draw the mean of all tasks against Toeplitz R², with arrows from versions of a model to later ones.

    None where there are fewer than two models with both numbers.
    """
    cells = list(zip(results["columns"], results["cells"], strict=True))
    r2 = next((by_row for column, by_row in cells if column["source"] == "analyse" and column["value"] == R2), None)
    tasks = [by_row for column, by_row in cells if column["source"] == "finetune" and column["higher"]]
    points = []
    for row in results["rows"]:
        summaries = [] if r2 is None else [by_row[row["name"]]["summary"] for by_row in (r2, *tasks)]
        if len(summaries) > 1 and all(summaries):
            first, *others = (each["median"] for each in summaries)
            points.append((row["name"], first, fmean(others)))
    if len(points) < 2:
        return None
    drawn = {name for name, *_ in points}
    arrows = [
        (row["version_of"], row["name"]) for row in results["rows"] if {row.get("version_of"), row["name"]} <= drawn
    ]
    return scatter(
        points, x_label="Toeplitz R² of the position table", y_label="mean of the tasks' medians", arrows=arrows
    )


def _tables(results: Results) -> dict[str, Mapping[str, Any]]:
    return {row: analysis["table"] for row, analysis in results["analysis"].items() if analysis.get("table")}


def _range(picture: list[list[float]]) -> tuple[float, float]:
    """Return the ends of the middle 98 % of the numbers, because many tables have a few outliers."""
    low, high = np.percentile(picture, (1, 99))
    return float(low), float(high)


def _embed(picture: list[list[float]]) -> str:
    """Return a picture as a data URL, for a page that must be one file."""
    file = io.BytesIO()
    low, high = _range(picture)
    imsave(file, np.array(picture), cmap=AMOUNT, format="png", vmin=low, vmax=high)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
