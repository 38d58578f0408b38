"""Tokens a second of BERT-base pretraining on one GPU, with every encoding, beside transformers' own BERT.

    python -m benchmarks.pretraining [--out benchmarks/results]

bfloat16, torch.compile, a real optimizer step (forward, loss of 15 % masked words, backward, AdamW), and inference.
`transformers` is its BertForMaskedLM with torch's attention, compiled as well, in the same run. All rows of a length
take turns (see `headway.cost`); a row that is wrong or breaks is reported and the others go on. It takes about eight
minutes on an H200 with 16 cores, most of it compiling. --tiny tries the whole on a CPU.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measure import environment, save
from headway.cost import TRANSFORMERS, CostConfig, CostTable, measure
from headway.cost.show import show

ROWS = (
    "none",
    TRANSFORMERS,
    "learned",
    "diet-rel",
    "diet-abs:rank=64",
    "diet-abs:rank=64:sharing=layer",
    "diet-abs:rank=128",
    "diet-abs:rank=128:sharing=layer",
    "tisa",
    "t5",
    "tupe-abs",
    "tupe-rel",
    "shaw",
)


def chosen(options: argparse.Namespace) -> CostConfig:
    if options.tiny:
        return CostConfig(
            encodings=tuple(options.encodings or ("none", TRANSFORMERS, "diet-rel")),
            models=("tiny",),
            lengths=(16,),
            batch=2,
            device="cpu",
            rounds=2,
        )
    return CostConfig(
        encodings=tuple(options.encodings or ROWS),
        models=("bert-base",),
        lengths=tuple(options.lengths),
        device="cuda",
        dropout=options.dropout,
        rounds=options.rounds,
        minutes=options.minutes,
        together=options.together,
    )


def speed(table: CostTable) -> Table:
    """Training speed at each length, and over transformers' in the same rounds."""
    groups = table.groups()
    drawn = Table(title="Training, thousands of tokens a second (times transformers' BERT)")
    drawn.add_column("encoding", overflow="fold")
    for model, length in groups:
        drawn.add_column(f"{model}, n = {length}", justify="right", no_wrap=True)
    for cells in zip(*groups.values(), strict=True):
        shown = []
        for cell in cells:
            rate, theirs = cell.tokens_per_second("training"), table.ratio(cell, "training", TRANSFORMERS)
            times = "" if theirs is None else f" ({1 / theirs.median:.2f})"
            shown.append("-" if rate is None else f"{rate / 1e3:,.1f}{times}")
        drawn.add_row(cells[0].row, *shown)
    return drawn


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--encodings", nargs="+", help="rows, in place of all of them")
    parser.add_argument("--dropout", type=float, default=0.1, help="of hidden states and attention weights")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=8.0, help="rows that are not ready in time are left out")
    parser.add_argument("--together", type=int, help="rows that compile at the same time; else half the cores")
    parser.add_argument("--tiny", action="store_true", help="a tiny model on a CPU: does it run?")
    return parser.parse_args(arguments)


def main() -> None:
    options = options_of()
    started = time.perf_counter()
    machine = environment()
    table = measure(
        chosen(options), tell=lambda text: print(f"{time.perf_counter() - started:5.0f} s  {text}", flush=True)
    )
    seconds = time.perf_counter() - started
    versions = {name: value for name, value in table.environment.items() if value is not None}
    record: dict[str, Any] = {**table.to_json(), "environment": {**versions, **machine}, "seconds": seconds}
    console = Console(width=120)
    show(table, console)
    console.print(speed(table))
    print(f"wrote {save('pretraining', record, options.out)} after {seconds:.0f} s")


if __name__ == "__main__":
    main()
