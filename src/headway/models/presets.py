"""Named sizes of encoders."""

from __future__ import annotations

from typing import Any

from headway.models.config import EncoderConfig, check_settings

PRESETS: dict[str, dict[str, Any]] = {
    "bert-base": {  # Devlin et al. (2019), Sec. 3
        "num_hidden_layers": 12,
        "hidden_size": 768,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "max_position_embeddings": 512,
    },
    "bert-small": {  # Chen et al. (2021b), Sec. 3.3
        "num_hidden_layers": 4,
        "hidden_size": 512,
        "num_attention_heads": 8,
        "intermediate_size": 2048,
        "max_position_embeddings": 512,
    },
    "tiny": {  # trains on a laptop in minutes
        "num_hidden_layers": 2,
        "hidden_size": 128,
        "num_attention_heads": 4,
        "intermediate_size": 512,
        "max_position_embeddings": 128,
    },
}


def preset(name: str, **overrides: Any) -> EncoderConfig:
    """Make the configuration of a preset, with some of its settings overridden.

    Example: preset("bert-base", encoding="diet-abs:rank=128,sharing=layer")
    """
    if name not in PRESETS:
        raise ValueError(f"preset: expected one of {', '.join(PRESETS)}, got {name!r}.")
    check_settings(EncoderConfig, overrides)
    return EncoderConfig(**{**PRESETS[name], **overrides})
