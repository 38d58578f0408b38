"""Encoder-decoders with any encoding, and their decoding; importing this registers them with the Auto classes."""

from transformers import AutoConfig, AutoModelForSeq2SeqLM

from headway.models.translation.config import TranslationConfig
from headway.models.translation.decoding import Decoding
from headway.models.translation.hypothesis import Hypothesis
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
