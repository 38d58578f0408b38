"""Settings of configurations: found by path, read from text, put in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from headway.cli.settings import Changes, find_settings


@dataclass(frozen=True)
class Name:
    """What is written as one text."""

    text: str
    options: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Name:
        if text == "wrong":
            raise ValueError("name: expected another one.")
        name, *options = text.replace(":", ",").split(",")
        return cls(name, tuple(options))

    def __str__(self) -> str:
        return self.text + (":" + ",".join(self.options) if self.options else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """Base.

    Args:
        steps: how many there are. More of it,
            on a second line.
    """

    steps: int
    rate: float = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Part(Steps):
    """Derived.

    Args:
        rate, clip: numbers of the optimizer.

    Paper: of no importance.
    """

    clip: float | None = 1.0
    packed: bool = False
    changes: Mapping[str, Any] = field(default_factory=lambda: {"norm": "pre"})

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps: expected at least 1, got {self.steps}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    part: Part
    base: Steps = field(default_factory=lambda: Steps(steps=7))
    name: Name = field(default_factory=lambda: Name("none"))
    names: tuple[Name, ...] = ()
    lengths: tuple[int, ...] = (128,)
    pair: tuple[float, float] = (0.9, 0.98)
    words: tuple[str, ...] = ()
    sources: tuple[str, ...] = field(default=("builtin",), metadata={"commas": False})
    folder: Path | None = None
    text: str | None = "some"
    seed: int = 0


def given(*pairs: str) -> Changes:
    changes = Changes(find_settings(Config))
    for pair in pairs:
        path, _, value = pair.partition("=")
        changes.add(path, [value], f"--set {path}")
    return changes


CONFIG = Config(part=Part(steps=3))


def test_paths_types_defaults_and_descriptions_come_from_the_dataclass():
    found = find_settings(Config)
    assert found["part.steps"].default is MISSING and found["part.steps"].metavar == "<int>"
    assert found["part.steps"].help == "How many there are. More of it, on a second line."
    assert found["part.rate"].help == found["part.clip"].help == "Numbers of the optimizer."
    assert found["part.clip"].default == 1.0 and found["part.clip"].optional and found["part.clip"].metavar == "<float>"
    assert found["base.rate"].help == ""
    assert found["lengths"].metavar == "<int>,..." and found["sources"].metavar == "<str>"
    assert found["name"].default == Name("none")
    assert "part" not in found and "name.text" not in found


@pytest.mark.parametrize(
    ("pair", "value"),
    [
        ("part.steps=12", 12),
        ("part.rate=1e-3", 1e-3),
        ("part.clip=", None),
        ("part.packed=true", True),
        ("part.packed=False", False),
        ("part.changes.dropout=0.5", 0.5),
        ("part.changes.norm=post", "post"),
        ("part.changes.tied=false", False),
        ("name=diet-abs:rank=64,sharing=layer", Name("diet-abs", ("rank=64", "sharing=layer"))),
        (
            "names=none,shaw:clip=8,values=false,tisa",
            (Name("none"), Name("shaw", ("clip=8", "values=false")), Name("tisa")),
        ),
        ("lengths=128, 512", (128, 512)),
        ("pair=0.8,0.9", (0.8, 0.9)),
        ("words=a,b", ("a", "b")),
        ("words=", ()),
        ("sources=xquad@test:de,zh=here", ("xquad@test:de,zh=here",)),
        ("folder=some/where", Path("some/where")),
        ("text=none", "none"),
        ("text=", None),
        ("seed=4294967295", 4294967295),
    ],
)
def test_a_value_is_read_by_the_type_of_its_field(pair, value):
    changes = given(pair)
    [read] = changes.values.values()
    assert read == value and type(read) is type(value)


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("part.steps=many", r"--set part\.steps: expected a whole number, got 'many'"),
        ("part.clip=none", "expected a number, or nothing for none, got 'none'"),
        ("part.packed=perhaps", "expected true or false"),
        ("lengths=128,x", "--set lengths: expected a whole number, got 'x'"),
        ("pair=0.8", "expected 2 values, got 1"),
        (
            "part.setps=3",
            r"--set part\.setps: no such setting\. Did you mean part\.steps\? Expected one of part\.steps, ",
        ),
        ("clip=3", r"Did you mean part\.clip\?"),
        ("steps=3", r"Did you mean part\.steps or base\.steps\?"),
        ("part=3", "no such setting"),
        ("part.changes=3", r"as in part\.changes\.NAME=VALUE"),
        ("name=wrong", "name: expected another one"),
        ("seed=-1", "expected 0 to 4294967295, got -1"),
        ("seed=4294967296", "expected 0 to 4294967295"),
    ],
)
def test_what_cannot_be_read_is_refused_by_the_name_of_its_option(pair, message):
    with pytest.raises(ValueError, match=message):
        given(pair)


def test_values_replace_those_of_a_configuration_all_at_once():
    changes = given("part.steps=5", "part.changes.cross=same", "base.rate=2", "lengths=1,2", "seed=3")
    changed = changes.apply(CONFIG)
    assert changed == Config(
        part=Part(steps=5, changes={"norm": "pre", "cross": "same"}),
        base=Steps(steps=7, rate=2.0),
        lengths=(1, 2),
        seed=3,
    )
    assert given().apply(CONFIG) is CONFIG


def test_a_part_alone_can_be_changed_and_built():
    changes = given("part.steps=5", "part.rate=2", "part.changes.norm=post", "seed=3")
    assert changes.apply(CONFIG.part, "part") == Part(steps=5, rate=2.0, changes={"norm": "post"})
    assert changes.build(Part, "part", clip=None) == Part(steps=5, rate=2.0, clip=None, changes={"norm": "post"})


def test_a_configuration_checks_its_values_itself():
    with pytest.raises(ValueError, match="steps: expected at least 1"):
        given("part.steps=0").apply(CONFIG)


def test_a_setting_given_twice_is_refused_and_one_that_is_not_used_too():
    changes = given("part.steps=5")
    assert "part.steps" in changes and changes.get("part.steps") == 5 and changes.get("seed") is None
    with pytest.raises(ValueError, match=r"--steps: --set part\.steps gives the same setting"):
        changes.add("part.steps", ["6"], "--steps")
    with pytest.raises(ValueError, match=r"--set part\.steps: not used beside --data"):
        changes.refuse(["seed", "part.steps"], "beside --data")
    changes.refuse(["seed"], "beside --data")


def test_repeated_options_add_up_to_a_tuple():
    changes = Changes(find_settings(Config))
    changes.add("sources", ["a", "b,c"], "--sources")
    changes.add("lengths", ["1", "2,3"], "--lengths")
    changes.add("seed", ["1", "2"], "--seed")
    assert changes.values == {"sources": ("a", "b,c"), "lengths": (1, 2, 3), "seed": 2}
