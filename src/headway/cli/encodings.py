"""`headway list`: the encodings and the parameters that they add."""

from __future__ import annotations

import inspect
import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from headway.cli.errors import exit_with_message


@exit_with_message()
def list_encodings(
    layers: Annotated[int | None, typer.Option(help="Number of layers of the model.")] = None,
    heads: Annotated[int | None, typer.Option(help="Number of heads of a layer.")] = None,
    head_dim: Annotated[int | None, typer.Option(help="Width of a head.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Length of the longest sequence in training.")] = None,
    parameters: Annotated[
        bool, typer.Option("--parameters", help="Count whole models, beside Table 6 of the DIET paper.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON in place of a table.")] = False,
) -> None:
    """List the encodings: where each acts, its parameters, whether it takes longer texts than in training, its paper.

    Sizes that are not given are those of BERT-base.

    \b
    Examples:
      headway list
      headway list --layers 4 --heads 8
      headway list --parameters
    """
    given = {"num_layers": layers, "num_heads": heads, "head_dim": head_dim, "max_length": max_length}
    given = {name: value for name, value in given.items() if value is not None}
    if parameters:
        if given:
            raise ValueError("--parameters: counts the models of the paper. Leave out the sizes, or --parameters.")
        _list_parameters(as_json)
        return
    from headway.encodings.overview import overview

    sizes = {name: each.default for name, each in inspect.signature(overview).parameters.items()} | given
    rows = overview(**sizes)
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    title = "{num_layers} layers of {num_heads} heads x {head_dim}, up to {max_length} positions".format(**sizes)
    table = _table(title, "encoding")
    for column in ("acts on", "sharing", "extends"):
        table.add_column(column, no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("paper")
    for row in rows:
        acts = ", ".join(row.places).replace("queries and keys", "q and k") or "nothing"
        extends, paper = "yes" if row.extends else "no", row.paper.split(", ")[0].replace(" et al.", "")
        table.add_row(row.name, acts, row.sharing or "-", extends, f"{row.parameters:,}", paper)
    Console().print(table)


def _list_parameters(as_json: bool) -> None:
    from headway.models.parameters import parameter_table

    rows = parameter_table()
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    table = _table("Parameters of BERT-base, in millions; Chen et al. (2021b), Table 6", "model")
    for column in ("English", "paper", "multilingual", "paper"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        ours = (f"{row.english / 1e6:.1f}", f"{row.multilingual / 1e6:.1f}")
        table.add_row(row.model, ours[0], f"{row.paper_english:.1f}", ours[1], f"{row.paper_multilingual:.1f}")
    Console().print(table)


def _table(title: str, first: str) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(first, no_wrap=True)
    return table
