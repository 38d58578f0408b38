"""`headway report`: everything that is written of a study."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rich.console import Console

from headway.bench.report.analysis.page import analysis_page
from headway.bench.report.study.marks import compared
from headway.bench.report.study.page import study_page
from headway.bench.report.study.saved import read_results
from headway.bench.report.study.tables import as_csv, as_latex, as_markdown, notes, on_terminal
from headway.storage import atomic_path


def report_study(folder: Path, console: Console) -> Path:
    """Print the table, write report.html, table.csv, table.md and table.tex beside results.json, and name them."""
    results = read_results(folder)
    for table in on_terminal(results, console.width):
        console.print(table)
    for line in notes(results):
        console.print(line, markup=False, highlight=False)
    columns = {column["name"]: column for column in results["columns"]}
    for claim in results["claims"]:
        holds = {True: "holds", False: "DOES NOT HOLD", None: "not known yet"}[claim["holds"]]
        numbers = "" if claim["holds"] is None else f" ({compared(claim, columns[claim['column']])})"
        console.print(f"{holds}: {claim['says']}{numbers}", markup=False, highlight=False, soft_wrap=True)
    for name, text in (
        ("table.csv", as_csv(results)),
        ("table.md", as_markdown(results)),
        ("table.tex", as_latex(results)),
    ):
        with atomic_path(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    page = study_page(results, folder / "report.html", analyses=_analyses(results, folder))
    failed = [job for job in results["jobs"] if job["state"] in ("failed", "skipped")]
    for job in failed:
        first = (job["why"].splitlines() or [""])[0]
        console.print(f"{job['state']}: {job['label']}: {first}", markup=False, highlight=False, soft_wrap=True)
    console.print(f"wrote {page}, table.csv, table.md, table.tex", markup=False, highlight=False, soft_wrap=True)
    return page


def _analyses(results: dict[str, Any], folder: Path) -> dict[str, str]:
    """A page for every analysis whose folder is there; by row, its place from the study's page."""
    pages = {}
    for row, found in results["analysis"].items():
        saved = folder / results["study"]["store"] / found["folder"] / "analysis"
        if all((saved / name).is_file() for name in ("measures.json", "arrays.npz")):
            pages[row] = Path(os.path.relpath(analysis_page(saved), folder)).as_posix()
    return pages
