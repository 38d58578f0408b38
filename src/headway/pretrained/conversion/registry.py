"""A converted class for every class of transformers that can be converted, known to transformers' Auto classes."""

from __future__ import annotations

from typing import Any

import transformers
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING

from headway.pretrained.conversion import interface
from headway.pretrained.conversion.converted import Converted
from headway.pretrained.conversion.families import CONVERTED, FAMILIES, check_family

AUTO_CLASSES = (
    "AutoModel",
    "AutoModelForPreTraining",
    "AutoModelForMaskedLM",
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
    "AutoModelForQuestionAnswering",
    "AutoModelForMultipleChoice",
    "AutoModelForNextSentencePrediction",
    "AutoModelForTextEncoding",
)

CONFIGS: dict[str, type[PreTrainedConfig]] = {}  # by the family's model_type
MODELS: dict[type, type[Converted]] = {}  # by the class that was converted


def converted_class(model: Any) -> type[Converted]:
    """The class that a model becomes."""
    config = getattr(model, "config", None)
    if not isinstance(config, PreTrainedConfig):
        raise TypeError(
            f"model: expected a transformers model, got {type(model).__name__}. Of a wrapped one "
            f"(sentence-transformers, PEFT, DDP) convert the model inside."
        )
    check_family(config.model_type)
    if type(model) not in MODELS:
        known = ", ".join(
            source.__name__ for source in MODELS if MODELS[source].config_class is CONFIGS[config.model_type]
        )
        raise NotImplementedError(f"model: expected one of {known}, got {type(model).__name__}.")
    return MODELS[type(model)]


def register() -> None:
    """Make all classes, once, and tell transformers of them."""
    interface.register()
    for name, family in FAMILIES.items():
        source = getattr(transformers, family.config)
        config = CONFIGS[name] = _named(
            f"Converted{source.__name__}",
            (source,),
            model_type=f"{CONVERTED}{name}",
            source_type=name,
            position_bias=None,
            pooler=True,
            __annotations__={"position_bias": dict | None, "pooler": bool},
            __doc__=f"{source.__name__}, in `position_bias` what was done to the model, and whether it has a `pooler`.",
        )
        AutoConfig.register(config.model_type, config, exist_ok=True)
        AutoTokenizer.register(config, tokenizer_class=TOKENIZER_MAPPING[source], exist_ok=True)
        for auto in (getattr(transformers, auto_name) for auto_name in AUTO_CLASSES):
            if source in auto._model_mapping:
                auto.register(config, _model_class(auto._model_mapping[source], config), exist_ok=True)


def _model_class(source: type, config: type[PreTrainedConfig]) -> type[Converted]:
    if source not in MODELS:
        doc = f"{source.__name__} with a bias on its scores."
        MODELS[source] = _named(f"Converted{source.__name__}", (Converted, source), config_class=config, __doc__=doc)
    return MODELS[source]


def _named(name: str, bases: tuple[type, ...], **attributes: Any) -> Any:
    """A class that can be found by its name in this module, as pickling needs."""
    made = type(name, bases, {"__module__": __name__, **attributes})
    globals()[name] = made
    return made


register()
