"""What an encoding costs, from the committed measurements of whole models alone."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

from headway.bench.cost import CostTable

ROOT = Path(__file__).parents[2]
PROTOCOL = "BERT-base, a whole step, bf16, compiled; median of the ratios, and where three fifths of the rounds lie."
RESULTS = ROOT / "benchmarks" / "results"


@cache
def tables() -> dict[int, tuple[Path, CostTable, dict[str, str]]]:
    """Length -> the newest file that measured it, its table and its environment."""
    found = {}
    for path in sorted(RESULTS.glob("pretraining_*.json"), key=lambda path: path.stem.rsplit("_", 1)[-1]):
        record = json.loads(path.read_text())
        table = CostTable.from_json(record)
        for _, length in table.groups():
            found[length] = (path, table, record["environment"])
    return dict(sorted(found.items()))


def cost_section(name: str) -> str:
    """A table of the rows that measured the encoding, or how to measure it."""
    lines = ["| row | tokens | training step over none | inference over none |", "|---|---|---|---|"]
    sources = {}
    for length, (path, table, environment) in tables().items():
        for (_, n), group in table.groups().items():
            for row in group:
                if n != length or row.row.split(":")[0] != name:
                    continue
                ratios = [table.ratio(row, mode) for mode in ("training", "inference")]
                cells = ["–" if r is None else f"{r.median:.2f} ({r.low:.2f} to {r.high:.2f})" for r in ratios]
                lines.append(f"| `{row.row}` | {length} | {' | '.join(cells)} |")
                machine = environment.get("gpu") or environment.get("processor")
                sources[path.name] = f"{machine}, torch {environment['torch']}, {environment['date']}"
    if not sources:
        return (
            "No committed measurement of whole models has it yet; `headway cost` measures it on your machine:\n\n"
            f"```sh\nheadway cost --encodings none,{name}\n```"
        )
    where = "; ".join(f"[{file}](../benchmarks/results/{file}) ({what})" for file, what in sources.items())
    return "\n".join(
        [
            *lines,
            "",
            PROTOCOL + f" {where}.",
        ]
    )
