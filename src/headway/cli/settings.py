"""Settings of configuration dataclasses by path: found, described, read from text and put in place.

A path names a field through nested dataclasses (`text.length`) or a key of a mapping (`model.changes.norm`). Types,
defaults and descriptions are those of the dataclass: its annotations, its field defaults and the `Args:` lines of its
docstring.
"""

from __future__ import annotations

import difflib
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

MAX_SEED = 2**32 - 1  # every generator of random numbers takes seeds up to this one
METAVARS = {int: "<int>", float: "<float>", bool: "<bool>", str: "<str>"}  # as typer writes them


@dataclass(frozen=True, slots=True)
class Setting:
    """A field of a configuration that the command line can set.

    Args:
        hint: its type.
        default: MISSING where the field has none.
        help: its description, from the docstring of its dataclass.
        commas: whether one text may list several values.
    """

    path: str
    hint: Any
    default: Any
    help: str = ""
    commas: bool = True

    @property
    def optional(self) -> bool:
        return type(None) in get_args(self.hint)

    @property
    def kind(self) -> Any:
        """The type, without None."""
        if get_origin(self.hint) not in (Union, UnionType):
            return self.hint
        return next(each for each in get_args(self.hint) if each is not type(None))

    @property
    def is_tuple(self) -> bool:
        return get_origin(self.kind) is tuple

    @property
    def is_mapping(self) -> bool:
        return isinstance(origin := get_origin(self.kind) or self.kind, type) and issubclass(origin, Mapping)

    @property
    def metavar(self) -> str:
        if self.is_mapping:
            return "NAME=VALUE"
        kind = get_args(self.kind)[0] if self.is_tuple else self.kind
        return METAVARS.get(kind, "<str>") + (",..." if self.is_tuple and self.commas else "")

    def parse(self, texts: list[str], option: str) -> Any:
        """Read the value from texts of the command line; only a tuple takes several."""
        if not self.is_tuple:
            return self._one(self.kind, texts[-1], option)
        if texts == [""]:
            return None if self.optional else ()
        parts = [part for text in texts for part in (split_list(text) if self.commas else [text])]
        inner = [each for each in get_args(self.kind) if each is not Ellipsis]
        if Ellipsis in get_args(self.kind):
            inner *= len(parts)
        if len(inner) != len(parts):
            raise ValueError(f"{option}: expected {len(inner)} values, got {len(parts)}: {', '.join(parts)}.")
        return tuple(self._one(kind, part, option) for kind, part in zip(inner, parts, strict=True))

    def _one(self, kind: Any, text: str, option: str) -> Any:
        if text == "" and self.optional:
            return None
        try:
            if kind is bool:
                value: Any = {"true": True, "false": False}[text.lower()]
            elif hasattr(kind, "parse"):
                value = kind.parse(text)
            else:
                value = json_or_text(text) if kind is Any else kind(text)
        except (KeyError, ValueError) as error:
            if kind not in METAVARS:
                raise
            words = {int: "a whole number", float: "a number", bool: "true or false"}[kind]
            nothing = ", or nothing for none" if self.optional else ""
            raise ValueError(f"{option}: expected {words}{nothing}, got {text!r}.") from error
        if self.path.split(".")[-1] in ("seed", "seeds") and kind is int and not 0 <= value <= MAX_SEED:
            raise ValueError(f"{option}: expected 0 to {MAX_SEED}, got {value}.")
        return value


def find_settings(kind: type, prefix: str = "") -> dict[str, Setting]:
    """Return all settings of a configuration class by path; a nested dataclass is replaced by its own settings."""
    hints, help, found = get_type_hints(kind), dict[str, str](), dict[str, Setting]()
    for each in reversed(kind.__mro__):
        help |= read_help(each.__doc__)
    for part in fields(kind):
        path, hint = f"{prefix}{part.name}", hints[part.name]
        if is_dataclass(hint) and not hasattr(hint, "parse"):
            found |= find_settings(cast(type, hint), f"{path}.")
        else:
            commas = part.metadata.get("commas", True)
            found[path] = Setting(path, hint, default_of(part), help.get(part.name, ""), commas)
    return found


def function_settings(function: Callable[..., Any]) -> dict[str, Setting]:
    """Return the parameters of a function that have a default."""
    hints, help = get_type_hints(function), read_help(function.__doc__)
    return {
        name: Setting(name, hints[name], parameter.default, help.get(name, ""))
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is not parameter.empty
    }


def default_of(each: Field[Any]) -> Any:
    """Return the default of a field; MISSING if it has none."""
    return each.default if each.default_factory is MISSING else each.default_factory()


def read_help(docstring: str | None) -> dict[str, str]:
    """Read descriptions by name from the `Args:` lines of a docstring."""
    found: dict[str, str] = {}
    _, _, args = inspect.cleandoc(docstring or "").partition("\nArgs:\n")
    for entry in re.split(r"\n(?=\S)", textwrap.dedent(args.split("\n\n")[0])):
        names, colon, text = entry.partition(": ")
        if colon:
            text = " ".join(text.split())
            found |= {name.strip(): text[:1].upper() + text[1:] for name in names.split(",")}
    return found


def split_list(text: str) -> list[str]:
    """Split a text at commas; a comma before NAME= belongs to the options of the part before it."""
    return [part.strip() for part in re.split(r",(?!\s*[\w-]+=)", text) if part.strip()]


def json_or_text(text: str) -> Any:
    """Read a value of no declared type: as JSON if it is JSON (8, 0.5, true, null), else as the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


@dataclass(frozen=True, slots=True)
class Changes:
    """Values that the command line gives to settings, by path, and the option that gave each."""

    settings: Mapping[str, Setting]
    values: dict[str, Any] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)

    def add(self, path: str, texts: list[str], option: str) -> None:
        """Read the value of a setting; the option is what errors name."""
        if path in self.options and self.options[path] != option:
            raise ValueError(f"{option}: {self.options[path]} gives the same setting. Leave one of them out.")
        setting = self.settings.get(path)
        if setting is not None and setting.is_mapping:
            raise ValueError(f"{option}: expected the name of one of its values, as in {path}.NAME=VALUE.")
        if setting is None:
            parent = self.settings.get(path.rpartition(".")[0])
            if parent is None or not parent.is_mapping:
                raise ValueError(f"{option}: no such setting. {suggest(path, self.settings)}")
            setting = Setting(path, (get_args(parent.kind) or (str, Any))[1], MISSING)
        self.values[path] = setting.parse(texts, option)
        self.options[path] = option

    def __contains__(self, path: str) -> bool:
        return path in self.values

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def get(self, path: str, otherwise: Any = None) -> Any:
        return self.values.get(path, otherwise)

    def apply(self, config: T, under: str = "") -> T:
        """Return the configuration, or the part of one at a path, with the values that were given."""
        return cast(T, _with_changes(config, self._tree(under)))

    def build(self, kind: Callable[..., T], under: str = "", **others: Any) -> T:
        """Make a new configuration of these values; what was not given has its default."""
        tree = self._tree(under)
        for each in fields(cast(Any, kind)):
            if isinstance(part := tree.get(each.name), _Tree):
                default = default_of(each)
                tree[each.name] = _with_changes({} if default is MISSING else default, part)
        return kind(**{**tree, **others})

    def refuse(self, paths: Iterable[str], why: str, *, advice: str = "Leave out one or the other.") -> None:
        """Raise where any of these settings was given; `why` ends the sentence that says so."""
        given = [self.options[path] for path in paths if path in self]
        if given:
            raise ValueError(f"{', '.join(given)}: not used {why}. {advice}")

    def _tree(self, under: str) -> _Tree:
        tree = _Tree()
        for path, value in self.values.items():
            if not path.startswith(f"{under}." if under else ""):
                continue
            *folders, name = path[len(under) + 1 if under else 0 :].split(".")
            place = tree
            for folder in folders:
                place = place.setdefault(folder, _Tree())
            place[name] = value
        return tree


class _Tree(dict[str, Any]):
    """Changes of one part of a configuration by name; a value that is a tree itself has those of a nested part."""


def _with_changes(config: Any, tree: _Tree) -> Any:
    if isinstance(config, Mapping):
        return {**config, **tree}
    changed = {
        name: _with_changes(getattr(config, name), part) if isinstance(part, _Tree) else part
        for name, part in tree.items()
    }
    return replace(config, **changed) if changed else config


def suggest(name: str, known: Iterable[str]) -> str:
    """Name the nearest of the known names, and all of them."""
    known = list(known)
    near = [each for each in known if each.split(".")[-1] == name.split(".")[-1]] or difflib.get_close_matches(
        name, known, n=1
    )
    meant = f"Did you mean {' or '.join(near)}? " if near else ""
    return f"{meant}Expected one of {', '.join(known)}."
