"""Tables of README and docs from a record of `benchmarks.attention`.

Records up to 2026-11-19 have a median for each row and nothing else; those since have every sample (`shapes`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

from benchmarks.measure import ratios
from headway.bench.statistics import spread

MODES = ("forward", "forward+backward")
FROM_PYTHON = (
    "torch, cuDNN, no bias",
    "torch, FlashAttention-2, no bias",
    "torch, learned Toeplitz made dense",
    "torch, FlexAttention, learned Toeplitz",
    "headway, no bias",
    "headway, learned Toeplitz",
    "headway, low rank 64",
    "headway, Shaw, K = 16, keys and values",
)
SAME_WORK = (
    ("headway, learned Toeplitz", "torch, learned Toeplitz made dense"),
    ("headway, learned Toeplitz", "torch, FlexAttention, learned Toeplitz"),
    ("headway, learned matrix (Dense)", "torch, learned matrix"),
    ("headway, learned Toeplitz, causal", "torch, cuDNN, causal"),
    ("headway, learned Toeplitz, dropout", "torch, cuDNN, dropout"),
)
AIMS = {
    "headway, learned Toeplitz": "1.15 / 1.30",
    "headway, fixed Toeplitz (ALiBi)": "1.05 / 1.08",
    "headway, T5 (clipped offsets)": "1.08 / 1.15",
    "headway, segments": "1.05 / 1.08",
    "headway, low rank 64": "1.5 / 1.6",
    "headway, Shaw, K = 16, keys and values": "1.3 / 1.5",
    "headway, learned Toeplitz, causal": "1.15 / 1.30",
}
GIB = 2**30


def times(record: dict[str, Any]) -> str:
    """Write medians of replayed graphs, every row."""
    shapes = medians(record, "replayed")
    lines = table("ms, forward / forward+backward", shapes, next(iter(shapes.values())))
    environment = record["environment"]
    about = (
        f"{environment['gpu']}, torch {environment['torch']}, triton {environment['triton']}, bf16, 12 heads × 64, "
        f"{environment['date']}; medians of graph replays; raw numbers in [{record['path']}](../{record['path']})."
    )
    return "\n".join([*lines, "", about + (about_spread(record, "replayed") if "shapes" in record else "")])


def times_from_python(record: dict[str, Any]) -> str:
    """Write medians of the same calls made from Python, for the rows of the README."""
    if "shapes" not in record:  # of training alone
        shapes = record["milliseconds"]
        lines = ["| ms from Python, forward+backward | " + " | ".join(shapes) + " |", "|---" * (len(shapes) + 1) + "|"]
        for name in (name for name in next(iter(shapes.values())) if name in FROM_PYTHON):
            cells = [milliseconds(row[name]["launched"]) for row in shapes.values()]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        return "\n".join([*lines, "", "The same calls made from Python, without CUDA graphs; medians."])
    lines = table("ms from Python, forward / forward+backward", medians(record, "from Python"), FROM_PYTHON)
    about = "The same calls made from Python, without CUDA graphs, in the same run; medians."
    return "\n".join([*lines, "", about + about_spread(record, "from Python")])


def over_cudnn(record: dict[str, Any]) -> str:
    """Write times over cuDNN without a bias (causal and dropout: over its own), and the targets."""
    shapes = medians(record, "replayed")
    lines = ["| times cuDNN without bias | aim | " + " | ".join(shapes) + " |", "|---" * (len(shapes) + 2) + "|"]
    for name in next(iter(shapes.values())):
        if name.startswith("headway") or "FlashAttention" in name:
            kind = next((kind for kind in ("causal", "dropout") if kind in name), "no bias")
            cells = [over(record, shape, name, f"torch, cuDNN, {kind}") for shape in shapes]
            lines.append(f"| {name} | {AIMS.get(name, '')} | " + " | ".join(cells) + " |")
    about = f"Forward / forward and backward, from [{record['path']}](../{record['path']})."
    return "\n".join([*lines, "", about])


def same_work(record: dict[str, Any]) -> str:
    """Write how many times as long torch takes for the same bias."""
    shapes = record["shapes"]
    lines = ["| torch's time over headway's | " + " | ".join(shapes) + " |", "|---" * (len(shapes) + 1) + "|"]
    for ours, theirs in SAME_WORK:
        cells = [over(record, shape, theirs, ours) for shape in shapes]
        lines.append(f"| {theirs} / {ours} | " + " | ".join(cells) + " |")
    settings = [
        f"{name} at {shape}: {' / '.join(found[name]['chosen'].get(mode, '–') for mode in MODES)}"
        for name in dict.fromkeys(theirs for _, theirs in SAME_WORK)
        for shape, found in shapes.items()
        if len(found[name]["settings"]) > 1 and "FlexAttention" not in name
    ]
    about = (
        "Forward / forward and backward, medians of the ratios within a round. torch's rows are its fastest settings "
        "that are right, at each shape, forward and with backward pass chosen apart; all that were tried, "
        "FlexAttention's tiles too, are in the record with times and errors. Chosen: " + "; ".join(settings) + "."
    )
    return "\n".join([*lines, "", about])


def bits(record: dict[str, Any]) -> str:
    """Whether two calls give the same bits, and what it takes torch's functions to do so."""
    shapes = record["shapes"]
    lines = ["| same bits twice | as it comes | torch told to be deterministic |", "|---" * 3 + "|"]
    for name in next(iter(shapes.values())):
        found = [rows[name] for rows in shapes.values()]
        usual = [each["repeats"] for each in found if "repeats" in each]
        told = [each["deterministic"] for each in found if "deterministic" in each]
        lines.append(f"| {name} | {agreement(usual)} | {'' if not told else when_told(found, told)} |")
    return "\n".join(
        [*lines, "", f"Output and every gradient, at each shape, from [{record['path']}](../{record['path']})."]
    )


def memory(record: dict[str, Any]) -> str:
    """Write peak memory of a training step by length."""
    found = record["memory"]
    lengths = list(max(found.values(), key=len))
    head = " | ".join(f"n = {int(length):,}" for length in lengths)
    lines = [f"| GiB above the inputs | {head} |", "|---" * (len(lengths) + 1) + "|"]
    for name, by_length in found.items():
        cells = [f"{size / GIB:.2f}" if isinstance(size := by_length.get(n), int) else "–" for n in lengths]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    about = f"One sequence, forward and backward pass, bf16, from [{record['path']}](../{record['path']})."
    return "\n".join([*lines, "", about])


def medians(record: dict[str, Any], kind: str) -> dict[str, dict[str, dict[str, Any]]]:
    """Return milliseconds by shape, row and mode; a word where there are none."""
    if "shapes" not in record:
        return record["milliseconds"]
    return {
        shape: {
            name: {
                mode: statistics.median(row[kind][mode]["milliseconds"])
                if mode in row.get(kind, {})
                else why_not_timed(row, mode)
                for mode in MODES
            }
            for name, row in found.items()
        }
        for shape, found in record["shapes"].items()
    }


def why_not_timed(row: dict[str, Any], mode: str) -> str:
    """Return "wrong" if some setting ran and none was right, else "–"."""
    ran = [
        setting[mode]["parity"].values() for setting in row["settings"].values() if "parity" in setting.get(mode, {})
    ]
    right = any(all(ratio is not None and ratio <= 1 for ratio in ratios) for ratios in ran)
    return "wrong" if ran and not right else "–"


def table(title: str, shapes: dict[str, dict[str, dict[str, Any]]], names: Iterable[str]) -> list[str]:
    lines = [f"| {title} | " + " | ".join(shapes) + " |", "|---" * (len(shapes) + 1) + "|"]
    for name in names:
        cells = [" / ".join(milliseconds(row[name][mode]) for mode in MODES) for row in shapes.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def milliseconds(value: float | str | None) -> str:
    return value if isinstance(value, str) else "–" if value is None else f"{value:.3f}"


def over(record: dict[str, Any], shape: str, name: str, base: str) -> str:
    """Return a row's time over another's in each mode: the median of the ratios within rounds, where there are any."""
    cells = []
    for mode in MODES:
        if "shapes" not in record:
            times = record["milliseconds"][shape]
            cells.append(f"{times[name][mode] / times[base][mode]:.2f}")
            continue
        rows = record["shapes"][shape]
        samples = {each: rows[each].get("replayed", {}).get(mode, {}).get("milliseconds") for each in (name, base)}
        cells.append(f"{ratios(samples, base)[name]['median']:.2f}" if all(samples.values()) else "–")
    return " / ".join(cells)


def about_spread(record: dict[str, Any], kind: str) -> str:
    """Say how far a row's rounds are from its median."""
    rows = [row.get(kind, {}) for found in record["shapes"].values() for row in found.values()]
    samples = [each["milliseconds"] for row in rows for each in row.values()]
    spreads = [spread(each) for each in samples]
    off = [max(1 - each.low / each.median, each.high / each.median - 1) for each in spreads]
    counts = sorted({len(each) for each in samples})
    rounds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return (
        f" {rounds} rounds in turns; 20 and 80 % of a row's rounds are within {100 * statistics.median(off):.1f} % of "
        f"its median in half of all cells, and within {100 * max(off):.1f} % in all."
    )


def agreement(found: list[dict[str, bool]]) -> str:
    """Return "yes", or which tensors differ."""
    if not found:
        return "–"
    differing = dict.fromkeys(name for each in found for name, same in each.items() if not same)
    return "yes" if not differing else f"no: {', '.join(name_of(name) for name in differing)}"


def when_told(rows: list[dict[str, Any]], told: list[dict[str, Any]]) -> str:
    """Write the same for torch.use_deterministic_algorithms: how much longer it takes, or that it does not run."""
    ran = [each for each in told if "problem" not in each]
    if not ran:
        return "does not run"
    slower = [
        row["deterministic"]["milliseconds"] / statistics.median(row["replayed"][MODES[1]]["milliseconds"])
        for row in rows
        if "milliseconds" in row.get("deterministic", {}) and MODES[1] in row.get("replayed", {})
    ]
    where = "" if len(ran) == len(told) else f", at {len(ran)} of {len(told)} shapes"
    takes = f"; {min(slower):.2f} to {max(slower):.2f} of its time" if slower else ""
    return f"{agreement([each['repeats'] for each in ran])}{where}{takes}"


def name_of(tensor: str) -> str:
    return tensor if tensor == "output" else f"gradient of {tensor}"
