"""The command line: a module for each command, imported when that command is asked for, so that `--help` is instant."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

import headway
from headway.cli.errors import name_missing_package

STYLE: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
    "no_args_is_help": True,
}
COMMANDS = {  # name: where it is, and what it does in a few words
    "list": ("encodings:list_encodings", "List the encodings and their parameters."),
    "pretrain": ("pretrain:pretrain", "Pretrain an encoder on masked words."),
    "finetune": ("finetune:finetune", "Fine-tune an encoder on GLUE, XTREME and others."),
    "blimp": ("blimp:blimp", "Score minimal pairs with a masked-word encoder."),
    "translate": (":translation", "Train a translation model, translate, score."),
    "convert": ("convert:convert", "Give a pretrained model another position encoding."),
    "fuse": ("fuse:fuse", "Run a pretrained model on headway's attention."),
    "analyze": ("analyze:analyze", "Say what a model's positions learned."),
    "cost": ("cost:cost", "Measure what position costs on this machine."),
    "study": ("study:study", "Compare many encodings; write a report."),
    "report": ("study:report", "Write the report of a study again."),
    "claims": ("claims:claims", "Compare the papers' claims with our results."),
}
TRANSLATE = {
    "train": ("translate:train", "Train an encoder-decoder on parallel text."),
    "decode": ("translate:decode", "Translate text, a sentence a line."),
    "score": ("translate:score", "Score translations with BLEU and chrF."),
}


def lazy(commands: dict[str, tuple[str, str]]) -> type[TyperGroup]:
    """Make a group of commands, each of which is imported when it is asked for."""

    class LazyGroup(TyperGroup):
        def __init__(self, **rest: Any) -> None:
            super().__init__(**rest)
            self.commands = dict.fromkeys(commands)  # type: ignore[assignment]  # names; get_command imports the rest

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if cmd_name not in commands:
                return None
            place, _, name = commands[cmd_name][0].partition(":")
            try:
                found = getattr(import_module(f"headway.cli.{place}".rstrip(".")), name)
            except ModuleNotFoundError as error:
                if (error.name or "").startswith("headway"):
                    raise
                typer.echo(f"headway {cmd_name}: {name_missing_package(error)}", err=True)
                raise typer.Exit(2) from None
            if not isinstance(found, typer.Typer):
                command, found = found, typer.Typer(**{**STYLE, "no_args_is_help": False})
                found.command(cmd_name)(command)
            return get_command(found)

        def format_commands(self, ctx: Any, formatter: Any) -> None:
            with formatter.section("Commands"):
                formatter.write_dl([(name, help) for name, (_, help) in commands.items()])

    return LazyGroup


app = typer.Typer(
    name="headway",
    help="Position encodings for transformers: compare them, measure them, use them.",
    cls=lazy(COMMANDS),
    **STYLE,
)
translation = typer.Typer(
    help="Train a translation model, translate text with it, score translations.", cls=lazy(TRANSLATE), **STYLE
)


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


@translation.callback()
def _translate() -> None:
    pass
