"""Surgery on pretrained Hugging Face encoders: their positions supplemented, or replaced, by a bias on the scores.

Importing this registers converted models with transformers' Auto classes.
"""

try:
    import transformers  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "headway.pretrained.conversion needs transformers: pip install 'headway[models]'"
    ) from error

from typing import TYPE_CHECKING, Any

from headway.pretrained.conversion.conversion import BIASES, FAMILIES, MODES, Conversion
from headway.pretrained.conversion.converted import CONFIGS, MODELS, Converted
from headway.pretrained.conversion.surgery import convert

if TYPE_CHECKING:
    from headway.pretrained.conversion.comparison import (
        Closeness,
        compare,
        length_figure,
        loss_by_length,
        save_figure,
    )
    from headway.pretrained.conversion.relative_checkpoints import load_relative

_NEEDING_ANALYSIS = {  # fetched when first used: loading a converted model needs no scikit-learn, analysis does
    "Closeness": "comparison",
    "compare": "comparison",
    "length_figure": "comparison",
    "load_relative": "relative_checkpoints",
    "loss_by_length": "comparison",
    "save_figure": "comparison",
}

__all__ = [
    "BIASES",
    "CONFIGS",
    "FAMILIES",
    "MODELS",
    "MODES",
    "Closeness",
    "Conversion",
    "Converted",
    "compare",
    "convert",
    "length_figure",
    "load_relative",
    "loss_by_length",
    "save_figure",
]


def __getattr__(name: str) -> Any:
    if name not in _NEEDING_ANALYSIS:
        raise AttributeError(
            f"module 'headway.pretrained.conversion' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_NEEDING_ANALYSIS[name]}"), name)
