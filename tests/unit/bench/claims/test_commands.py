"""Every command that the ledger prints is one that the command line takes."""

from __future__ import annotations

import shlex
from dataclasses import replace
from importlib import import_module

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from headway.bench.claims.ledger import CLAIMS
from headway.bench.claims.samples import Results
from headway.bench.claims.verdicts import judge_claim
from headway.cli import app
from headway.encodings import EncodingChoice

RUN = {"pretrain": "run", "finetune": "run_all", "translate train": "run", "cost": "measure"}  # what would take long


def printed() -> list[str]:
    """All commands of all comparisons, with the names in capitals filled in."""
    found = dict.fromkeys(
        command
        for claim in CLAIMS
        for part in (claim, replace(claim, contrasts=claim.stand_in or claim.contrasts, stand_in=()))
        for command in judge_claim(part, Results()).missing
    )
    return [command.replace("TASK", "rte") for command in found]


def parse(command: str):
    """Return the name of a subcommand and its arguments as the command line reads them."""
    program, *words = shlex.split(command.partition(" > ")[0])
    assert program == "headway"
    found, name = get_command(app), []
    while hasattr(found, "get_command"):
        name.append(words.pop(0))
        found = found.get_command(None, name[-1])
        assert found is not None, command
    return " ".join(name), words, found.make_context(name[-1], list(words)).params


@pytest.mark.parametrize("command", printed())
def test_a_command_is_parsed(command):
    assert "None" not in command
    parse(command)


class Reached(Exception):
    """The command would start its work now, with these configurations."""


@pytest.mark.parametrize("command", [each for each in printed() if parse(each)[0] in RUN])
def test_a_command_makes_the_configuration_that_the_claim_asks_for(command, monkeypatch):
    name, words, params = parse(command)

    def reached(configs, *rest, **options):
        raise Reached(configs)

    module = import_module(f"headway.cli.{name.split()[0]}")
    where = module if hasattr(module, RUN[name]) else import_module("headway.bench.cost")
    monkeypatch.setattr(where, RUN[name], reached)
    done = CliRunner().invoke(app, [*name.split(), *words])
    assert isinstance(done.exception, Reached), done.output
    (config,) = done.exception.args
    if name in ("pretrain", "translate train"):
        asked = params["encoding"][0]
        assert EncodingChoice.parse(config.model.encoding).with_segments(None) == EncodingChoice.parse(asked)
        linformer = "attention=linformer" in command
        assert (config.model.changes.get("attention") == "linformer") == linformer
    elif name == "finetune":
        assert [(each.task, each.start.segments) for each in config] == [
            (words[0], next((word.split("=")[1] for word in words if "segments=" in word), None))
        ]
    else:
        assert "learned" in config.encodings and config.models == ("bert-base",)
