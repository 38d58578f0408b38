"""The command line: one thin command a verb. Imports stand inside the commands, so that `--help` is instant."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

import headway
from headway.cli.analyze import analyze
from headway.cli.claims import claims
from headway.cli.convert import convert
from headway.cli.cost import cost
from headway.cli.finetune import finetune
from headway.cli.pretrain import pretrain
from headway.cli.study import report, study
from headway.cli.translate import translate

app = typer.Typer(
    name="headway",
    help="Position encodings for transformers: compare them, measure them, use them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(analyze)
app.command()(claims)
app.command()(convert)
app.command()(cost)
app.command()(finetune)
app.command()(pretrain)
app.command()(study)
app.add_typer(translate, name="translate")
app.command()(report)


def main() -> None:
    app()


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"headway {headway.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    pass


@app.command("list")
def list_encodings(
    layers: Annotated[int | None, typer.Option(help="Layers of the model; else 12.")] = None,
    heads: Annotated[int | None, typer.Option(help="Heads of each layer; else 12.")] = None,
    head_dim: Annotated[int | None, typer.Option(help="Width of a head; else 64.")] = None,
    max_length: Annotated[int | None, typer.Option(help="Longest sequence of training; else 512.")] = None,
    parameters: Annotated[
        bool, typer.Option("--parameters", help="Parameters of whole models beside Table 6 of the DIET paper.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    """List every encoding: where it acts, its parameters (for BERT-base), whether it extends, its paper.

    Examples: headway list --layers 4 --heads 8; headway list --parameters
    """
    sizes = {"layers": layers, "heads": heads, "head-dim": head_dim, "max-length": max_length}
    if parameters:
        if named := [f"--{name}" for name, value in sizes.items() if value is not None]:
            raise typer.BadParameter(f"--parameters: expected none of {', '.join(named)}: the models are the paper's.")
        _list_parameters(as_json)
        return
    base = {"layers": 12, "heads": 12, "head-dim": 64, "max-length": 512}
    layers, heads, head_dim, max_length = (base[name] if value is None else value for name, value in sizes.items())
    from headway.encodings.overview import overview

    try:
        rows = overview(num_layers=layers, num_heads=heads, head_dim=head_dim, max_length=max_length)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{layers} layers of {heads} heads x {head_dim}, up to {max_length} positions")
    for column in ("encoding", "acts on", "sharing", "extends", "paper"):
        table.add_column(column, overflow="fold")
    table.add_column("parameters", justify="right", no_wrap=True)
    for row in rows:
        extends = "yes" if row.extends else f"no, {max_length}"
        acts = ", ".join(row.places) or "nothing"
        table.add_row(row.name, acts, row.sharing or "-", extends, row.paper, f"{row.parameters:,}")
    Console().print(table)


def _list_parameters(as_json: bool) -> None:
    from headway.models.parameters import parameter_table

    rows = parameter_table()
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Parameters of BERT-base, in millions; Chen et al. (2021b), Table 6")
    table.add_column("model", overflow="fold")
    for column in ("English", "paper", "multilingual", "paper"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        ours = (f"{row.english / 1e6:.1f}", f"{row.multilingual / 1e6:.1f}")
        table.add_row(row.model, ours[0], f"{row.paper_english:.1f}", ours[1], f"{row.paper_multilingual:.1f}")
    Console().print(table)
