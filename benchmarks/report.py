"""Write the tables and pictures of the README and the docs from the newest committed results.

python -m benchmarks.report [--check]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable

from benchmarks import attention_tables, cliff_table
from benchmarks.attention_chart import draw_attention
from benchmarks.model_tables import (
    ROOT,
    cost_on_cpu,
    draw_costs,
    fused_on_cpu,
    newest,
    newest_or_none,
    pretraining,
    pretraining_over_none,
    pretraining_short,
    translation,
)
from benchmarks.real_text import (
    cross_lingual,
    cross_lingual_ablation,
    draw_encodings,
    encodings_on_text,
    learned_positions,
    papers_grid,
    pretrained_positions,
    same_token,
    table_by_steps,
)
from benchmarks.translated_text import shaw_ablations, translation_europarl, translation_multi30k


def cpu_attention() -> str:
    record = newest("cpu_attention")
    environment, parts = record["environment"], record["lengths"]
    head = [f"{mode}, n = {part['length']}" for mode in ("training", "inference") for part in parts]
    lines = ["| time over no bias | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    for name in parts[0]["ratios"]["training"]:
        cells = [part["ratios"][mode][name]["median"] for mode in ("training", "inference") for part in parts]
        lines.append(f"| {name} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")
    lines.append("")
    lines.append(
        f"CPU, {environment['threads']} threads of {environment['processor']}, torch {environment['torch']}, float32, "
        f"12 heads × 64, {environment['date']}; medians of interleaved ratios in one run; raw numbers in "
        f"[{record['path']}](../{record['path']}). “torch, dense” is torch's own function with the same learned bias."
    )
    memory = record["memory"]
    length = max(memory["none"], key=int)
    sizes = {name: f"{by_length[length] / 2**20:,.0f}" for name, by_length in memory.items()}
    lines.append(
        f"Memory of a training step, one sequence of {int(length):,} tokens: {sizes['none']} MiB without bias, "
        f"{sizes['Toeplitz']} MiB with a learned Toeplitz bias, {sizes['torch, dense']} MiB with torch's dense one."
    )
    return "\n".join(lines)


def attention() -> str:
    return attention_tables.times(newest("attention"))


def attention_from_python() -> str:
    return attention_tables.times_from_python(newest("attention"))


def attention_ratios() -> str:
    return attention_tables.over_cudnn(newest("attention"))


def attention_same_work() -> str:
    return attention_tables.same_work(newest("attention"))


def attention_bits() -> str:
    return attention_tables.bits(newest("attention"))


def attention_memory() -> str:
    return attention_tables.memory(newest("attention"))


def cliffs() -> str:
    """Write nothing, not even a heading, before there is a record."""
    record = newest_or_none("cliffs")
    return "" if record is None else cliff_table.page(record)


def pretraining_wiki() -> str:
    return _curves("pretraining_wiki")


def pretraining_cpu() -> str:
    return _curves("pretraining_cpu")


def causes() -> str:
    return _curves("causes")


def _curves(name: str) -> str:
    """Return the evaluation loss of each encoding while it trains."""
    curves, facts = {}, {}
    folders = (ROOT / "results" / name).iterdir()
    for folder in sorted(each for each in folders if not each.name.endswith("-steps")):  # `table_by_steps` has those
        lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        curves[folder.name] = {line["step"]: line["evaluation_loss"] for line in lines if "evaluation_loss" in line}
        facts[folder.name] = json.loads((folder / "result.json").read_text())
    steps = list(next(iter(curves.values())))
    lines = ["| evaluation loss at step | " + " | ".join(f"{step:,}" for step in steps) + " | masked words named |"]
    lines.append("|---" * (len(steps) + 2) + "|")
    for row in sorted(curves, key=lambda row: curves[row][steps[-1]]):
        cells = [f"{curves[row][step]:.3f}" for step in steps] + [f"{100 * facts[row]['masked_accuracy']:.1f} %"]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    millions = next(iter(facts.values()))["tokens"] / 1e6
    count = f"{millions:.0f}" if millions >= 10 else f"{millions:.1f}"
    lines += ["", f"{count}M tokens each, one seed; from [results/{name}](../results/{name})."]
    return "\n".join(lines)


def claims() -> str:
    """Write the ledger of the papers' claims from all committed results."""
    from headway.bench.claims.ledger import ledger
    from headway.bench.claims.show import as_markdown

    return as_markdown(ledger(ROOT / "results")[0])


TABLES = {
    "cpu_attention": cpu_attention,
    "fused_on_cpu": fused_on_cpu,
    "attention": attention,
    "attention_from_python": attention_from_python,
    "attention_ratios": attention_ratios,
    "attention_same_work": attention_same_work,
    "attention_bits": attention_bits,
    "attention_memory": attention_memory,
    "cliffs": cliffs,
    "pretraining": pretraining,
    "pretraining_short": pretraining_short,
    "pretraining_over_none": pretraining_over_none,
    "cost_on_cpu": cost_on_cpu,
    "translation": translation,
    "pretraining_wiki": pretraining_wiki,
    "pretraining_cpu": pretraining_cpu,
    "causes": causes,
    "encodings_on_text": encodings_on_text,
    "same_token": same_token,
    "learned_positions": learned_positions,
    "translation_multi30k": translation_multi30k,
    "translation_europarl": translation_europarl,
    "shaw_ablations": shaw_ablations,
    "pretrained_positions": pretrained_positions,
    "table_by_steps": table_by_steps,
    "cross_lingual": cross_lingual,
    "cross_lingual_ablation": cross_lingual_ablation,
    "papers_grid": papers_grid,
    "claims": claims,
}
PAGES = ("README.md", "docs/cpu.md", "docs/gpu.md", "docs/fuse.md", "docs/results.md", "docs/claims.md")
PICTURES: dict[str, Callable[[], bytes]] = {
    "docs/pictures/cost.svg": draw_costs,
    "docs/pictures/attention.svg": lambda: draw_attention(newest("attention")),
    "docs/pictures/encodings.svg": draw_encodings,
}
NUMBER = re.compile(r"-?\d+\.?\d*")


def rendered(text: str) -> str:
    """Return a page with all of its tables written anew."""
    for name, make in TABLES.items():
        pattern = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = pattern.sub(lambda match, make=make: match[1] + _whole_lines(make()) + match[2], text)
    return text


def _whole_lines(table: str) -> str:
    return f"{table}\n" if table else ""


def same_picture(ours: str, drawn: str) -> bool:
    """Compare two SVG files; coordinates may differ by rounding, as they do from one processor to another."""
    coordinates = [[float(number) for number in NUMBER.findall(text)] for text in (ours, drawn)]
    close = all(abs(a - b) < 0.01 for a, b in zip(*coordinates, strict=False))
    return close and NUMBER.sub("", ours) == NUMBER.sub("", drawn)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if something is not up to date")
    check = parser.parse_args().check
    for name in (*PAGES, *PICTURES):
        path = ROOT / name
        old = path.read_text() if path.exists() else ""
        new = PICTURES[name]().decode() if name in PICTURES else rendered(old)
        same = same_picture(old, new) if name in PICTURES else old == new
        if check and not same:
            sys.exit(f"{name} differs from the results. Run: python -m benchmarks.report")
        if not same:
            path.write_text(new)
        print(f"{name}: {'up to date' if same else 'written'}")


if __name__ == "__main__":
    main()
