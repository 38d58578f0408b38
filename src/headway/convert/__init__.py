"""Surgery on pretrained Hugging Face encoders: their positions supplemented, or replaced, by a bias on the scores.

Importing this registers converted models with transformers' Auto classes.
"""

try:
    import transformers  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("headway.convert needs transformers: pip install 'headway[models]'") from error

from typing import TYPE_CHECKING, Any

from headway.convert.conversion import BIASES, MODES, Conversion
from headway.convert.converted import Converted
from headway.convert.families import FAMILIES
from headway.convert.registry import CONFIGS, MODELS
from headway.convert.surgery import convert

if TYPE_CHECKING:
    from headway.convert.closeness import Closeness, compare
    from headway.convert.lengths import length_figure, loss_by_length, save_figure
    from headway.convert.relative import load_relative

_LATER = {  # what needs headway.analysis, and with it scikit-learn: loading a converted model does not
    "Closeness": "headway.convert.closeness",
    "compare": "headway.convert.closeness",
    "length_figure": "headway.convert.lengths",
    "load_relative": "headway.convert.relative",
    "loss_by_length": "headway.convert.lengths",
    "save_figure": "headway.convert.lengths",
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
        raise AttributeError(f"module 'headway.convert' has no attribute {name!r}; it has {', '.join(__all__)}")
    from importlib import import_module

    return getattr(import_module(_LATER[name]), name)
