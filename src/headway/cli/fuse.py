"""`headway fuse`: what fusing does to a pretrained model, and whether it pays on this machine."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from headway.cli.options import configured
from headway.cli.settings import Changes
from headway.pretrained import fusing
from headway.pretrained.fusing.check import Check, FuseConfig, load, run

SHOWN = ("MODEL=model", "length", "batch", "padding", "rounds", "device", "revision", "seed")


@configured(FuseConfig, SHOWN)
def fuse(
    given: Changes,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Also compare outputs and times.", show_default=True)
    ] = True,
) -> None:
    """Say what hw.fuse replaces in a pretrained model, and compare outputs and times with transformers' own.

    The model is loaded in its own precision and gets random tokens, or images, without gradients. The sequences of the
    batch have several lengths, unless --no-padding is given; outputs are compared where there are tokens. Rows take
    turns, and times are medians. Nothing is written: in a program, `headway.fuse(model)` does the same to a loaded
    model.

    \b
    Examples:
      headway fuse t5-small --check
      headway fuse microsoft/mpnet-base --length 512 --batch 8
      headway fuse t5-small --no-padding
    """
    config = given.build(FuseConfig)
    if not check:
        show_parts(fusing.fused(fusing.fuse(load(config))))
        return
    with Console(stderr=True).status("compare"):
        found = run(config)
    show_parts(found.fusing)
    show(found)


def show_parts(found: fusing.Fusing) -> None:
    """Print how many modules got which structure, and how many were left to transformers."""
    for what, count in Counter(found.replaced.values()).items():
        typer.echo(f"{count} x {what}")
    for why, count in Counter(found.left.values()).items():
        typer.echo(f"{count} left to transformers: {why}")


def show(found: Check) -> None:
    """Print the table of times and differences."""
    table = Table(box=SIMPLE_HEAD, title=f"{found.what}, inference")
    table.add_column("attention")
    table.add_column("ms", justify="right")
    table.add_column("greatest difference", justify="right")
    for row in found.rows:
        if row.seconds is None:
            table.add_row(row.name, "-", row.problem)
        else:
            table.add_row(row.name, f"{row.seconds * 1000:.1f}", f"{row.difference:.1e}")
    Console(width=80).print(table)
    typer.echo(f"Differences are from eager attention, whose greatest number is {found.scale:.1e}.")
    if found.ratio is not None:
        typer.echo(f"Fused, the model is {found.ratio:.2f} times as fast as the best of transformers.")
