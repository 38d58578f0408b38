"""Sizes with a name, and the papers' choices of dropout."""

from __future__ import annotations

from typing import Any

from headway.models.config import check_settings
from headway.models.translation.config import TranslationConfig

TRANSLATION_PRESETS: dict[str, dict[str, Any]] = {
    "shaw-base": {  # Shaw et al. (2018), Sec. 4.1: half the feed-forward width of Vaswani et al. (2017)
        "encoder_layers": 6,
        "decoder_layers": 6,
        "hidden_size": 512,
        "num_attention_heads": 8,
        "intermediate_size": 1024,
        "hidden_dropout_prob": 0.1,
    },
    "diet-base": {  # Chen et al. (2021b), Sec. 4.3, which follows Vaswani et al. (2017), Table 3, base
        "encoder_layers": 6,
        "decoder_layers": 6,
        "hidden_size": 512,
        "num_attention_heads": 8,
        "intermediate_size": 2048,
        "hidden_dropout_prob": 0.1,
    },
    "big": {  # Shaw et al. (2018), Sec. 4.1, and Vaswani et al. (2017), Table 3, big; dropout 0.1 for English-French
        "encoder_layers": 6,
        "decoder_layers": 6,
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "hidden_dropout_prob": 0.3,
    },
    "small": {  # for a few hundred thousand sentences
        "encoder_layers": 4,
        "decoder_layers": 4,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
        "max_position_embeddings": 256,
    },
    "tiny": {  # trains on a laptop in minutes
        "encoder_layers": 2,
        "decoder_layers": 2,
        "hidden_size": 128,
        "num_attention_heads": 4,
        "intermediate_size": 256,
        "max_position_embeddings": 128,
    },
}


def translation_preset(name: str, **overrides: Any) -> TranslationConfig:
    """Make the configuration of a preset, with what is given in place of its own.

    Example: translation_preset("shaw-base", encoding="shaw:clip=16", vocab_size=8000)
    """
    if name not in TRANSLATION_PRESETS:
        raise ValueError(f"preset: expected one of {', '.join(TRANSLATION_PRESETS)}, got {name!r}.")
    check_settings(TranslationConfig, overrides)
    return TranslationConfig(**{**TRANSLATION_PRESETS[name], **overrides})
