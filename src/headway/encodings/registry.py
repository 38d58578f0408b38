"""Encodings by name."""

from __future__ import annotations

import difflib
import inspect
from typing import Any, get_args, get_type_hints

from headway.encodings.absolute import Learned, NoPosition, Sinusoidal
from headway.encodings.alibi import Alibi
from headway.encodings.base import Dimensions, Encoding, PositionEncoding
from headway.encodings.rotary import Rope
from headway.encodings.scalar_and_diet import AbsScalar, DietAbs, DietRel, RelScalar
from headway.encodings.segments import SegmentInput, SegmentPerHead
from headway.encodings.shaw import Shaw
from headway.encodings.t5 import T5
from headway.encodings.tisa import Tisa
from headway.encodings.together import Together
from headway.encodings.transformer_xl import TransformerXL
from headway.encodings.tupe import TupeAbs, TupeRel

ENCODINGS: dict[str, type[PositionEncoding]] = {
    "none": NoPosition,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "shaw": Shaw,
    "transformer-xl": TransformerXL,
    "t5": T5,
    "tupe-abs": TupeAbs,
    "tupe-rel": TupeRel,
    "abs-scalar": AbsScalar,
    "rel-scalar": RelScalar,
    "diet-abs": DietAbs,
    "diet-rel": DietRel,
    "tisa": Tisa,
    "rope": Rope,
    "alibi": Alibi,
}

SEGMENTS: dict[str, type[SegmentInput] | type[SegmentPerHead] | None] = {
    "none": None,
    "input": SegmentInput,
    "per-head": SegmentPerHead,
}


def encoding(
    name: str,
    *,
    num_layers: int,
    num_heads: int,
    head_dim: int,
    max_length: int = 512,
    embed_dim: int | None = None,
    sharing: str | None = None,
    segments: str = "none",
    num_segments: int = 2,
    **options: Any,
) -> Encoding:
    """The encoding of a name, or of several: "learned+tisa" has both.

    Args:
        name: one of `ENCODINGS`, or several joined by "+".
        max_length: longest sequence of training; the limit of encodings that do not extend.
        embed_dim: model width E; num_heads * head_dim unless given.
        sharing: none, head or layer, for every part with parameters per head, segments included; unless given, each
            part's own default (segments: none).
        segments: none, input (added to the embeddings) or per-head (added to the scores).
        options: of the encodings named; with several, each goes to every part that has it.
    """
    dims = Dimensions(
        num_layers=num_layers, num_heads=num_heads, head_dim=head_dim, max_length=max_length, embed_dim=embed_dim
    )
    kinds = [_kind(part) for part in name.split("+")]
    _check_options(name, kinds, options)
    if segments not in SEGMENTS:
        raise ValueError(f"segments: expected one of {', '.join(SEGMENTS)}, got {segments!r}.")
    segment_kind = SEGMENTS[segments]
    shares = any(kind.default_sharing is not None for kind in (*kinds, segment_kind) if kind is not None)

    def shared(kind: type[Encoding]) -> str | None:
        # Where no part has anything to share, all are told, and the first one says so.
        return sharing if kind.default_sharing is not None or not shares else None

    parts: list[Encoding] = [
        kind(dims, sharing=shared(kind), **{key: options[key] for key in option_names(kind) if key in options})
        for kind in kinds
    ]
    if segment_kind is not None:
        parts.append(segment_kind(dims, sharing=shared(segment_kind), num_segments=num_segments))
    return parts[0] if len(parts) == 1 else Together(parts)


def option_names(kind: type[Encoding]) -> tuple[str, ...]:
    """The options an encoding takes beside its dimensions and `sharing`."""
    return tuple(
        parameter.name
        for parameter in inspect.signature(kind).parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.name != "sharing"
    )


def _kind(name: str) -> type[PositionEncoding]:
    if name in ENCODINGS:
        return ENCODINGS[name]
    near = difflib.get_close_matches(name, ENCODINGS, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"encoding: expected one of {', '.join(ENCODINGS)}, or several joined by '+', got {name!r}.{hint}")


def _check_options(name: str, kinds: list[type[PositionEncoding]], options: dict[str, Any]) -> None:
    known = list(dict.fromkeys(option for kind in kinds for option in option_names(kind)))
    unknown = [option for option in options if option not in known]
    if unknown:
        raise ValueError(
            f"options: expected of {name} any of {', '.join(known) or '(it has none)'}, got {', '.join(unknown)}."
        )
    for kind in kinds:
        types = get_type_hints(kind.__init__)
        for option in option_names(kind):
            if option in options and option in types:
                _check_type(option, options[option], types[option])


def _check_type(option: str, value: Any, declared: Any) -> None:
    """Options may come from a command line or a configuration file."""
    kinds = get_args(declared) or (declared,)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not (type(value) in kinds or (whole and (int in kinds or float in kinds))):
        words = " or ".join("None" if kind is type(None) else kind.__name__ for kind in kinds)
        raise ValueError(f"{option}: expected {words}, got {value!r}.")
