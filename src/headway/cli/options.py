"""Options that commands share, and what those that train do with theirs before they begin."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import typer

T = TypeVar("T")


def seed_option(help: str) -> Any:
    """A seed that every generator of random numbers takes."""
    return typer.Option(min=0, max=2**32 - 1, help=help)


def check_made(data: str | None, options: Mapping[str, Any]) -> None:
    """Raise for options of how data are made where they are made already."""
    _refuse("data", data, "made", options)


def check_trained(tokenizer: str | None, options: Mapping[str, Any]) -> None:
    """Raise for options of a tokenizer to train where one is given."""
    _refuse("tokenizer", tokenizer, "trained", options)


def _refuse(name: str, given: str | None, done: str, options: Mapping[str, Any]) -> None:
    named = [f"--{option}" for option, value in options.items() if value is not None]
    if given is not None and named:
        raise ValueError(
            f"{name}: expected none of {', '.join(named)} beside it, because {given} is {done} already, got both."
        )


def tell_of_new(folder: str, *, resume: bool) -> None:
    """Say that there is nothing to go on with, where --resume was given: the folder's name may be wrong."""
    from headway.bench.tasks.training.runs import RunFolder

    if resume and not RunFolder(Path(folder)).config_file.is_file() and os.environ.get("RANK", "0") == "0":
        typer.echo(f"{folder} holds no run to resume: a new one begins", err=True)


def given(part: T, **values: Any) -> T:
    """The part of a configuration with those values that were given."""
    return replace(part, **{name: value for name, value in values.items() if value is not None})  # type: ignore[type-var]


def pairs(name: str, texts: list[str] | None) -> dict[str, Any] | None:
    """NAME=VALUE options as a mapping; a value is JSON where it can be (8, 0.5, true, null), else text."""
    if not texts:
        return None
    values: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ValueError(f"--{name}: expected NAME=VALUE, got {text!r}.")
        try:
            values[key] = json.loads(value)
        except ValueError:
            values[key] = value
    return values
