"""Surgery on transformers' own encoders; a `Surgeon`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from headway.encodings import ENCODINGS, EncodingChoice
from headway.pretrained.conversion.conversion import FAMILIES, Conversion
from headway.pretrained.conversion.converted import CONFIGS, Converted, converted_class, has_pooler


def plan(model: Any, to: EncodingChoice, mode: str, max_length: int | None) -> Conversion:
    """Check what is asked, and fill in what the model decides."""
    config = model.config
    if getattr(config, "is_decoder", False):
        raise NotImplementedError(
            "model: expected an encoder, got a decoder (config.is_decoder), which is not supported."
        )
    kind = getattr(config, "position_embedding_type", None) or "absolute"
    if kind != "absolute":
        raise NotImplementedError(
            f"model: expected absolute position embeddings, got a checkpoint of type {kind!r}. "
            f"Load it with headway.pretrained.conversion.load_relative; its positions are relative already."
        )
    own = count_positions(model)
    if max_length is not None and mode == "supplement" and max_length > own:
        raise ValueError(
            f"max_length: expected at most {own}, the model's positions, which stay in mode 'supplement', got "
            f"{max_length}. Use mode='replace' for longer texts."
        )
    if to.sharing is None and ENCODINGS[to.name].default_sharing is not None:
        to = replace(to, sharing="none")
    return Conversion(encoding=str(to), mode=mode, max_length=own if max_length is None else max_length)


def build(model: Any, conversion: Conversion) -> Converted:
    """Build the converted model, its bias as drawn."""
    kind = converted_class(model)
    settings = {name: value for name, value in model.config.to_dict().items() if name not in ("model_type", "dtype")}
    settings["position_bias"] = conversion.to_dict()
    settings["pooler"] = has_pooler(model)
    if conversion.replaces:
        settings["max_position_embeddings"] = conversion.max_length
        settings.pop("sinusoidal_pos_embds", None)  # DistilBERT would draw the table anew
    converted: Converted = kind(CONFIGS[model.config.model_type](**settings)).to(model.device, model.dtype)
    state = model.state_dict()
    if conversion.replaces:
        base = "" if model.base_model is model else f"{model.base_model_prefix}."
        name = f"{base}embeddings.position_embeddings.weight"
        reached = _position_table(model)[: conversion.max_length]
        state[name] = reached.mean(0, keepdim=True).to(state[name])
    lost, unknown = converted.load_state_dict(state, strict=False)
    wrong = [*unknown, *(name for name in lost if "position_bias." not in name)]
    assert not wrong, f"a converted model has the weights of its original, got {wrong}"
    converted.train(model.training)
    return converted


def build_without_positions(model: Any, conversion: Conversion) -> Converted:
    """Build the model with its positions taken out; what is added to its scores is left to the caller."""
    return build(model, replace(conversion, mode="replace"))


def count_positions(model: Any) -> int:
    """Count the positions that the model has."""
    return len(_position_table(model))


def count_removed(model: Any) -> int:
    """Count the parameters that are gone when positions are replaced: all rows of the table but one."""
    table: Tensor = model.base_model.embeddings.position_embeddings.weight
    return table.numel() - table.shape[1]


def _position_table(model: Any) -> Tensor:  # (L, E), float64
    """Return the rows that positions use."""
    table = model.base_model.embeddings.position_embeddings
    first = table.padding_idx + 1 if FAMILIES[model.config.model_type].after_padding else 0
    rows: Tensor = table.weight.detach()[first:].double()
    return rows
