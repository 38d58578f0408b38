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

from headway.pretrained.conversion.conversion import BIASES, MODES, Conversion
from headway.pretrained.conversion.converted import Converted
from headway.pretrained.conversion.families import FAMILIES
from headway.pretrained.conversion.registry import CONFIGS, MODELS
from headway.pretrained.conversion.surgery import convert

if TYPE_CHECKING:
    from headway.pretrained.conversion.closeness import Closeness, compare
    from headway.pretrained.conversion.lengths import length_figure, loss_by_length, save_figure
    from headway.pretrained.conversion.relative import load_relative

_LATER = {  # what needs headway.pretrained.analysis, and with it scikit-learn: loading a converted model does not
    "Closeness": "headway.pretrained.conversion.closeness",
    "compare": "headway.pretrained.conversion.closeness",
    "length_figure": "headway.pretrained.conversion.lengths",
    "load_relative": "headway.pretrained.conversion.relative",
    "loss_by_length": "headway.pretrained.conversion.lengths",
    "save_figure": "headway.pretrained.conversion.lengths",
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
    if name not in _LATER:
        raise AttributeError(
            f"module 'headway.pretrained.conversion' has no attribute {name!r}; it has {', '.join(__all__)}"
        )
    from importlib import import_module

    return getattr(import_module(_LATER[name]), name)
