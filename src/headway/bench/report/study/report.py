"""`headway report`: all files that are written about a study."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from headway.bench.judge import judge_rows
from headway.bench.report.analysis.page import analysis_page
from headway.bench.report.study.page import draw_bars, study_page
from headway.bench.report.study.pictures import stack
from headway.bench.report.study.position_tables import save_position_tables
from headway.bench.report.study.tables import as_csv, as_latex, as_markdown, notes, on_terminal
from headway.encodings.choice import with_one_encoding
from headway.storage import atomic_path, read_json

PARTS = (
    "study",
    "rows",
    "columns",
    "cells",
    "claims",
    "recipes",
    "pretraining",
    "analysis",
    "cost",
    "baselines",
    "jobs",
)


def report_study(folder: Path, console: Console) -> Path:
    """Print the table, and write report.html, tables as CSV, Markdown and LaTeX, and bars.svg beside results.json."""
    results = read_results(folder)
    for table in on_terminal(results, console.width):
        console.print(table)
    for line in notes(results):
        console.print(line, markup=False, highlight=False)
    for claim in results["claims"]:
        numbers = f" ({claim['said']}; {claim['basis']})" if claim["said"] else ""
        console.print(f"{claim['verdict']}: {claim['says']}{numbers}", markup=False, highlight=False, soft_wrap=True)
    for name, text in (
        ("table.csv", as_csv(results)),
        ("table.md", as_markdown(results)),
        ("table.tex", as_latex(results)),
        ("bars.svg", stack(draw_bars(results))),
    ):
        with atomic_path(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    page = study_page(results, folder / "report.html", analyses=_analyses(results, folder))
    pictures = save_position_tables(results, folder)
    failed = [job for job in results["jobs"] if job["state"] in ("failed", "skipped")]
    for job in failed:
        first = (job["why"].splitlines() or [""])[0]
        console.print(f"{job['state']}: {job['label']}: {first}", markup=False, highlight=False, soft_wrap=True)
    written = ", ".join(
        [str(page), "table.csv", "table.md", "table.tex", "bars.svg", *(path.name for path in pictures)]
    )
    console.print(f"wrote {written}", markup=False, highlight=False, soft_wrap=True)
    return page


def _analyses(results: dict[str, Any], folder: Path) -> dict[str, str]:
    """Write a page for every analysis whose folder is there; return their paths relative to the study, by row."""
    pages = {}
    for row, analysis in results["analysis"].items():
        saved = folder / results["study"]["store"] / analysis["folder"] / "analysis"
        if all((saved / name).is_file() for name in ("measures.json", "arrays.npz")):
            pages[row] = Path(os.path.relpath(analysis_page(saved), folder)).as_posix()
    return pages


def read_results(folder: Path) -> dict[str, Any]:
    """Read the results in a study's folder, and judge its claims again by the present rule."""
    path = folder / "results.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder}: expected the folder of a study with results.json, got none. `headway study` writes it."
        )
    results = read_json(path)
    missing = [part for part in PARTS if not isinstance(results, dict) or part not in results]
    if missing:
        raise ValueError(
            f"{path}: expected the results of a study, got a file without {', '.join(missing)}. "
            f"Give the command of the study again; what is done is not done twice."
        )
    cells = dict(zip((column["name"] for column in results["columns"]), results["cells"], strict=True))
    columns = {column["name"]: column for column in results["columns"]}
    claims = [
        {**claim, **judge_rows(claim, columns[claim["column"]], _values(cells[claim["column"]]))}
        for claim in results["claims"]
    ]
    return {**results, "rows": [with_one_encoding(row) for row in results["rows"]], "claims": claims}


def _values(cells: Mapping[str, Any]) -> dict[str, Mapping[str, float]]:
    return {row: cell["values"] for row, cell in cells.items()}
