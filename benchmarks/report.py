"""Write the README's tables from the newest committed results; numbers are never typed.

python -m benchmarks.report [--check]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def newest(name: str) -> dict[str, Any]:
    paths = sorted(RESULTS.glob(f"{name}_*.json"), key=lambda path: (path.name.split("_")[3][:10], path.name))
    return {**json.loads(paths[-1].read_text()), "path": paths[-1].relative_to(ROOT)}


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
        f"[{record['path']}]({record['path']}). “torch, dense” is torch's own function with the same learned bias."
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
    record = newest("attention")
    environment, shapes = record["environment"], record["milliseconds"]
    lines = ["| ms, forward / forward+backward | " + " | ".join(shapes) + " |", "|---" * (len(shapes) + 1) + "|"]
    for name in next(iter(shapes.values())):
        cells = [times[name] for times in shapes.values()]
        shown = [f"{c['forward']:.3f} / {c['forward+backward']:.3f}" if c["forward"] else "fails" for c in cells]
        lines.append(f"| {name} | " + " | ".join(shown) + " |")
    lines.append("")
    lines.append(
        f"{environment['gpu']}, torch {environment['torch']}, triton {environment['triton']}, bf16, 12 heads × 64, "
        f"{environment['date']}; medians of graph replays; raw numbers in [{record['path']}]({record['path']})."
    )
    return "\n".join(lines)


TABLES = {"cpu_attention": cpu_attention, "attention": attention}


def rendered(text: str) -> str:
    for name, make in TABLES.items():
        pattern = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        text = pattern.sub(lambda match, make=make: match[1] + make() + "\n" + match[2], text)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail if the README is not up to date")
    options = parser.parse_args()
    page = ROOT / "README.md"
    new = rendered(page.read_text())
    if options.check:
        sys.exit(0 if new == page.read_text() else "README.md differs from the results: python -m benchmarks.report")
    page.write_text(new)
    print(f"wrote {page.name}")


if __name__ == "__main__":
    main()
