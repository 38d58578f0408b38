"""The help of every command: complete, within 80 columns, and with examples that work."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from headway.cli import COMMANDS, TRANSLATE, app

WIDTH = 80
NAMES = [*((name,) for name in COMMANDS), *(("translate", name) for name in TRANSLATE)]
NEEDED = {"finetune": ["rte", "--model", "m"], "decode": ["text", "--model", "m"]}  # before --help-all is read


def render(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), env={"COLUMNS": str(WIDTH), "TERMINAL_WIDTH": str(WIDTH)})
    assert done.exit_code == 0, done.output
    return done.stdout


def find_command(*names: str) -> Any:
    command, context = get_command(app), None
    for name in names:
        context = command.make_context(name, [name], parent=context, resilient_parsing=True)
        command = command.get_command(context, name)
    return command


def examples(*names: str) -> Iterator[str]:
    """The commands below "Examples:", those over several lines joined."""
    _, _, text = render(*names, "--help").partition("Examples:\n")
    text = re.sub(r"\\\n\s+", "", re.split(r"\n\s*\n", text)[0])
    yield from (line.strip() for line in text.splitlines() if line.strip())


def parse(words: list[str]) -> None:
    command, context, name = get_command(app), None, "headway"
    while hasattr(command, "commands"):
        context = command.make_context(name, list(words), parent=context)
        name, command, words = command.resolve_command(context, words)
    command.make_context(name, list(words), parent=context)


@pytest.mark.parametrize("names", [(), ("translate",), *NAMES], ids=" ".join)
def test_help_fits_80_columns_and_describes_every_option(names):
    text = render(*names, "--help")
    assert not [line for line in text.splitlines() if len(line) > WIDTH]
    assert "…" not in text
    for option in find_command(*names).params:
        assert getattr(option, "help", None), f"{' '.join(names)}: {option.name} has no description"


@pytest.mark.parametrize("names", [names for names in NAMES if "--help-all" in render(*names, "--help")], ids=" ".join)
def test_all_settings_fit_80_columns_and_are_described(names):
    text = render(*names, *NEEDED.get(names[-1], []), "--help-all")
    assert not [line for line in text.splitlines() if len(line) > WIDTH]
    for entry in re.split(r"\n(?=[a-z])", text.split("\n\n", 1)[1]):
        setting, *description = entry.split()
        assert description and not description[0].startswith("[default"), f"{setting} has no description"


@pytest.mark.parametrize("names", NAMES, ids=" ".join)
def test_examples_in_the_help_parse(names):
    found = list(examples(*names))
    assert found or names == ("translate",)
    for line in found:
        command = shlex.split(line.split(" | ")[-1])
        parse(command[command.index("headway") + 1 :])
