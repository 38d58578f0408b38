"""Encoder-decoders with any encoding; importing this registers them with transformers' Auto classes."""

from transformers import AutoConfig, AutoModelForSeq2SeqLM

from headway.models.translation.config import TranslationConfig
from headway.models.translation.decoding import Decoding, Hypothesis
from headway.models.translation.model import TranslationModel
from headway.models.translation.presets import TRANSLATION_PRESETS, translation_preset

AutoConfig.register(TranslationConfig.model_type, TranslationConfig, exist_ok=True)
AutoModelForSeq2SeqLM.register(TranslationConfig, TranslationModel, exist_ok=True)

__all__ = [
    "TRANSLATION_PRESETS",
    "Decoding",
    "Hypothesis",
    "TranslationConfig",
    "TranslationModel",
    "translation_preset",
]
