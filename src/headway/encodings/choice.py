"""Which encoding, with which options: one value, written in one way and built in one place."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, get_args, get_type_hints

from headway.encodings.base import SHARINGS, Dimensions, Encoding, PositionEncoding
from headway.encodings.registry import ENCODINGS, SEGMENTS, option_names
from headway.encodings.together import Together, parts_of

SPELLING = "NAME[:OPTION=VALUE,...], such as diet-abs:rank=64,sharing=layer,segments=per-head"


@dataclass(frozen=True, slots=True)
class EncodingChoice:
    """An encoding with its options, written NAME[:OPTION=VALUE,...], such as "diet-abs:rank=64,sharing=layer".

    Args:
        name: one of `ENCODINGS`, or several joined by "+", whose effects add up ("learned+tisa").
        options: options of these encodings; each goes to every encoding that has it.
        sharing: none, head or layer, for everything that has parameters per head, segments included; None leaves each
            encoding its own default.
        segments: none, input (added to the embeddings) or per-head (added to the scores); None leaves it to whoever
            builds: `encoding` builds none, an `EncoderConfig` those of BERT, at the input.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    sharing: str | None = None
    segments: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ValueError(f"encoding: expected {SPELLING}, got {self.name!r}. Without position it is 'none'.")
        object.__setattr__(self, "options", dict(self.options))
        _check_options(self.name, self.kinds, self.options)
        if self.segments is not None and self.segments not in SEGMENTS:
            raise ValueError(f"segments: expected one of {', '.join(SEGMENTS)}, got {self.segments!r}.")
        if self.sharing is not None and self.sharing not in SHARINGS:
            raise ValueError(f"sharing: expected one of {', '.join(SHARINGS)}, got {self.sharing!r}.")

    @classmethod
    def parse(cls, text: str) -> EncodingChoice:
        """Read a choice from its text, as `str` writes it."""
        if not isinstance(text, str):
            raise ValueError(f"encoding: expected {SPELLING}, got {text!r}. Without position it is 'none'.")
        name, said = split_choice(text)
        sharing, segments = said.pop("sharing", None), said.pop("segments", None)  # here "none" is a word, not a value
        return cls(name, {key: read_value(value) for key, value in said.items()}, sharing, segments)

    def __str__(self) -> str:
        """Write the choice so that `parse` reads it: options by name, then sharing and segments."""
        said = [*sorted(self.options.items()), ("sharing", self.sharing), ("segments", self.segments)]
        pairs = [f"{key}={_write(value)}" for key, value in said if value is not None or key in self.options]
        return self.name + (":" + ",".join(pairs) if pairs else "")

    def __hash__(self) -> int:
        return hash((self.name, frozenset(self.options.items()), self.sharing, self.segments))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the encodings that are added up."""
        return tuple(self.name.split("+"))

    @property
    def kinds(self) -> tuple[type[PositionEncoding], ...]:
        """Classes of the encodings that are added up."""
        return tuple(_kind(name) for name in self.names)

    def build(self, dims: Dimensions, *, num_segments: int = 2) -> Encoding:
        """Build the encoding of positions and segments as one module."""
        position, segment = self.build_apart(dims, num_segments=num_segments)
        return position if segment is None else Together([*parts_of(position), segment])

    def build_apart(self, dims: Dimensions, *, num_segments: int = 2) -> tuple[Encoding, Encoding | None]:
        """Build the encoding of positions and, where there is one, that of segments.

        A model keeps them apart, so that a checkpoint without segments can go on with them (Chen et al. 2021b, App. A):
        the tensors of positions have the same names in both.
        """
        segment_kind = SEGMENTS[self.segments or "none"]
        kinds: list[type[Encoding]] = [*self.kinds, *([] if segment_kind is None else [segment_kind])]
        shares = any(kind.default_sharing is not None for kind in kinds)

        def sharing(kind: type[Encoding]) -> str | None:
            # Where no part has anything to share, all are told, and the first one says so.
            return self.sharing if kind.default_sharing is not None or not shares else None

        parts = [
            kind(
                dims,
                sharing=sharing(kind),
                **{key: self.options[key] for key in option_names(kind) if key in self.options},
            )
            for kind in self.kinds
        ]
        position: Encoding = parts[0] if len(parts) == 1 else Together(parts)
        if segment_kind is None:
            return position, None
        return position, segment_kind(dims, sharing=sharing(segment_kind), num_segments=num_segments)


def encoding(
    choice: str | EncodingChoice,
    *,
    num_layers: int,
    num_heads: int,
    head_dim: int,
    max_length: int = 512,
    embed_dim: int | None = None,
    num_segments: int = 2,
    sharing: str | None = None,
    segments: str | None = None,
    **options: Any,
) -> Encoding:
    """Build an encoding from its name and options: `encoding("diet-abs:rank=64,sharing=layer", num_layers=12, ...)`.

    Args:
        choice: a name of `ENCODINGS`, or several joined by "+", with or without options; see `EncodingChoice`.
        max_length: longest sequence of training; the limit of encodings that do not extend.
        embed_dim: model width E; num_heads * head_dim unless given.
        sharing, segments, options: what the text does not say, as keywords: `encoding("diet-abs", rank=64, ...)`.
    """
    dims = Dimensions(
        num_layers=num_layers, num_heads=num_heads, head_dim=head_dim, max_length=max_length, embed_dim=embed_dim
    )
    chosen = choice if isinstance(choice, EncodingChoice) else EncodingChoice.parse(choice)
    keywords = {key: value for key, value in (("sharing", sharing), ("segments", segments)) if value is not None}
    said = {*chosen.options, *(key for key in keywords if getattr(chosen, key) is not None)}
    if twice := [key for key in (*options, *keywords) if key in said]:
        raise ValueError(f"{twice[0]}: expected it in the text {str(chosen)!r} or as a keyword, got both.")
    return replace(chosen, options={**chosen.options, **options}, **keywords).build(dims, num_segments=num_segments)


OLD_FIELDS = ("sharing", "segments", "options", "encoding_options")


def with_one_encoding(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fold the fields that once stood beside `encoding` in a configuration into its text.

    Checkpoints, converted models and results from before the encoding was one text say "encoding": "diet-abs",
    "sharing": "layer", "segments": "input" and "options" or "encoding_options": {"rank": 64}. This is the one place
    that reads them; a configuration without such fields stays as it is.
    """
    old = {name: config[name] for name in OLD_FIELDS if name in config}
    rest = {name: value for name, value in config.items() if name not in old}
    if not old:
        return rest
    options = old.get("options") or old.get("encoding_options") or {}
    choice = EncodingChoice(config["encoding"], options, sharing=old.get("sharing"), segments=old.get("segments"))
    return {**rest, "encoding": str(choice)}


def split_choice(text: str) -> tuple[str, dict[str, str]]:
    """Split NAME[:OPTION=VALUE,...] into the name and the text of each option; neither needs to exist."""
    name, colon, rest = (each.strip() for each in text.partition(":"))
    options: dict[str, str] = {}
    for pair in rest.split(",") if colon else ():
        key, _, value = (each.strip() for each in pair.partition("="))
        if not key or not value or key in options:
            raise ValueError(f"encoding: expected {SPELLING}, with each option once, got {text!r}.")
        options[key] = value
    return name, options


def read_value(text: str) -> bool | int | float | str | None:
    """Read the value of an option: a number, true, false or none, or else the text itself."""
    if text == "none":
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) else text


def _write(value: Any) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _kind(name: str) -> type[PositionEncoding]:
    if name in ENCODINGS:
        return ENCODINGS[name]
    near = difflib.get_close_matches(name, ENCODINGS, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"encoding: expected one of {', '.join(ENCODINGS)}, or several joined by '+', got {name!r}.{hint}")


def _check_options(name: str, kinds: tuple[type[PositionEncoding], ...], options: Mapping[str, Any]) -> None:
    known = list(dict.fromkeys(option for kind in kinds for option in option_names(kind)))
    unknown = [option for option in options if option not in known]
    if unknown:
        raise ValueError(
            f"options: expected of {name} any of {', '.join(known) or '(it has none)'}, beside sharing and segments, "
            f"got {', '.join(unknown)}."
        )
    for kind in kinds:
        types = get_type_hints(kind.__init__)
        for option in option_names(kind):
            if option in options and option in types:
                _check_type(option, options[option], types[option])


def _check_type(option: str, value: Any, declared: Any) -> None:
    kinds = get_args(declared) or (declared,)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not (type(value) in kinds or (whole and (int in kinds or float in kinds))):
        words = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        raise ValueError(f"{option}: expected {words}, got {value!r}.")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{option}: expected a finite number, got {value!r}.")
