"""Which encoding a result is of, read from the configuration that its run wrote, never from a folder's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headway.encodings.choice import EncodingChoice, with_one_encoding

# What a configuration leaves open. Reading results needs no torch, so the defaults stand here once more;
# tests/unit/bench/claims/test_settings.py compares them with the library.
SHARING = {
    "shaw": "none", "transformer-xl": "none", "t5": "layer", "tupe-abs": "layer", "tupe-rel": "layer",
    "abs-scalar": "none", "rel-scalar": "none", "diet-abs": "none", "diet-rel": "none", "tisa": "none",
}  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "shaw": {"clip": 16, "keys": True, "values": True},
    "tisa": {"kernels": 5},
    "diet-abs": {"rank": None},
    "abs-scalar": {"rank": None},
}
HEAD_WIDTH = {
    "bert-base": 64, "bert-small": 64, "shaw-base": 64, "diet-base": 64, "big": 64, "small": 64, "tiny": 32,
}  # fmt: skip
WITHOUT_PARAMETERS = ("none", "sinusoidal", "rope", "alibi")


@dataclass(frozen=True, slots=True)
class Setting:
    """A position encoding with all its choices filled in.

    Args:
        sharing: of the first part that has anything to share; None where none has.
        options: those of `OPTIONS` that its parts have, and all others that were given, sorted.
    """

    encoding: str
    sharing: str | None = None
    options: tuple[tuple[str, Any], ...] = ()
    attention: str = "full"

    @classmethod
    def of(cls, model: Mapping[str, Any]) -> Setting:
        """Of the part "model" of a run's configuration."""
        choice = EncodingChoice.parse(with_one_encoding(model)["encoding"])
        name, given = choice.name, choice.options
        changes = dict(model.get("changes") or {})
        parts = name.split("+")
        default = next((SHARING[part] for part in parts if part in SHARING), None)
        known = {option: value for part in parts for option, value in OPTIONS.get(part, {}).items()}
        filled = {**known, **given}
        if "rank" in filled and filled["rank"] is None:
            filled["rank"] = HEAD_WIDTH.get(model.get("preset", ""))
        return cls(
            encoding=name,
            sharing=None if default is None else choice.sharing or default,
            options=tuple(sorted(filled.items())),
            attention=changes.get("attention", "full"),
        )

    @property
    def has_parameters(self) -> bool:
        return any(part not in WITHOUT_PARAMETERS for part in self.encoding.split("+"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What a claim asks for: an encoding, of which the options that are not named have their defaults.

    Args:
        sharing: None takes any, the encoding's own default before others.
        segments: of fine-tuned pairs; None takes any, per-head before others.
    """

    encoding: str
    sharing: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    attention: str = "full"
    segments: str | None = None

    def fits(self, setting: Setting) -> bool:
        known = {name for part in self.encoding.split("+") for name in OPTIONS.get(part, {})}
        unknown = [name for name in self.options if name not in known]
        if unknown:
            raise ValueError(
                f"options: expected of {self.encoding} any of {sorted(known)} (OPTIONS), got {', '.join(unknown)}."
            )
        wanted = Setting.of({"encoding": self.encoding, "sharing": self.sharing, "options": self.options})
        if (setting.encoding, setting.attention) != (self.encoding, self.attention):
            return False
        if self.sharing is not None and setting.sharing != wanted.sharing:
            return False
        mine, theirs = dict(wanted.options), dict(setting.options)
        return mine.keys() == theirs.keys() and all(mine[name] in (None, theirs[name]) for name in mine)

    def preference(self, setting: Setting) -> tuple[bool, str]:
        """Least first: the default sharing before others."""
        first = next((SHARING[part] for part in self.encoding.split("+") if part in SHARING), None)
        return setting.sharing != first, repr(setting)

    @property
    def words(self) -> str:
        parts = [self.encoding]
        parts += [f"{name} {value}" for name, value in self.options.items()]
        parts += [f"sharing {self.sharing}"] if self.sharing not in (None, SHARING.get(self.encoding)) else []
        parts += ["linformer"] if self.attention == "linformer" else []
        parts += [f"segments {self.segments}"] if self.segments is not None else []
        return ", ".join(parts)

    def arguments(self, option: str = "--option") -> str:
        """As the commands take it."""
        parts = [f"--encoding {self.encoding}"]
        parts += [f"{option} {name}={_typed(value)}" for name, value in self.options.items()]
        parts += [f"--sharing {self.sharing}"] if self.sharing is not None else []
        parts += ["--set attention=linformer --set projected_length=32"] if self.attention == "linformer" else []
        return " ".join(parts)

    @property
    def folder(self) -> str:
        """A name for the run's folder."""
        named = [
            self.encoding.replace("+", "-and-"),
            *(f"{name}{_typed(value)}" for name, value in self.options.items()),
        ]
        named += [self.sharing] if self.sharing is not None else []
        named += ["linformer"] if self.attention == "linformer" else []
        return "-".join(named)


def _typed(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
