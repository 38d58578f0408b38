"""`headway cost`: what position costs, measured on this machine."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console

from headway.bench.cost import CostConfig, measure, print_table
from headway.cli.options import configured
from headway.cli.settings import Changes
from headway.storage import check_file, write_json

SHOWN = (
    *("encodings", "model=models", "length=lengths", "batch", "mode=modes", "baseline", "device", "rounds", "minutes"),
    "seed",
)


@configured(CostConfig, SHOWN)
def cost(
    given: Changes,
    out: Annotated[str | None, typer.Option(help="File for the raw numbers, JSON.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the raw numbers in place of the table.")] = False,
) -> None:
    """Measure what position costs: time, memory, parameters and FLOPs of whole models, training and inference.

    Rows take turns, each in its own process, and ratios are taken within a round, so that a busy machine favours none.
    A row whose output or gradients differ from the formula in float64 is reported and not timed. Beside it stands what
    Chen et al. (2021b), Table 1, measured. The default takes about a minute on a CPU.

    \b
    Examples:
      headway cost
      headway cost --model bert-small --length 128,512 \\
        --encodings none,shaw,diet-rel,diet-abs:rank=128,sharing=layer
      headway cost --model bert-base --baseline learned \\
        --encodings transformers,diet-rel --out cost.json
    """
    config = given.build(CostConfig)
    if out is not None:
        check_file(out)
    with Console(stderr=True).status("") as status:
        table = measure(config, progress=status.update)
    if as_json:
        typer.echo(json.dumps(table.to_json(), indent=2))
    else:
        print_table(table, Console())
    if out is not None:
        write_json(out, table.to_json())
        typer.echo(f"wrote {out}", err=as_json)
    if all(row.problem is not None for row in table.measurements):
        raise typer.Exit(1)
