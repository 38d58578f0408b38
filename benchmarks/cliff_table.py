"""The table of docs/gpu.md from a record of `benchmarks.cliffs`: times over torch's attention without bias or mask."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.attention_tables import MODES, about_spread, why_not_timed
from benchmarks.measure import ratios

REFUSED = "NotImplementedError"  # a backend that was asked for by name and does not take the call


def page(record: dict[str, Any]) -> str:
    """Write the section with its heading: there is none without a record."""
    header, lines = cells(record)
    table = [
        f"| {' | '.join(header)} |", "|---" * len(header) + "|", *(f"| {' | '.join(line)} |" for line in lines)
    ]  # fmt: skip
    environment = record["environment"]
    about = (
        f"{environment['gpu']}, torch {environment['torch']}, triton {environment['triton']}, {environment['date']}; "
        f"raw numbers in [{record['path']}](../{record['path']})."
    )
    return "\n".join(
        [
            "## Every kind of call", "",
            "Forward / forward and backward, as ratios to the fastest of torch's kernels (cuDNN, FlashAttention-2, "
            "efficient) *without bias or mask* at the same heads, width and dtype, for a causal row with causal order. "
            "16,384 tokens a call; 768 or 1,024 columns, 800 where D is 80, and 4,096 with 32 heads of width 128; "
            "bfloat16 and 12 heads of width 64 where nothing else is said. Masks and `lengths` take up to "
            f"{record['padding']:.1%} of the keys of a sequence away. *General*: the Triton kernels that serve GPUs of "
            "other generations, here on the same machine; – where they do not take the call, or where the time of the "
            "benchmark was over before its turn.", "",
            *table, "",
            about + about_spread(record, record["kind"]),
        ]
    )  # fmt: skip


def cells(record: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the lines of the table."""
    shapes = record["shapes"]
    header = ["times torch without bias or mask", "aim", *shapes, *(f"general, {shape}" for shape in shapes)]
    lines = []
    for name, cliff in record["cliffs"].items():
        aim = "" if cliff["aim"] is None else " / ".join(f"{number:.2f}" for number in cliff["aim"])
        of_ours, of_general = (
            [over_base(found, row, cliff["base"], record["kind"]) for found in shapes.values()]
            for row in (name, cliff["general"])
        )
        lines.append([name, aim, *of_ours, *of_general])
        if cliff["peer"]:
            of_torch = [over_base(found, cliff["peer"], cliff["base"], record["kind"]) for found in shapes.values()]
            lines.append([cliff["peer"], "", *of_torch, *("" for _ in shapes)])
    if "host" in record:
        lines.append(host_line(record["host"], shapes))
    return header, lines


def over_base(found: dict[str, Any], name: str, base: str, kind: str) -> str:
    """Write a row's time over the baseline's in each mode, the median of the ratios within rounds."""
    texts = []
    for mode in MODES:
        samples = {each: found[each].get(kind, {}).get(mode, {}).get("milliseconds") for each in (name, base)}
        timed = all(samples.values())
        texts.append(f"{ratios(samples, base)[name]['median']:.2f}" if timed else why_not_timed(found[name], mode))
    return " / ".join(texts)


def host_line(host: dict[str, Any], shapes: dict[str, Any]) -> list[str]:
    """Write milliseconds of a call from Python, below the first shape."""

    def medians(name: str) -> str:
        samples = [host["rows"][name].get("from Python", {}).get(mode, {}).get("milliseconds") for mode in MODES]
        return " / ".join("–" if each is None else f"{statistics.median(each):.2f}" for each in samples)

    empty = [""] * (len(shapes) - 1)
    aim = " / ".join(f"{number:.2f}" for number in host["aim"])
    title = f"{host['name']} (torch without bias: {medians('torch, no bias')})"
    return [title, aim, medians("headway"), *empty, medians("headway, general kernels"), *empty]


def wrong(record: dict[str, Any]) -> dict[str, list[str]]:
    """List the cells of ours without a time by the reason, but for calls that the general kernels refuse."""
    problems: dict[str, list[str]] = {}
    for shape, found in record["shapes"].items():
        for name, cliff in record["cliffs"].items():
            for row in (name, cliff["general"]):
                (settings,) = found[row]["settings"].values()
                for mode, checked in settings.items():
                    problem = checked.get("problem", "")
                    refused = problem.startswith(REFUSED) and row == cliff["general"]
                    if not refused and mode not in found[row].get(record["kind"], {}):
                        reason = problem or f"errors over what is allowed: {checked['parity']}"
                        problems.setdefault(reason, []).append(f"{row}, {shape}, {mode}")
    return problems
