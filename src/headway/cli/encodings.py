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

CRITERIA = ("induc-\ntive", "data-\ndriven", "few\npar.", "invar-\niant", "paral-\nlel", "read-\nable")

CRITERIA = ("induc-\ntive", "data-\ndriven", "few\npar.", "invar-\niant", "paral-\nlel", "read-\nable")


@exit_with_message()
def list_encodings(
    layers: Annotated[int | None, typer.Option(help="Number of layers of the model.")] = None,
    heads: Annotated[int | None, typer.Option(help="Number of heads of a layer.")] = None,
    head_dim: Annotated[int | None, typer.Option(help="Width of a head.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Length of the longest sequence in training.")] = None,
    parameters: Annotated[
        bool, typer.Option("--parameters", help="Count whole models, beside Table 6 of the DIET paper.")
    ] = False,
    positions: Annotated[
        bool, typer.Option("--positions", help="Count parameters of positions; TISA paper, Table 2.")
    ] = False,
    criteria: Annotated[
        bool, typer.Option("--criteria", help="Measure the six criteria of the TISA paper, Table 1.")
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
      headway list --criteria
    """
    given = {"num_layers": layers, "num_heads": heads, "head_dim": head_dim, "max_length": max_length}
    given = {name: value for name, value in given.items() if value is not None}
    tables = {"parameters": parameters, "positions": positions, "criteria": criteria}
    asked = [name for name, wanted in tables.items() if wanted]
    if asked and (given or len(asked) > 1):
        raise ValueError(
            f"--{asked[0]}: is a paper's table, of the paper's sizes. Leave out --{asked[0]}, or all others."
        )
    if asked:
        {"parameters": _list_parameters, "positions": _list_positions, "criteria": _list_criteria}[asked[0]](as_json)
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


def _list_positions(as_json: bool) -> None:
    from headway.models.parameters import position_parameter_table

    rows = position_parameter_table()
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    table = _table("Parameters of positions; Wennberg and Henter (2021), Table 2", "model")
    for heading in ("longest text", "counted", "n d or 3 S H L", "product"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        length = "any" if row.length is None else f"{row.length:,}"
        table.add_row(row.model, length, f"{row.counted:,}", row.formula, f"{row.by_formula:,}")
    console = Console()
    console.print(table)
    said = "; ".join(f"{row.model}: {row.said}" for row in rows if row.said)
    console.print(f"The paper says of {said}.", markup=False, highlight=False)


def _list_criteria(as_json: bool) -> None:
    from headway.encodings.criteria import NAMES, measure_criteria

    rows = measure_criteria()
    if as_json:
        typer.echo(json.dumps([{**asdict(row), "differences": row.differences} for row in rows], indent=2))
        return
    table = _table("The criteria of Wennberg and Henter (2021), Table 1, measured", "encoding")
    for heading in CRITERIA:
        table.add_column(heading, justify="center", no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    for row in rows:
        marks = [_mark(getattr(row, name), row.published.get(name)) for name in NAMES]
        table.add_row(row.name, *marks, f"{row.parameters:,}")
    console = Console()
    console.print(table)
    console.print(
        "Measured on random layers; parameters are those of BERT-base. = marks what the paper says too, in words, and "
        "! what it says otherwise.",
        markup=False,
        highlight=False,
    )


def _mark(measured: bool, said: bool | None) -> str:
    sign = "" if said is None else " =" if said == measured else " !"
    return ("yes" if measured else "no") + sign


def _table(title: str, first: str) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(first, no_wrap=True)
    return table
