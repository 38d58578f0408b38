"""A command's options, generated from the configuration that it fills and the function that it calls.

`configured` shows chosen settings as options of their own; every other setting is given by `--set PATH=VALUE` and
listed by `--help-all`. A new field of a configuration needs no change here or in a command.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from headway.cli.errors import exit_with_message
from headway.cli.settings import Changes, Setting, find_settings, function_settings

SET = "Any other setting; may be given several times. An empty VALUE means none."
ALL = "List the settings that --set takes, and exit."
RESUMABLE = "stopped; the same command with --resume continues from the last checkpoint"
QUIET = Setting("quiet", bool, False, "Show no progress.")


def configured(
    kind: type | None,
    shown: Iterable[str],
    *,
    without: Iterable[str] = (),
    recipe: Callable[[str], Any] | None = None,
    run: Callable[..., Any] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the settings of a configuration as options.

    The command takes their values as its parameter `given` and, with `run`, those of `run` as `options`; the options
    stand in the help where these parameters stand in its signature.

    Args:
        kind: the dataclass of the configuration; None for a command that fills none and takes no `given`.
        shown: paths of settings that have options of their own, named after their last part, or NAME=PATH. An
            upper-case name is an argument.
        without: settings that the command fills in by itself.
        recipe: makes the configuration whose values `--help-all` shows as defaults, from the command's option --recipe.
        run: a function whose parameters with a default become options; `progress` becomes --quiet.
    """
    settings = {path: each for path, each in (find_settings(kind) if kind else {}).items() if path not in without}
    flags = {}
    for each in shown:
        name, _, path = each.rpartition("=")
        flags[name or path.split(".")[-1].replace("_", "-")] = settings[path]
    calls = function_settings(run) if run else {}
    if "progress" in calls:
        calls["progress"] = QUIET

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def call(**values: Any) -> None:
            with exit_with_message(when_stopped=RESUMABLE if "resume" in calls else "stopped"):
                given = Changes(settings)
                for flag, setting in flags.items():
                    texts = _texts(values.pop(_name(flag)))
                    if setting.is_mapping:
                        for name, named in _pairs(texts, f"--{flag}").items():
                            given.add(f"{setting.path}.{name}", named, f"--{flag} {name}")
                    elif texts:
                        given.add(setting.path, texts, flag if flag.isupper() else f"--{flag}")
                for path, texts in _pairs(values.pop("set_", None) or [], "--set").items():
                    given.add(path, texts, f"--set {path}")
                if run:
                    values["options"] = _call_options(calls, values)
                values.pop("help_all", None)
                command(**values, **({"given": given} if kind else {}))

        listed = [setting for setting in settings.values() if setting not in flags.values()]
        set_any = typer.Option("--set", metavar="PATH=VALUE", help=SET)
        list_all = typer.Option("--help-all", is_eager=True, callback=_lister(listed, recipe), help=ALL)
        others = [
            _keyword("set_", list[str] | None, set_any, None),
            _keyword("help_all", bool, list_all, False),
        ]
        generated = {
            "given": [
                *(_parameter(flag, setting, show_default=recipe is None) for flag, setting in flags.items()),
                *(others if listed else ()),
            ],
            "options": [
                _parameter(each.path.replace("_", "-"), each, show_default=True, negatable=each.default is not False)
                for each in calls.values()
            ],
        }
        parameters: list[inspect.Parameter] = []
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
            parameters += generated.get(name, [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)])
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return call

    return decorate


def note_fresh_start(folder: str | os.PathLike[str], *, resume: bool) -> None:
    """Say that there is nothing to resume, where --resume was given: the folder's name may be wrong."""
    from headway.bench.tasks.training.run_folder import RunFolder

    if resume and not RunFolder(Path(folder)).config_file.is_file() and os.environ.get("RANK", "0") == "0":
        typer.echo(f"{folder} holds no run to resume: a new one begins", err=True)


def _parameter(flag: str, setting: Setting, *, show_default: bool, negatable: bool = True) -> inspect.Parameter:
    """Return the parameter that stands for a setting in a command's signature, as typer reads it."""
    help, name = setting.help, _name(flag)
    if flag.isupper():
        return _keyword(name, str, typer.Argument(metavar=flag, help=help))
    if show_default and not isinstance(setting.default, bool) and setting.default not in (MISSING, None, (), ""):
        help = f"{help} [default: {_text(setting.default)}]"
    if setting.kind is not bool:
        option = typer.Option(f"--{flag}", metavar=setting.metavar, help=help)
        if show_default and setting.default is MISSING and "." not in setting.path:  # nothing else gives it
            return _keyword(name, list[str], option)
        return _keyword(name, list[str] | None, option, None)
    switch = f"--{flag}/--no-{flag}" if negatable else f"--{flag}"
    return _keyword(name, bool | None, typer.Option(switch, help=help), None)


def _keyword(name: str, hint: Any, option: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    annotation = Annotated[hint, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _call_options(calls: Mapping[str, Setting], values: dict[str, Any]) -> dict[str, Any]:
    """Take the arguments of a function out of `values`, in which its parameters stand as options."""
    options = {}
    for name, setting in calls.items():
        texts = _texts(values.pop(_name(setting.path)))
        value = setting.parse(texts, f"--{setting.path}") if texts else setting.default
        options[name] = not value if setting is QUIET else value
    return options


def _lister(settings: list[Setting], recipe: Callable[[str], Any] | None) -> Callable[[typer.Context, bool], None]:
    """Return the callback of --help-all, which prints each setting with its type, description and default."""

    def show(context: typer.Context, asked: bool) -> None:
        if not asked:
            return
        name = context.params.get("recipe") or "quick"
        with exit_with_message():
            base = recipe(name) if recipe else None
        defaults = f" Defaults are those of recipe {name}; put --recipe NAME first for others." if recipe else ""
        formatter = context.make_formatter()
        formatter.write_text(f"Settings of {context.command_path}, given by --set PATH=VALUE.{defaults}")
        formatter.write_paragraph()
        rows = []
        for setting in settings:
            value = _at(base, setting.path) if base else setting.default
            default = "" if value is MISSING else f" [default: {_text(value) or 'none'}]"
            path = f"{setting.path}.{setting.metavar}" if setting.is_mapping else f"{setting.path}={setting.metavar}"
            rows.append((path, f"{setting.help}{default}"))
        formatter.write_dl(rows, col_max=34)
        typer.echo(formatter.getvalue().rstrip())
        raise typer.Exit

    return show


def _at(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = getattr(config, name)
    return config


def _name(flag: str) -> str:
    return flag.lower().replace("-", "_")


def _texts(value: Any) -> list[str]:
    """Return the value of an option as texts; none if it was not given."""
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [_text(value)]


def _text(value: Any) -> str:
    """Write a value as one would type it."""
    if value is None or isinstance(value, bool):
        return "" if value is None else str(value).lower()
    if isinstance(value, Mapping):
        return ",".join(f"{name}={_text(each)}" for name, each in value.items())
    return ",".join(map(_text, value)) if isinstance(value, tuple) else str(value)


def _pairs(texts: list[str], option: str) -> dict[str, list[str]]:
    """Return the values of each name, from texts NAME=VALUE that were given to an option."""
    found: dict[str, list[str]] = {}
    for text in texts:
        path, equals, value = text.partition("=")
        if not path or not equals:
            advice = (
                "PATH=VALUE, got {!r}. --help-all lists the paths." if option == "--set" else "NAME=VALUE, got {!r}."
            )
            raise ValueError(f"{option}: expected {advice.format(text)}")
        found.setdefault(path, []).append(value)
    return found
