"""`headway report`: everything that is written of a study."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rich.console import Console

from headway.report.analysis.page import analysis_page
from headway.report.study.marks import compared
from headway.report.study.page import study_page
from headway.report.study.saved import read_results
from headway.report.study.tables import as_csv, as_latex, as_markdown, notes, on_terminal
from headway.storage import atomic_path, file_name, read_json
from headway.study.kept import read_kept, write_kept


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


def keep_study(folder: Path, target: Path) -> list[Path]:
    """Copy what is worth committing: results.json on one line, what each analysis measured, and the jobs' results.

    With the last of these `headway study --kept` goes on elsewhere.
    """
    results = read_results(folder)
    kept = [target / "results.json", write_kept(target, _records(results, folder))]
    with atomic_path(kept[0]) as temporary:
        temporary.write_text(json.dumps(results, ensure_ascii=False) + "\n", encoding="utf-8")
    for row, found in results["analysis"].items():
        place = Path("analysis", file_name(row), "measures.json")
        measures = folder / results["study"]["store"] / found["folder"] / "analysis" / "measures.json"
        if not measures.is_file() and results["study"].get("kept"):
            measures = folder / results["study"]["kept"] / place
        if measures.is_file():
            kept.append(target / place)
            content = measures.read_bytes()
            with atomic_path(kept[-1]) as temporary:
                temporary.write_bytes(content)
    return kept


def _records(results: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Of the jobs that are done, by key; of those that were done elsewhere, what was kept."""
    about = results["study"]
    earlier = read_kept(folder / about["kept"]) if about.get("kept") else {}
    found = {}
    for key in dict.fromkeys(job["key"] for job in results["jobs"] if job["state"] == "done"):
        path = folder / about["store"] / key / "result.json"
        if path.is_file():
            found[key] = read_json(path)
        elif key in earlier:
            found[key] = earlier[key]
    return found


def _analyses(results: dict[str, Any], folder: Path) -> dict[str, str]:
    """A page for every analysis whose folder is there; by row, its place from the study's page."""
    pages = {}
    for row, found in results["analysis"].items():
        saved = folder / results["study"]["store"] / found["folder"] / "analysis"
        if all((saved / name).is_file() for name in ("measures.json", "arrays.npz")):
            pages[row] = Path(os.path.relpath(analysis_page(saved), folder)).as_posix()
    return pages
