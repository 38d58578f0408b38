"""All encodings by name. Add a line here for a new one."""

from __future__ import annotations

import inspect

from headway.encodings.absolute import Learned, NoPosition, Sinusoidal
from headway.encodings.alibi import Alibi
from headway.encodings.base import Encoding, PositionEncoding
from headway.encodings.rotary import Rope
from headway.encodings.scalar_and_diet import AbsScalar, DietAbs, DietRel, RelScalar
from headway.encodings.segments import SegmentInput, SegmentPerHead
from headway.encodings.shaw import MusicTransformer, Shaw
from headway.encodings.synthesizer import Synthesizer
from headway.encodings.t5 import T5
from headway.encodings.tisa import Tisa
from headway.encodings.transformer_xl import TransformerXL
from headway.encodings.tupe import TupeAbs, TupeRel

ENCODINGS: dict[str, type[PositionEncoding]] = {
    "none": NoPosition,
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "shaw": Shaw,
    "music-transformer": MusicTransformer,
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
    "synthesizer": Synthesizer,
}

SEGMENTS: dict[str, type[SegmentInput] | type[SegmentPerHead] | None] = {
    "none": None,
    "input": SegmentInput,
    "per-head": SegmentPerHead,
}


def option_names(kind: type[Encoding]) -> tuple[str, ...]:
    """List the options that an encoding takes beside its dimensions and `sharing`."""
    return tuple(
        parameter.name
        for parameter in inspect.signature(kind).parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.name != "sharing"
    )
