"""How a cell of the table is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MARKS = {"above": "▲", "below": "▼", "not told apart": "≈", "too few seeds": "?"}
SAID = {
    "▲": "above the baseline, p < {level} after correction",
    "▼": "below the baseline, p < {level} after correction",
    "≈": "not told apart from the baseline",
    "?": "too few seeds for any test to tell",
}

Cell = Mapping[str, Any]
Column = Mapping[str, Any]


def middle(cell: Cell, column: Column) -> str:
    """The median, or a dash where there is no result."""
    return "–" if cell["summary"] is None else written(cell["summary"]["median"], column)


def written(value: float, column: Column) -> str:
    return f"{value:.{column['digits']}f}".replace("-", "−")


def spread(cell: Cell, column: Column) -> str:
    """From the lowest to the highest of so many runs; runs that are missing are counted."""
    summary = cell["summary"]
    if summary is None:
        return "no result"
    unit = {"cost": "rounds", "parameters": "counts"}.get(column["source"], "seeds")
    runs = f"{summary['runs']} {unit if summary['runs'] > 1 else unit[:-1]}"
    if summary["runs"] < cell["expected"]:
        runs = f"{summary['runs']} of {cell['expected']} {unit}"
    if summary["runs"] == 1:
        return runs
    return f"{written(summary['low'], column)} to {written(summary['high'], column)}, {runs}"


def compared(claim: Mapping[str, Any], column: Column) -> str:
    """The two numbers of a claim, and what their difference is from seed to seed where there are several."""
    said = f"{written(claim['found'], column)} against {written(claim['compared'], column)}"
    differences = claim.get("differences") or ()
    if len(differences) < 2:
        return said
    low, high = (written(edge, column) for edge in (min(differences), max(differences)))
    return f"{said}; difference {low} to {high} over {len(differences)} seeds"


def mark(cell: Cell) -> str:
    return "" if cell["test"] is None else MARKS[cell["test"]["verdict"]]


def legend(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The marks that occur, with their meanings, and with what more seeds would be needed for."""
    tests = [cell["test"] for cells in results["cells"] for cell in cells.values() if cell["test"] is not None]
    found = []
    for verdict, sign in MARKS.items():
        some = [test for test in tests if test["verdict"] == verdict]
        if some:
            said = SAID[sign].format(level=results["study"]["level"])
            if verdict == "too few seeds":
                have, need = max(test["pairs"] for test in some), max(test["needed"] for test in some)
                said += f": {have} at most here, {need} are needed for this many comparisons"
                if "pretraining" in results["recipes"] and any(
                    each["source"] == "finetune" for each in results["columns"]
                ):
                    said += "; runs fine-tuned from one pretrained model count as one, their mean"
            found.append((sign, said))
    return found
