"""The rows Δ and Δ% of a table: the largest gain over the baseline, and the share of its error that is gone.

Paper:    Wennberg and Henter (2021), caption of Table 3: Δ is the maximum performance increase, Δ% the corresponding
          relative error reduction
Formula:  Δ = max over rows of median - median of the baseline; Δ% = 100 Δ / (100 - median of the baseline)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from statistics import median
from typing import Any

from headway.bench.statistics import Summary
from headway.bench.study.plan import Plan

PERFECT = 100.0  # score without any error, in all columns of such a table
NAMES = ("Δ", "Δ%")


def gain_rows() -> list[dict[str, Any]]:
    """Return both rows as results.json has them, marked `derived` because they are not encodings."""
    empty: dict[str, Any] = {"changes": {}, "published": {}, "position_rate": 1.0}
    return [{"name": name, "encoding": "", "place": "", "contestant": "", "derived": True, **empty} for name in NAMES]


def gain_cells(plan: Plan, values: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, Any]]:
    """Return the cells of both rows in one column.

    Args:
        values: numbers by seed of each row of the plan.
    """
    medians = {name: median(by_seed.values()) for name, by_seed in values.items() if by_seed}
    others = {name: value for name, value in medians.items() if name != plan.baseline}
    if plan.baseline not in medians or not others:
        return {name: _cell(None, "") for name in NAMES}
    baseline = medians[plan.baseline]
    best = max(others, key=lambda name: others[name])
    gain = others[best] - baseline
    reduced = 100.0 * gain / (PERFECT - baseline) if baseline < PERFECT else 0.0
    return {NAMES[0]: _cell(gain, best), NAMES[1]: _cell(reduced, best)}


def _cell(value: float | None, best: str) -> dict[str, Any]:
    return {
        "values": {} if value is None else {best: value},
        "expected": 1,
        "rate": None,
        "summary": None if value is None else asdict(Summary.of([value])),
        "published": None,
        "test": None,
        "best": best,
    }
