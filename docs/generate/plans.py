"""Tables of studies and of their choices, read from the plans themselves."""

from __future__ import annotations

from collections.abc import Callable

from headway.bench.study.plan import Plan
from headway.bench.study.plans import PLANS


def plans_table() -> str:
    lines = ["| plan | what | whose | rows | columns at size quick |", "|---|---|---|--:|---|"]
    for name, plan in PLANS.items():
        made = plan("quick", None)
        columns = ", ".join(column.name for column in made.columns)
        whose = made.paper.partition(", ")[0] or "ours"
        lines.append(f"| `{name}` | {made.title} | {whose} | {len(made.rows)} | {columns} |")
    return "\n".join(lines)


def choices_table() -> str:
    """Return each choice of ours once, with the plans that it holds for."""
    plans: dict[str, list[str]] = {}
    for name, plan in PLANS.items():
        for choice in _made(plan).choices:
            plans.setdefault(choice, []).append(f"`{name}`")
    lines = ["| where the paper is silent, or can be read in two ways | plans |", "|---|---|"]
    return "\n".join([*lines, *(f"| {choice} | {', '.join(names)} |" for choice, names in plans.items())])


def _made(plan: Callable[[str, str | None], Plan]) -> Plan:
    """Make a plan at size paper, or at size quick where size paper needs a folder of data; both list the choices."""
    try:
        return plan("paper", None)
    except ValueError:
        return plan("quick", None)
