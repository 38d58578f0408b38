"""The table of studies, read from the plans themselves."""

from __future__ import annotations

from headway.bench.study.plans import PLANS


def plans_table() -> str:
    lines = ["| plan | what | whose | rows | columns at size quick |", "|---|---|---|--:|---|"]
    for name, plan in PLANS.items():
        made = plan("quick", None)
        columns = ", ".join(column.name for column in made.columns)
        whose = made.paper.partition(", ")[0] or "ours"
        lines.append(f"| `{name}` | {made.title} | {whose} | {len(made.rows)} | {columns} |")
    return "\n".join(lines)
