"""Encodings of position and of segments: modules that act on the input, on q and k, on the scores or on the values."""

from headway.encodings.absolute import Learned, NoPosition, Sinusoidal
from headway.encodings.alibi import Alibi
from headway.encodings.base import PLACES, SHARINGS, Dimensions, Encoding, PositionEncoding, positions
from headway.encodings.choice import EncodingChoice, encoding
from headway.encodings.registry import ENCODINGS, SEGMENTS, option_names
from headway.encodings.rotary import Rope
from headway.encodings.scalar_and_diet import AbsScalar, DietAbs, DietRel, RelScalar
from headway.encodings.segments import SegmentInput, SegmentPerHead
from headway.encodings.shaw import MusicTransformer, Shaw
from headway.encodings.synthesizer import Synthesizer
from headway.encodings.t5 import T5, t5_buckets
from headway.encodings.tisa import Tisa
from headway.encodings.together import Together, parts_of
from headway.encodings.transformer_xl import TransformerXL
from headway.encodings.tupe import TupeAbs, TupeRel

__all__ = [
    "ENCODINGS",
    "PLACES",
    "SEGMENTS",
    "SHARINGS",
    "T5",
    "AbsScalar",
    "Alibi",
    "DietAbs",
    "DietRel",
    "Dimensions",
    "Encoding",
    "EncodingChoice",
    "Learned",
    "MusicTransformer",
    "NoPosition",
    "PositionEncoding",
    "RelScalar",
    "Rope",
    "SegmentInput",
    "SegmentPerHead",
    "Shaw",
    "Sinusoidal",
    "Synthesizer",
    "Tisa",
    "Together",
    "TransformerXL",
    "TupeAbs",
    "TupeRel",
    "encoding",
    "option_names",
    "parts_of",
    "positions",
    "t5_buckets",
]
