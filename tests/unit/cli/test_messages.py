"""Messages: options that they name are such that a command takes, and missing packages are named with a remedy."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

import headway
from headway.bench.cost import CostConfig
from headway.bench.tasks.finetune import FinetuneConfig
from headway.bench.tasks.pretrain import PretrainConfig
from headway.bench.tasks.translate import TranslateConfig
from headway.cli import app
from headway.cli.errors import Refusal, exit_with_message
from headway.cli.settings import find_settings
from headway.models.translation import Decoding

SOURCE = Path(headway.__file__).parent
OF_OTHERS = {"--head", "--address", "--version-script"}  # of `ray start` and of linkers
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
SETTING = re.compile(r"--set ([a-z_]+(?:\.[a-z_]+)*)=")


def options_of(command: Any, context: Any = None) -> set[str]:
    """All options of a command and of the commands in it."""
    found = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}
    for name in getattr(command, "commands", ()):
        found |= options_of(command.get_command(context, name))
    return found


def texts() -> Iterator[tuple[str, str]]:
    """Where each string of the sources stands, and the string; docstrings are strings too."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [str(each.value) if isinstance(each, ast.Constant) else "X" for each in node.values]
                yield f"{path.relative_to(SOURCE)}:{node.lineno}", "".join(parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{path.relative_to(SOURCE)}:{node.lineno}", node.value


def test_options_in_texts_exist():
    known = options_of(get_command(app)) | OF_OTHERS | {"--help", "--nproc-per-node"}
    assert len(known) > 60
    unknown = {
        f"{where}: {option}"
        for where, text in texts()
        if not where.startswith(("attention", "storage", "cli/options"))  # arguments of compilers, of git; generated
        for option in OPTION.findall(text)
        if option.rstrip("-") not in known
    }
    assert not unknown


def test_settings_in_texts_exist():
    kinds = (PretrainConfig, FinetuneConfig, TranslateConfig, CostConfig, Decoding)
    known = {path for kind in kinds for path in find_settings(kind)}
    named = {(where, path) for where, text in texts() for path in SETTING.findall(text)}
    assert len(named) > 5
    assert not [each for each in named if each[1] not in known and not each[1].startswith("model.changes.")]


@pytest.mark.parametrize("command", ["pretrain", "blimp"])
def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch, command):
    for name in [name for name in sys.modules if name.startswith("headway.cli.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "accelerate", None)
    monkeypatch.setitem(sys.modules, "torch", None)
    result = CliRunner().invoke(app, [command, "--help"])
    assert result.exit_code == 2
    assert re.search(r"(torch|accelerate) is needed and not installed: pip install 'headway\[all\]'", result.stderr)
    assert "No module named" not in result.stderr


def test_a_package_that_is_missing_while_a_command_runs():
    said = r"^scipy is needed and not installed: pip install 'headway\[all\]'$"
    with pytest.raises(Refusal, match=said), exit_with_message():
        raise ModuleNotFoundError("No module named 'scipy.stats'", name="scipy.stats")
