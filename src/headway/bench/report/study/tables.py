"""The table of a study as CSV, Markdown, LaTeX, and on a terminal, and how its cells are written."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from headway.bench.terminal import fitting_tables

Results = Mapping[str, Any]
Cell = Mapping[str, Any]
Column = Mapping[str, Any]

MARKS = {"above": "▲", "below": "▼", "not told apart": "≈", "too few seeds": "?"}
MEANINGS = {
    "▲": "above the baseline, p < {level} after correction",
    "▼": "below the baseline, p < {level} after correction",
    "≈": "not told apart from the baseline",
    "?": "too few seeds for any test to tell",
}
FIELDS = (
    "row", "encoding", "position", "column", "measure", "median", "low", "high", "deviation", "runs", "expected_runs",
    "learning_rate", "published", "difference_to_baseline", "p", "p_corrected", "verdict", "values",
)  # fmt: skip
SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "▲": r"$\uparrow$", "▼": r"$\downarrow$", "≈": r"$\approx$",
    "−": r"$-$", "–": "--",
}  # fmt: skip


def as_csv(results: Results) -> str:
    """Write the table as CSV, with a line for each cell that has all its numbers."""
    text = io.StringIO()
    lines = csv.DictWriter(text, FIELDS, lineterminator="\n")
    lines.writeheader()
    for row in results["rows"]:
        for column, cells in zip(results["columns"], results["cells"], strict=True):
            lines.writerow(_line(row, column, cells[row["name"]]))
    return text.getvalue()


def _line(row: Mapping[str, Any], column: Mapping[str, Any], cell: Mapping[str, Any]) -> dict[str, Any]:
    summary, test = cell["summary"] or {}, cell["test"] or {}
    return {
        "row": row["name"],
        "encoding": row["encoding"],
        "position": row["place"],
        "column": column["name"],
        "measure": column["measure"],
        **{name: summary.get(name) for name in ("median", "low", "high", "deviation", "runs")},
        "expected_runs": cell["expected"],
        "learning_rate": cell["rate"],
        "published": cell["published"],
        "difference_to_baseline": test.get("difference"),
        "p": test.get("p"),
        "p_corrected": test.get("adjusted"),
        "verdict": test.get("verdict"),
        "values": " ".join(f"{seed}:{value}" for seed, value in cell["values"].items()),
    }


def as_markdown(results: Results) -> str:
    """Write the table as Markdown, with its notes."""
    names = [_escape_markdown(column["name"]) for column in results["columns"]]
    lines = [f"| | position | {' | '.join(names)} |", f"|---|---|{'---|' * len(names)}"]
    for row in results["rows"]:
        cells = [_short(cells[row["name"]], column) for column, cells in _columns(results)]
        lines.append(f"| {_escape_markdown(row['name'])} | {row['place']} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", *notes(results), ""])


def as_latex(results: Results) -> str:
    """Write the table as LaTeX, which needs the package booktabs; notes are comments."""
    columns = results["columns"]
    head = " & ".join(["", "Position", *(_latex(column["name"]) for column in columns)])
    lines = [rf"\begin{{tabular}}{{ll{'r' * len(columns)}}}", r"\toprule", rf"{head} \\", r"\midrule"]
    for row in results["rows"]:
        cells = [_latex(_short(cells[row["name"]], column)) for column, cells in _columns(results)]
        lines.append(" & ".join([_latex(row["name"]), row["place"], *cells]) + r" \\")
    comments = [f"% {line}" for note in notes(results) for line in note.splitlines()]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *comments, ""])


def on_terminal(results: Results, width: int) -> list[Table]:
    """Lay out medians, spreads and published figures for a terminal, as several tables if one would be too wide."""
    study = results["study"]
    names = [f"{row['name']}\n({row['place']})" for row in results["rows"]]
    columns = [
        (column["name"], [_stacked(cells[row["name"]], column) for row in results["rows"]])
        for column, cells in _columns(results)
    ]
    return fitting_tables(names, columns, width, title=f"{study['title']} ({study['name']}, size {study['size']})")


def _stacked(cell: Mapping[str, Any], column: Mapping[str, Any]) -> str:
    lines = [f"{write_median(cell, column)} {verdict_mark(cell)}".rstrip()]
    if cell["summary"] and cell["summary"]["runs"] > 1:
        lines.append(f"{write_value(cell['summary']['low'], column)}..{write_value(cell['summary']['high'], column)}")
    if cell.get("best"):
        lines.append(write_spread(cell, column))
    if cell["published"] is not None:
        lines.append(f"paper {write_value(cell['published'], column)}")
    return "\n".join(lines)


def notes(results: Results) -> list[str]:
    """List what a reader must know about the numbers."""
    study = results["study"]
    lines = ["Medians, with the lowest and the highest where there are several."]
    if study.get("pooled"):
        lines.append(
            f"Differences of means from {study['baseline']}, with intervals that hold together in a column with "
            f"{100 * (1 - study['level']):g} %: Bonferroni, from the deviation of seeds pooled over rows."
        )
        if study["stuck"]:
            stuck = ", ".join(f"{name} ({count})" for name, count in study["stuck"].items())
            lines.append(
                f"Rows with pretrainings that never left the plateau (held-out loss above {study['plateau']:g}), which "
                f"do not count in that deviation: {stuck}."
            )
    elif legend(results):
        lines.append(
            f"Tests against {study['baseline']} are exact, paired by seed, corrected for the rows of a column (Holm)."
        )
    if study["paper"] and has_published(results):
        lines.append(f"Published figures: {study['paper']}.")
    lines += [f"{sign} {meaning}." for sign, meaning in legend(results)]
    return [*lines, *study["notes"], *(f"Our choice: {choice}" for choice in study.get("choices", ()))]


def has_published(results: Results) -> bool:
    """Return whether a published figure stands beside any cell."""
    return any(cell["published"] is not None for cells in results["cells"] for cell in cells.values())


def _columns(results: Results) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    return list(zip(results["columns"], results["cells"], strict=True))


def _short(cell: Mapping[str, Any], column: Mapping[str, Any]) -> str:
    text = f"{write_median(cell, column)} {verdict_mark(cell)}".rstrip()
    if cell["summary"] and cell["summary"]["runs"] > 1:
        text += f" ({write_spread(cell, column)})"
    if cell.get("best"):
        text += f" ({write_spread(cell, column)})"
    if said := write_interval(cell, column):
        text += f"; {said}"
    if cell["published"] is not None:
        text += f"; paper {write_value(cell['published'], column)}"
    return text


def _escape_markdown(text: str) -> str:
    """Return a name with the characters escaped that Markdown treats specially."""
    for sign in "\\`*_[]<>|#":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("\n", " ")


def _latex(text: str) -> str:
    return "".join(SPECIAL.get(sign, sign) for sign in text)


def write_median(cell: Cell, column: Column) -> str:
    """Write the median, or a dash where there is no result."""
    return "–" if cell["summary"] is None else write_value(cell["summary"]["median"], column)


def write_value(value: float, column: Column) -> str:
    """Write a number with the column's digits and a true minus sign."""
    return f"{value:.{column['digits']}f}".replace("-", "−")


def write_spread(cell: Cell, column: Column) -> str:
    """Write the lowest and the highest number, and how many runs there are, or how many of those expected."""
    summary = cell["summary"]
    if summary is None:
        return "no result"
    if "best" in cell:  # a gain over the baseline
        return f"of {cell['best']}"
    unit = {"cost": "rounds", "parameters": "counts", "analyse": "models"}.get(column["source"], "seeds")
    runs = f"{summary['runs']} {unit if summary['runs'] > 1 else unit[:-1]}"
    if summary["runs"] < cell["expected"]:
        runs = f"{summary['runs']} of {cell['expected']} {unit}"
    if summary["runs"] == 1:
        return runs
    return f"{write_value(summary['low'], column)} to {write_value(summary['high'], column)}, {runs}"


def write_interval(cell: Cell, column: Column) -> str:
    """Write the difference from the baseline with half the width of its interval; nothing where there is none."""
    found = cell.get("interval")
    if not found:
        return ""
    sign = "+" if found["difference"] > 0 else ""
    return f"{sign}{write_value(found['difference'], column)} ± {write_value(found['half_width'], column)}"


def verdict_mark(cell: Cell) -> str:
    """Return the mark of the test or the interval against the baseline; nothing where there is neither."""
    if found := cell.get("interval"):
        apart = abs(found["difference"]) > found["half_width"]
        return MARKS["not told apart" if not apart else "above" if found["difference"] > 0 else "below"]
    return "" if cell["test"] is None else MARKS[cell["test"]["verdict"]]


def legend(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """List the marks that occur with their meanings, and how many seeds a test would need."""
    if results["study"].get("pooled"):
        return [("▲", "above the baseline"), ("▼", "below it"), ("≈", "the interval holds 0")]
    tests = [cell["test"] for cells in results["cells"] for cell in cells.values() if cell["test"] is not None]
    marks = []
    for verdict, sign in MARKS.items():
        some = [test for test in tests if test["verdict"] == verdict]
        if some:
            meaning = MEANINGS[sign].format(level=results["study"]["level"])
            if verdict == "too few seeds":
                have, need = max(test["pairs"] for test in some), max(test["needed"] for test in some)
                meaning += f": {have} at most here, {need} are needed for this many comparisons"
                if "pretraining" in results["recipes"] and any(
                    each["source"] == "finetune" for each in results["columns"]
                ):
                    meaning += "; runs fine-tuned from one pretrained model count as one, their mean"
            marks.append((sign, meaning))
    return marks
