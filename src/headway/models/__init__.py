"""Encoders with any encoding, as transformers models. Importing this registers them with the Auto classes."""

try:
    from transformers import (
        AutoConfig,
        AutoModel,
        AutoModelForMaskedLM,
        AutoModelForQuestionAnswering,
        AutoModelForSequenceClassification,
    )
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("headway.models needs transformers: pip install 'headway[models]'") from error

from headway.models.config import EncoderConfig
from headway.models.encoder import EncoderModel, EncoderPreTrainedModel
from headway.models.heads import EncoderForMaskedLM, EncoderForQuestionAnswering, EncoderForSequenceClassification
from headway.models.parameters import (
    ParameterCount,
    PositionCount,
    parameter_table,
    position_parameter_table,
    pretraining_parameters,
)
from headway.models.presets import PRESETS, preset
from headway.models.translation import (
    TRANSLATION_PRESETS,
    Decoding,
    Hypothesis,
    TranslationConfig,
    TranslationModel,
    translation_preset,
)

AutoConfig.register(EncoderConfig.model_type, EncoderConfig, exist_ok=True)
AutoModel.register(EncoderConfig, EncoderModel, exist_ok=True)
AutoModelForMaskedLM.register(EncoderConfig, EncoderForMaskedLM, exist_ok=True)
AutoModelForSequenceClassification.register(EncoderConfig, EncoderForSequenceClassification, exist_ok=True)
AutoModelForQuestionAnswering.register(EncoderConfig, EncoderForQuestionAnswering, exist_ok=True)

__all__ = [
    "PRESETS",
    "TRANSLATION_PRESETS",
    "Decoding",
    "EncoderConfig",
    "EncoderForMaskedLM",
    "EncoderForQuestionAnswering",
    "EncoderForSequenceClassification",
    "EncoderModel",
    "EncoderPreTrainedModel",
    "Hypothesis",
    "ParameterCount",
    "PositionCount",
    "TranslationConfig",
    "TranslationModel",
    "parameter_table",
    "position_parameter_table",
    "preset",
    "pretraining_parameters",
    "translation_preset",
]
