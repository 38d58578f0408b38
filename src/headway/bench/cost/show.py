"""The table for people, in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from headway.bench.cost.contestant import Contestant
from headway.bench.cost.memory import HOW
from headway.bench.cost.published import published
from headway.bench.cost.table import CostTable, Measurement

BUSY = 0.9  # of a step: where launching takes this long, the host is what is measured


def show(table: CostTable, console: Console) -> None:
    """One table a model, length and mode, then what to know about them."""
    for (model, length), rows in table.groups().items():
        for mode in table.config.modes:
            title = f"{mode.capitalize()} step, {model}, n = {length}, {rows[0].batch} sequences"
            console.print(_table(table, rows, mode, title))
        for row in rows:
            if row.problem is not None:
                console.print(f"{row.row}, n = {length}: {row.problem}", markup=False)
    for line in _notes(table):
        console.print(line, markup=False)


def _table(table: CostTable, rows: Sequence[Measurement], mode: str, title: str) -> Table:
    papers = [published(row.model, mode, Contestant(row.row).encoding) for row in rows]
    drawn = Table(title=title, box=SIMPLE_HEAD, padding=(0, 0, 0, 1))
    drawn.add_column("encoding", overflow="fold")
    head = ["ms", f"/ {table.config.baseline}", "20-80 %", "tokens/s", "MiB", "GFLOP", "params"]
    for name in [*head, "paper"] if any(papers) else head:
        drawn.add_column(name, justify="right", no_wrap=True)
    for row, paper in zip(rows, papers, strict=True):
        last = [] if not any(papers) else ["" if paper is None else f"{paper:.2f}"]
        drawn.add_row(row.row, *_cells(table, row, mode), *last)
    return drawn


def _cells(table: CostTable, row: Measurement, mode: str) -> list[str]:
    timing, speed, ratio = row.timing(mode), row.tokens_per_second(mode), table.ratio(row, mode)
    parameters = "-" if row.parameters is None else f"{row.parameters / 1e6:.1f}M"
    if timing is None or speed is None:
        return ["-"] * 6 + [parameters]
    return [
        f"{1e3 * timing.median:.1f}",
        "-" if ratio is None else f"{ratio.median:.3f}",
        "-" if ratio is None else f"{ratio.low:.2f}-{ratio.high:.2f}",
        f"{speed:,.0f}",
        "-" if timing.peak_bytes is None else f"{timing.peak_bytes / 2**20:,.0f}",
        f"{timing.flops / 1e9:,.1f}",
        parameters,
    ]


def _notes(table: CostTable) -> list[str]:
    config = table.config
    kind = torch.device(config.device).type
    where = table.environment["gpu"] if kind == "cuda" else f"a CPU with {table.environment['threads']} threads"
    lines = [
        f"{'bfloat16' if config.bf16 else 'float32'}, {'compiled' if config.compile else 'not compiled'}"
        f"{', replayed as CUDA graphs' if config.graphs else ''}, on {where}; "
        f"dropout {config.dropout} in training; medians of at most {config.rounds} rounds; times over "
        f"{config.baseline} are taken within a round, beside them their 20 and 80 %.",
        f"MiB: the most that a step holds, {HOW[kind]}. FLOP: products of matrices, by the formulas as written.",
    ]
    if any(
        published(row.model, mode, Contestant(row.row).encoding) for row in table.measurements for mode in config.modes
    ):
        lines.append(
            "paper: Chen et al. (2021b), Table 1, time over BERT with learned positions in the input, on TPU v2."
        )
    slow = [row.row for row in table.measurements for mode in config.modes if _host_bound(row, mode)]
    if kind == "cuda" and slow:
        lines.append(f"limited by the host, not by the GPU: {', '.join(dict.fromkeys(slow))}. Use a larger batch.")
    return lines


def _host_bound(row: Measurement, mode: str) -> bool:
    timing = row.timing(mode)
    return timing is not None and sum(timing.launched) > BUSY * sum(timing.seconds)
