"""headway: position encodings for transformers, in one attention function at the speed of flash attention.

Everything public is an attribute of this module and is imported when it is first used, so that `import headway` and
`headway --help` cost next to nothing.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from headway.attention.call import Explanation, attention, explain, self_attention
    from headway.bias import (
        Bias,
        Dense,
        EdgeKeys,
        EdgeValues,
        LowRank,
        RelativeKeys,
        RelativeProducts,
        RelativeValues,
        SegmentTable,
        Toeplitz,
        ValueBias,
    )
    from headway.encodings import ENCODINGS, encoding
    from headway.models import (
        PRESETS,
        EncoderConfig,
        EncoderForMaskedLM,
        EncoderForQuestionAnswering,
        EncoderForSequenceClassification,
        EncoderModel,
        TranslationConfig,
        TranslationModel,
        preset,
        translation_preset,
    )
    from headway.pretrained.analysis import Measures, analyze
    from headway.pretrained.conversion.surgery import convert
    from headway.pretrained.fusing import Fusing, fuse, fused, unfuse

_HOMES = {
    "attention": "headway.attention.call",
    "self_attention": "headway.attention.call",
    "explain": "headway.attention.call",
    "Explanation": "headway.attention.call",
    "Bias": "headway.bias",
    "ValueBias": "headway.bias",
    "Dense": "headway.bias",
    "Toeplitz": "headway.bias",
    "LowRank": "headway.bias",
    "SegmentTable": "headway.bias",
    "RelativeKeys": "headway.bias",
    "RelativeProducts": "headway.bias",
    "EdgeKeys": "headway.bias",
    "RelativeValues": "headway.bias",
    "EdgeValues": "headway.bias",
    "encoding": "headway.encodings",
    "ENCODINGS": "headway.encodings",
    "EncoderConfig": "headway.models",
    "EncoderModel": "headway.models",
    "EncoderForMaskedLM": "headway.models",
    "EncoderForQuestionAnswering": "headway.models",
    "EncoderForSequenceClassification": "headway.models",
    "PRESETS": "headway.models",
    "preset": "headway.models",
    "TranslationConfig": "headway.models",
    "TranslationModel": "headway.models",
    "translation_preset": "headway.models",
    "analyze": "headway.pretrained.analysis",
    "Measures": "headway.pretrained.analysis",
    "convert": "headway.pretrained.conversion.surgery",
    "fuse": "headway.pretrained.fusing",
    "fused": "headway.pretrained.fusing",
    "unfuse": "headway.pretrained.fusing",
    "Fusing": "headway.pretrained.fusing",
}

__all__ = [
    "ENCODINGS",
    "PRESETS",
    "Bias",
    "Dense",
    "EdgeKeys",
    "EdgeValues",
    "EncoderConfig",
    "EncoderForMaskedLM",
    "EncoderForQuestionAnswering",
    "EncoderForSequenceClassification",
    "EncoderModel",
    "Explanation",
    "Fusing",
    "LowRank",
    "Measures",
    "RelativeKeys",
    "RelativeProducts",
    "RelativeValues",
    "SegmentTable",
    "Toeplitz",
    "TranslationConfig",
    "TranslationModel",
    "ValueBias",
    "__version__",
    "analyze",
    "attention",
    "convert",
    "encoding",
    "explain",
    "fuse",
    "fused",
    "preset",
    "self_attention",
    "translation_preset",
    "unfuse",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headway' has no attribute {name!r}; it has {', '.join(sorted(_HOMES))}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """`headway.attention` is the function, although the folder it lives in has the same name.

    Python binds a folder's module to its parent when it is imported; for these names that would hide the function.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _HOMES and isinstance(value, ModuleType):
            return
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
