"""Tokens a second of BERT-base pretraining on one GPU, with every encoding, beside transformers' own BERT.

    python -m benchmarks.pretraining [--out benchmarks/results]

bfloat16, torch.compile, a real optimizer step (forward, loss of 15 % masked words, backward, AdamW), and inference,
replayed as CUDA graphs. transformers' BertForMaskedLM runs in the same rounds in several settings (`THEIRS`, and
`headway.bench.cost.theirs`): as it comes, compiled, compiled without an attention mask, that with cuDNN's kernels
preferred, and with a head at the masked places alone, as ours is. Ratios are over the fastest that does all that
BertForMaskedLM does, and, apart from these, over the fastest that does the same work as ours.

All rows of a length take turns (see `headway.bench.cost`); a row that is wrong or breaks is reported and the others go
on. It takes eight to nine minutes for both lengths on an H200 with 16 cores. --tiny tries the whole on a CPU.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.measure import add_record_options, environment, save
from headway.bench.cost import TRANSFORMERS, CostConfig, CostTable, measure, print_table
from headway.bench.statistics import spread

THEIRS = (
    f"{TRANSFORMERS}:compile=false,graphs=false",  # as it comes
    TRANSFORMERS,
    f"{TRANSFORMERS}:mask=false",
    f"{TRANSFORMERS}:mask=false,kernels=cudnn",
    f"{TRANSFORMERS}:mask=false,head=masked",
    f"{TRANSFORMERS}:mask=false,kernels=cudnn,head=masked",
)
ROWS = (
    "none",
    *THEIRS,
    "learned",
    "diet-rel",
    "diet-abs:rank=64",
    "diet-abs:rank=64,sharing=layer",
    "diet-abs:rank=128",
    "diet-abs:rank=128,sharing=layer",
    "tisa",
    "t5",
    "tupe-abs",
    "tupe-rel",
    "shaw",
)


def chosen(options: argparse.Namespace) -> CostConfig:
    if options.tiny:
        return CostConfig(
            encodings=tuple(options.encodings or ("none", *THEIRS, "diet-rel")),
            models=("tiny",),
            lengths=(16,),
            batch=2,
            device="cpu",
            compile=options.compile,
            rounds=2,
        )
    return CostConfig(
        encodings=tuple(options.encodings or ROWS),
        models=("bert-base",),
        lengths=tuple(options.lengths),
        device="cuda",
        dropout=options.dropout,
        modes=tuple(options.modes),
        rounds=options.rounds,
        minutes=options.minutes,
        together=options.together,
    )


def speed(table: CostTable, length: int) -> Table:
    """Lay out training speed at one length, its share of the GPU's peak, and over transformers in the same rounds."""
    (cells,) = (cells for (_, n), cells in table.groups().items() if n == length)
    drawn = Table(title=f"Training, {cells[0].model}, n = {length}", box=SIMPLE_HEAD, padding=(0, 0, 0, 1))
    drawn.add_column("encoding", overflow="fold")
    for head in ("thousand\ntokens/s", "20-80 %", "MFU", "over trans-\nformers", "same\nwork"):
        drawn.add_column(head, justify="right", no_wrap=True)
    for cell in cells:
        if cell.training is None:
            drawn.add_row(cell.row, *["-"] * 5)
            continue
        rates = spread([cell.batch * length / seconds / 1e3 for seconds in cell.training.seconds])
        share = table.mfu(cell)
        faster = [table.speed_over_transformers(cell, "training", same_work=same) for same in (False, True)]
        drawn.add_row(
            cell.row,
            f"{rates.median:,.1f}",
            f"{rates.low:,.1f}-{rates.high:,.1f}",
            "-" if share is None else f"{100 * share:.1f} %",
            *("-" if times is None else f"{times.median:.2f}" for times in faster),
        )
    fastest = [table.fastest_transformers(cells[0], "training", same_work=same) for same in (False, True)]
    drawn.caption = f"over transformers: over {fastest[0]}; same work: over {fastest[1]}"
    return drawn


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--encodings", nargs="+", help="rows, in place of all of them")
    parser.add_argument("--dropout", type=float, default=0.1, help="of hidden states and attention weights")
    parser.add_argument("--modes", nargs="+", default=["inference", "training"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--minutes", type=float, default=8.5, help="after these no round begins; rows that are late are left out"
    )
    parser.add_argument("--together", type=int, help="rows that compile at the same time; else half the cores")
    parser.add_argument("--tiny", action="store_true", help="a tiny model on a CPU: does it run?")
    parser.add_argument("--compile", action="store_true", help="with --tiny: use torch.compile there too")
    add_record_options(parser)
    return parser.parse_args(arguments)


def main() -> None:
    options = options_of()
    started = time.perf_counter()
    machine = environment(dirty=options.dirty or options.tiny, commit=options.commit)
    table = measure(
        chosen(options), progress=lambda text: print(f"{time.perf_counter() - started:5.0f} s  {text}", flush=True)
    )
    seconds = time.perf_counter() - started
    versions = {name: value for name, value in table.environment.items() if value is not None}
    record: dict[str, Any] = {**table.to_json(), "environment": {**versions, **machine}, "seconds": seconds}
    console = Console()
    print_table(table, console)
    for _, length in table.groups():
        console.print(speed(table, length))
    print(f"wrote {save('pretraining', record, options.out)} after {seconds:.0f} s")


if __name__ == "__main__":
    main()
