"""`read`: a model's positions, embeddings and projections, whatever family it is of."""

from __future__ import annotations

from typing import Any

from headway.pretrained.analysis.anatomy import Reading
from headway.pretrained.analysis.families import CONVERTED, FAMILIES
from headway.pretrained.analysis.huggingface import read_huggingface
from headway.pretrained.analysis.own_models import OWN, read_own

STACKS = ("encoder", "decoder")


def read(model: Any, *, stack: str = "encoder") -> Reading:
    """The parts of a transformers or headway model that decide how positions act on its scores.

    Args:
        model: any head or none; its `config.model_type` says the family.
        stack: of an encoder-decoder (T5's family), which side.
    """
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if kind is None:
        raise TypeError(f"model: expected a transformers model, with a config, got {type(model).__name__}.")
    if stack not in STACKS:
        raise ValueError(f"stack: expected one of {', '.join(STACKS)}, got {stack!r}.")
    check_supported(kind)
    return read_own(model) if kind == OWN else read_huggingface(model, stack=stack)


def check_supported(model_type: str) -> None:
    """Raise for a model type of no known family."""
    if model_type.removeprefix(CONVERTED) not in FAMILIES and model_type != OWN:
        raise NotImplementedError(
            f"model: expected one of the types {', '.join([*FAMILIES, OWN])}, got {model_type!r}. "
            f"A family is one row of headway/pretrained/analysis/families.py; converted models are read too."
        )
