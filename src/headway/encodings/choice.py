"""The choice of an encoding with its options: how it is written, read, checked and built."""

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

NOT_OPTIONS = ("sharing", "segments", "segment_sharing")  # what a choice has beside the options of its encodings
SPELLING = "NAME[:OPTION=VALUE,...], such as diet-abs:rank=64,sharing=layer,segments=per-head"


@dataclass(frozen=True, slots=True)
class EncodingChoice:
    """An encoding with its options, written NAME[:OPTION=VALUE,...], such as "diet-abs:rank=64,sharing=layer".

    Args:
        name: one of `ENCODINGS`, or several joined by "+", which are added ("learned+tisa").
        options: options of these encodings; each goes to every encoding that has it.
        sharing: none, head or layer: whether heads or layers share the parameters of positions (Chen et al. 2021b,
            Sec. 4.4). None leaves each encoding its own default.
        segments: none, input (added to the embeddings) or per-head (added to the scores). None leaves it open:
            `encoding` then builds none, an `EncoderConfig` those of BERT, at the input.
        segment_sharing: the same as `sharing`, for the tables of segments=per-head. None is none, a table for each head
            and layer (Chen et al. 2021a, Sec. 3), however positions share theirs.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    sharing: str | None = None
    segments: str | None = None
    segment_sharing: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ValueError(f"encoding: expected {SPELLING}, got {self.name!r}. Without position it is 'none'.")
        object.__setattr__(self, "options", dict(self.options))
        _check_options(self.name, self.kinds, self.options)
        if self.segments is not None and self.segments not in SEGMENTS:
            raise ValueError(f"segments: expected one of {', '.join(SEGMENTS)}, got {self.segments!r}.")
        for key in ("sharing", "segment_sharing"):
            value = getattr(self, key)
            if value is not None and value not in SHARINGS:
                raise ValueError(f"{key}: expected one of {', '.join(SHARINGS)}, got {value!r}.")
        if self.segment_sharing is not None and self.segments != "per-head":
            raise ValueError(
                f"segment_sharing: only segments=per-head have tables that heads or layers could share, got "
                f"{self.segment_sharing!r} with segments={self.segments or 'none'}. Leave it out."
            )

    @classmethod
    def parse(cls, text: str) -> EncodingChoice:
        """Read a choice from its text, as `str` writes it."""
        if not isinstance(text, str):
            raise ValueError(f"encoding: expected {SPELLING}, got {text!r}. Without position it is 'none'.")
        name, said = split_choice(text)
        named = {key: said.pop(key, None) for key in NOT_OPTIONS}  # in these "none" is a word, not None
        return cls(name, {key: read_value(value) for key, value in said.items()}, **named)

    def __str__(self) -> str:
        """Write the choice as `parse` reads it: options by name, then sharing and segments."""
        said = [*sorted(self.options.items()), *((key, getattr(self, key)) for key in NOT_OPTIONS)]
        pairs = [f"{key}={_write(value)}" for key, value in said if value is not None or key in self.options]
        return self.name + (":" + ",".join(pairs) if pairs else "")

    def __hash__(self) -> int:
        return hash((self.name, frozenset(self.options.items()), *(getattr(self, key) for key in NOT_OPTIONS)))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the encodings that are added up."""
        return tuple(self.name.split("+"))

    @property
    def kinds(self) -> tuple[type[PositionEncoding], ...]:
        """Classes of the encodings that are added up."""
        return tuple(_kind(name) for name in self.names)

    @property
    def can_share(self) -> bool:
        """Whether any of the encodings of positions has parameters per head."""
        return any(kind.default_sharing is not None for kind in self.kinds)

    def with_segments(self, segments: str | None, sharing: str | None = None) -> EncodingChoice:
        """Return the choice with other segments, and the sharing of their tables."""
        return replace(self, segments=segments, segment_sharing=sharing)

    def build(self, dims: Dimensions, *, num_segments: int = 2) -> Encoding:
        """Build the encoding of positions and that of segments as one module."""
        position, segment = self.build_apart(dims, num_segments=num_segments)
        return position if segment is None else Together([*parts_of(position), segment])

    def build_apart(self, dims: Dimensions, *, num_segments: int = 2) -> tuple[Encoding, Encoding | None]:
        """Build the encoding of positions and, if there are segments, that of segments.

        A model keeps them apart, so that a checkpoint without segments can be fine-tuned with them (Chen et al. 2021b,
        App. A): the tensors of positions then have the same names.
        """
        segment_kind = SEGMENTS[self.segments or "none"]
        parts = [
            kind(
                dims,
                # Where no encoding has anything to share, each is given `sharing`, so that the first one raises.
                sharing=self.sharing if kind.default_sharing is not None or not self.can_share else None,
                **{key: self.options[key] for key in option_names(kind) if key in self.options},
            )
            for kind in self.kinds
        ]
        position: Encoding = parts[0] if len(parts) == 1 else Together(parts)
        if segment_kind is None:
            return position, None
        return position, segment_kind(dims, sharing=self.segment_sharing, num_segments=num_segments)


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
    segment_sharing: str | None = None,
    **options: Any,
) -> Encoding:
    """Build an encoding from its name and options: `encoding("diet-abs:rank=64,sharing=layer", num_layers=12, ...)`.

    Args:
        choice: a name of `ENCODINGS`, or several joined by "+", with or without options; see `EncodingChoice`.
        max_length: longest sequence of training; the limit of encodings that do not extend.
        embed_dim: model width E; num_heads * head_dim unless given.
        sharing, segments, segment_sharing, options: what the text may say too, as keywords.
    """
    dims = Dimensions(
        num_layers=num_layers, num_heads=num_heads, head_dim=head_dim, max_length=max_length, embed_dim=embed_dim
    )
    chosen = choice if isinstance(choice, EncodingChoice) else EncodingChoice.parse(choice)
    given = zip(NOT_OPTIONS, (sharing, segments, segment_sharing), strict=True)
    keywords = {key: value for key, value in given if value is not None}
    said = {*chosen.options, *(key for key in keywords if getattr(chosen, key) is not None)}
    if twice := [key for key in (*options, *keywords) if key in said]:
        raise ValueError(f"{twice[0]}: expected it in the text {str(chosen)!r} or as a keyword, got both.")
    return replace(chosen, options={**chosen.options, **options}, **keywords).build(dims, num_segments=num_segments)


OLD_FIELDS = ("sharing", "segments", "options", "encoding_options")


def with_one_encoding(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fold the fields that once stood beside `encoding` in a configuration into its text.

    Checkpoints, converted models and results from before the encoding was one text say "encoding": "diet-abs",
    "sharing": "layer", "segments": "per-head" and "options" or "encoding_options": {"rank": 64}. Their sharing was that
    of segments too. Only this function reads such fields; a configuration without them is returned as it is.
    """
    old = {name: config[name] for name in OLD_FIELDS if name in config}
    rest = {name: value for name, value in config.items() if name not in old}
    if not old:
        return rest
    options = old.get("options") or old.get("encoding_options") or {}
    choice = EncodingChoice(config["encoding"], options, segments=old.get("segments"))
    sharing = old.get("sharing")
    if choice.can_share or choice.segments != "per-head":
        choice = replace(choice, sharing=sharing)
    if choice.segments == "per-head" and sharing != "none":
        choice = choice.with_segments("per-head", sharing)
    return {**rest, "encoding": str(choice)}


def split_choice(text: str) -> tuple[str, dict[str, str]]:
    """Split NAME[:OPTION=VALUE,...] into the name and the text of each option, without checking them."""
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
            f"options: {name} has {', '.join(known) or 'none'}, beside sharing, segments and segment_sharing; "
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
