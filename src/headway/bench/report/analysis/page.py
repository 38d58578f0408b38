"""`analysis_page`: report.html of one analysed model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from headway.bench.report.analysis.contents import pack_arrays
from headway.bench.report.analysis.saved import Saved, read_saved
from headway.bench.report.analysis.summary import RANKS, findings, kind_counts, left_out, rank_table, tiles
from headway.bench.report.page import write_page

SCRIPTS = ("data.js", "colours.js", "chart.js", "heatmap.js")
OWN_SCRIPTS = ("analysis/explorer.js", "analysis/head.js", "analysis/sections.js", "analysis/start.js")


def analysis_page(folder: str | os.PathLike[str]) -> Path:
    """Write report.html, one file that needs no network, beside the measures.json and arrays.npz in a folder."""
    saved = read_saved(folder)
    measures = {name: part for name, part in saved.measures.items() if name != "arrays"}
    return write_page(
        saved.folder / "report.html",
        "analysis.html.jinja",
        styles=["analysis.css"],
        scripts=[*SCRIPTS, *OWN_SCRIPTS],
        data={"measures": measures, "arrays": pack_arrays(saved)},
        name=saved.name,
        model=measures["model"],
        measures=measures,
        findings=findings(measures),
        tiles=tiles(measures),
        kinds=kind_counts(measures),
        left_out=left_out(measures),
        made=how_it_was_made(saved),
        ranks=rank_table(measures),
        rank_columns=RANKS,
    )


def how_it_was_made(saved: Saved) -> dict[str, str]:
    """Describe the command, its settings and the versions that made the analysis, by name, as far as recorded."""
    revision = {"revision_on_the_Hub": saved.measures["model"].get("revision")}
    parts: dict[str, Any] = {"command": saved.command, **(saved.config or {}), **revision, **(saved.environment or {})}
    return {name: _line(value) for name, value in parts.items() if value is not None}


def _line(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
