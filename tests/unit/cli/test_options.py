"""A command whose options come from a dataclass."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from headway.cli.options import configured
from headway.cli.settings import Changes


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """A text.

    Args:
        length: tokens of a row. They are counted with the marks at its ends.
        sources: what is read.
        packed: whether rows have several texts.
    """

    length: int = 128
    sources: tuple[str, ...] = field(default=("builtin",), metadata={"commas": False})
    packed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """A run.

    Args:
        rates: learning rates.
        clip: largest norm of the gradients.
    """

    task: str
    text: Text = field(default_factory=Text)
    rates: tuple[float, ...] = (1e-3, 1e-4)
    clip: float | None = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.rates:
            raise ValueError("rates: expected at least one.")


SHOWN = ("TASK=task", "text.length", "source=text.sources", "text.packed", "rates")
seen: list[Any] = []


@configured(Config, SHOWN)
def plain(given: Changes, out: Annotated[str | None, typer.Option(help="Where it goes.")] = None) -> None:
    """Run it."""
    seen.append((given.build(Config), out))


def named(name: str) -> Config:
    if name not in ("quick", "long"):
        raise ValueError(f"recipe: expected quick or long, got {name!r}.")
    return Config(task="a", text=Text(length=8 if name == "quick" else 512), clip=None)


@configured(Config, ["text.length"], without=["task"], recipe=named)
def recipes(recipe: Annotated[str, typer.Option(is_eager=True)] = "quick", *, given: Changes) -> None:
    """Run a recipe."""
    seen.append(given.apply(named(recipe)))


def work(
    config: Config, out: str | Path | None = None, *, progress: bool = True, jobs: int = 1, graphs: bool = True
) -> None:
    """Work.

    Args:
        jobs: processes that share the work.
    """


@configured(Config, (), run=work)
def called(given: Changes, options: dict[str, Any]) -> None:
    """Call a function."""
    seen.append(options)


app = typer.Typer(rich_markup_mode=None)
app.command()(plain)
app.command()(called)
app.command()(recipes)


def call(*arguments: str) -> Any:
    seen.clear()
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "100"})


@pytest.mark.parametrize(
    ("arguments", "config", "out"),
    [
        (["a"], Config(task="a"), None),
        (["a", "--length", "64", "--out", "here"], Config(task="a", text=Text(length=64)), "here"),
        (["a", "--source", "b,c", "--source", "d"], Config(task="a", text=Text(sources=("b,c", "d"))), None),
        (
            ["a", "--packed", "--rates", "1,2", "--rates", "3"],
            Config(task="a", text=Text(packed=True), rates=(1, 2, 3)),
            None,
        ),
        (["a", "--no-packed", "--set", "clip="], Config(task="a", clip=None), None),
        (["--set", "text.length=9", "--set", "seed=3", "a"], Config(task="a", text=Text(length=9), seed=3), None),
        (
            ["a", "--set", "text.sources=x", "--set", "text.sources=y=z"],
            Config(task="a", text=Text(sources=("x", "y=z"))),
            None,
        ),
    ],
)
def test_options_and_settings_fill_the_configuration(arguments, config, out):
    done = call("plain", *arguments)
    assert done.exit_code == 0, done.output
    assert seen == [(config, out)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plain"], "TASK"),
        (["plain", "a", "--lenght", "3"], "--length"),
        (["plain", "a", "--length", "x"], "--length: expected a whole number, got 'x'"),
        (["plain", "a", "--set", "text.lenght=3"], "Did you mean text.length?"),
        (["plain", "a", "--set", "length"], "expected PATH=VALUE"),
        (["plain", "a", "--length", "3", "--set", "text.length=4"], "--length gives the same setting"),
        (["plain", "a", "--rates", ""], "rates: expected at least one"),
        (["recipes", "--recipe", "slow"], "expected quick or long"),
        (["recipes", "--set", "task=b"], "no such setting"),
    ],
)
def test_mistakes_are_named_and_nothing_runs(arguments, message):
    done = call(*arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split()), done.stderr
    assert "Traceback" not in done.stderr and not seen


def test_help_shows_chosen_settings_with_their_descriptions_and_defaults():
    text = " ".join(call("plain", "--help").stdout.split())
    assert "--length <int> Tokens of a row. They are counted with the marks at its ends. [default: 128]" in text
    assert "--rates <float>,... Learning rates. [default: 0.001,0.0001]" in text
    assert "--packed / --no-packed" in text and "--set PATH=VALUE" in text and "--out <str> Where it goes." in text
    assert "clip" not in text


def test_help_all_lists_the_other_settings():
    done = call("plain", "--help-all")
    assert done.exit_code == 0 and not seen
    text = " ".join(done.stdout.split())
    assert "clip=<float> Largest norm of the gradients. [default: 1.0]" in text
    assert "seed=<int> [default: 0]" in text
    assert "text.length" not in text


def test_defaults_of_a_recipe_are_those_of_the_recipe():
    assert call("recipes", "--length", "9").exit_code == 0
    assert seen == [replace(named("quick"), text=Text(length=9))]
    assert "default" not in call("recipes", "--help").stdout.partition("--set")[0].partition("--length")[2]
    text = " ".join(call("recipes", "--recipe", "long", "--help-all").stdout.split())
    assert "recipe long" in text and "clip=<float> Largest norm of the gradients. [default: none]" in text


def test_parameters_of_the_function_that_is_called_become_options():
    assert call("called").exit_code == 0
    assert seen == [{"out": None, "progress": True, "jobs": 1, "graphs": True}]
    assert call("called", "--out", "here", "--quiet", "--jobs", "3", "--no-graphs").exit_code == 0
    assert seen == [{"out": "here", "progress": False, "jobs": 3, "graphs": False}]
    assert "--jobs: expected a whole number, got 'x'" in call("called", "--jobs", "x").stderr
    text = " ".join(call("called", "--help").stdout.split())
    assert "--jobs <int> Processes that share the work. [default: 1]" in text and "--graphs / --no-graphs" in text
