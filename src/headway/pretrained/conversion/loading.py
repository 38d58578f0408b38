"""A model to convert, from a folder or the Hub, with the head it was saved with."""

from __future__ import annotations

from typing import Any

from transformers import AutoModel

from headway.pretrained.analysis.loading import load_checked, named_class, quiet
from headway.pretrained.conversion.families import OWN, check_family
from headway.pretrained.conversion.registry import MODELS

__all__ = ["load_original", "quiet"]


def load_original(source: str, *, revision: str | None = None) -> Any:
    """The model, in the class that its configuration names, else without a head."""
    return load_checked(source, check_family, _class, revision=revision)


def _class(config: Any) -> Any:
    def converts(kind: Any) -> bool:
        return kind in MODELS or (config.model_type == OWN and getattr(kind, "config_class", None) is type(config))

    named = [named_class(name) for name in config.architectures or []]
    return next((kind for kind in named if converts(kind)), AutoModel)
