"""The rows of the DIET paper's tables, without figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headway.bench.study.plan import Row

DIET = "Chen et al. (2021b), “A Simple and Effective Positional Encoding for Transformers”"
SHAW = "Shaw et al. (2018), “Self-Attention with Relative Position Representations”"
TISA = "Wennberg and Henter (2021), “The Case for Translation-Invariant Self-Attention”"

ADDED = ("t5", "diet-abs", "diet-rel")  # of the papers' rows, those with numbers that are added to scores
FASTER = 10.0  # times the rate, in short runs, for numbers that are added to scores; see Optimisation.position_rate
FASTER_NOTE = (
    f"Numbers that are added to scores are trained at {FASTER:.0f} times the rate: Adam moves each by at most the rate "
    "a step, and in so few steps they would stay too small."
)

# Sec. 4.4 says which rows share: Shaw et al. and Ke et al. over heads, Raffel et al. over layers. Tables of per-head
# segments are never shared (Chen et al. 2021a, Sec. 3).
DEVLIN = Row(name="Devlin et al. (learned)", encoding="learned:segments=input")
SHAW_ROW = Row(name="Shaw et al.", encoding="shaw:sharing=head,segments=input")
RAFFEL = Row(name="Raffel et al. (T5)", encoding="t5:sharing=layer,segments=input")
KE = Row(name="Ke et al. (TUPE)", encoding="tupe-rel:sharing=head,segments=input")


def diet_rel(name: str, *, segments: str = "per-head", sharing: str = "none") -> Row:
    """Make a row of DIET-REL."""
    return Row(name=name, encoding=f"diet-rel:sharing={sharing},segments={segments}")


def diet_abs(name: str, rank: int, *, segments: str = "per-head", sharing: str = "layer") -> Row:
    """Make a row of DIET-ABS."""
    return Row(name=name, encoding=f"diet-abs:rank={rank},sharing={sharing},segments={segments}")


def linformer(projected: int) -> tuple[Row, Row]:
    """Make the rows of Wang et al. (2020), whose keys are projected to so many, and of the same with DIET-ABS."""
    changes = {"attention": "linformer", "projected_length": projected}
    return (
        Row(name="Wang et al. (Linformer)", encoding="learned:segments=input", changes=changes),
        Row(name="DIET-ABS-LIN", encoding="diet-abs:sharing=none,segments=input", changes=changes),
    )


def published(row: Row, columns: tuple[str, ...], figures: tuple[float, ...]) -> Row:
    """Return the row with the figures of a line of a table, column by column."""
    return replace(row, published=dict(zip(columns, figures, strict=True)))


def of_size(rows: tuple[Row, ...], size: str, *, shorter: int = 1) -> tuple[Row, ...]:
    """Return a paper's rows for a size; other sizes than paper have no published figures, because models differ.

    Args:
        shorter: the ratio of the paper's text length to that of size gpu, by which projected lengths are divided.
    """
    if size == "paper":
        return rows
    if size == "quick":
        return tuple(replace(_divided(row, rank=8, projected_length=8), published={}) for row in rows)
    rows = tuple(replace(_divided(row, rank=1, projected_length=shorter), published={}) for row in rows)
    return tuple(replace(row, position_rate=FASTER) if row.choice.name in ADDED else row for row in rows)


def _divided(row: Row, **divisors: int) -> Row:
    def smaller(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: max(1, value // divisors[name]) if name in divisors else value for name, value in values.items()}

    choice = replace(row.choice, options=smaller(row.choice.options))
    return replace(row, encoding=str(choice), changes=smaller(row.changes))
