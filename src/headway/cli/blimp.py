"""`headway blimp`: whether a masked-word encoder prefers acceptable sentences."""

from __future__ import annotations

import json
from typing import Annotated

import torch
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from headway.bench.tasks.minimal_pairs import TOKENS, Share, score_pairs
from headway.cli.errors import exit_with_message
from headway.pretrained.analysis.loading import load_masked_words, load_tokenizer
from headway.storage import check_file, environment, write_json


def blimp(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Folder or Hub name of one of our encoders or any of transformers.")
    ],
    data: Annotated[
        str, typer.Option(help="BLiMP's folder with its 67 files, or builtin[:PAIRS] for the built-in language.")
    ],
    tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Tokens in a forward pass; {TOKENS['cuda']:,} on a GPU and {TOKENS['cpu']:,} on a CPU unless given.",
        ),
    ] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="Do not use a GPU.")] = False,
    out: Annotated[str | None, typer.Option(help="File for all numbers, JSON; also those of each paradigm.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers in place of the table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show no progress.")] = False,
) -> None:
    """Score BLiMP's minimal pairs by pseudo-likelihood: each token is masked in turn, and log probabilities are summed.

    Nothing is trained. A pair is right if the acceptable sentence has the higher score; a tie counts half. Intervals
    are over pairs, and say nothing about another pretraining of the same model.

    \b
    Examples:
      headway blimp runs/tisa/model --data blimp
      headway blimp bert-base-uncased --data blimp --out bert.json
      headway blimp runs/quick/model --data builtin:500
    """
    with exit_with_message():
        if out is not None:
            check_file(out)
        loaded, tokenizer = load_masked_words(model), load_tokenizer(model)
        loaded.to("cuda" if torch.cuda.is_available() and not cpu else "cpu")
        with Progress(console=Console(stderr=True), disable=quiet) as bar:
            task = bar.add_task("sentences", total=None)
            found = score_pairs(
                loaded,
                tokenizer,
                data,
                tokens=tokens,
                progress=lambda done, total: bar.update(task, completed=done, total=total),
            )
        numbers = {"model": model, "data": data, **found.to_json(), "environment": environment()}
        if out is not None:
            write_json(out, numbers)
    if as_json:
        typer.echo(json.dumps(numbers, indent=2))
    else:
        table = Table(box=SIMPLE_HEAD)
        table.add_column("phenomenon")
        for name in ("accuracy, %", "95 % interval", "pairs"):
            table.add_column(name, justify="right")
        for name, share in found.phenomena.items():
            table.add_row(name.replace("_", " "), *_cells(share))
        table.add_section()
        table.add_row("all", *_cells(found.all))
        Console().print(table)
    if out is not None:
        typer.echo(f"wrote {out}", err=as_json)


def _cells(share: Share) -> tuple[str, str, str]:
    return f"{100 * share.accuracy:.1f}", f"{100 * share.low:.1f} to {100 * share.high:.1f}", f"{share.pairs:,}"
