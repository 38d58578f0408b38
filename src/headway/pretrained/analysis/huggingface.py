"""Hugging Face models of the families in the table, as they are or converted, read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from headway.bias import Bias, Toeplitz
from headway.encodings import t5_buckets
from headway.pretrained.analysis.anatomy import Affine, Layer, Reading
from headway.pretrained.analysis.arrays import Array, array
from headway.pretrained.analysis.families import CONVERTED, FAMILIES, Family
from headway.pretrained.analysis.modules import layer_of, linear_of, norm_of
from headway.pretrained.analysis.own_models import bias_of_parts


def read_huggingface(model: Any, *, stack: str) -> Reading:
    """A model whose type is in `FAMILIES`, as it is or converted, with any head or none."""
    kind, base = model.config.model_type, model.base_model
    if kind.startswith(CONVERTED):
        return _converted(kind, base, FAMILIES[kind.removeprefix(CONVERTED)])
    position_type = getattr(model.config, "position_embedding_type", None) or "absolute"
    if position_type != "absolute":
        raise NotImplementedError(
            f"model: expected absolute position embeddings, got a checkpoint of type {position_type!r}, whose tables "
            f"transformers 5 no longer loads."
        )
    family = FAMILIES[kind]
    if family.stacks:
        if not hasattr(base, stack):
            raise ValueError(f"stack: expected encoder, all that {type(base).__name__} has, got {stack!r}.")
        base = getattr(base, stack)
    elif stack != "encoder":
        raise ValueError(f"stack: expected encoder, because {kind} has one stack of layers, got {stack!r}.")
    return _read(kind, base, family, runs_alone=stack == "encoder")


def _converted(kind: str, base: Any, family: Family) -> Reading:
    """The family's anatomy, and the bias that was added to its scores.

    Where positions were replaced, one row, the same for every token, is all that is left of their table.
    """
    done, encoding = base.config.position_bias, base.position_bias.encoding
    replaced = done["mode"] == "replace"
    reading = _read(kind, base, replace(family, positions=None) if replaced else family, runs_alone=True)
    reading = replace(
        reading,
        bias_of=lambda layer, length: bias_of_parts([encoding], layer, length),
        meets_keys=done.get("meets_keys", False),
    )
    if not replaced:
        return reading
    assert family.positions is not None  # only such families are converted
    return replace(
        reading,
        constant=_weight(base, family.positions)[0],
        limit=None if encoding.extends else encoding.dims.max_length,
        usual_length=encoding.dims.max_length,
    )


def _read(kind: str, base: Any, family: Family, *, runs_alone: bool) -> Reading:
    positions = _positions(base, family)
    limit = None if positions is None else len(positions)
    return Reading(
        model_type=kind,
        model=base,
        words=_weight(base, family.words),
        positions=positions,
        segments=None if family.segments is None else _weight(base, family.segments),
        norm=None if family.norm is None else norm_of(family.norm, base.get_submodule(family.norm)),
        project=_projection(base, family),
        layers=tuple(_layer(layer, family, base.config, n) for n, layer in enumerate(family.layers(base))),
        limit=limit,
        usual_length=512 if limit is None else limit,
        causal=family.causal or _is_decoder(base),
        runs_alone=runs_alone,
        bias_of=_bucket_bias(base, family),
    )


def _weight(base: Any, path: str) -> Array:
    return array(f"{path}.weight", base.get_submodule(path).weight)


def _positions(base: Any, family: Family) -> Array | None:
    if family.positions is None:
        return None
    table = _weight(base, family.positions)
    return table[base.get_submodule(family.positions).padding_idx + 1 :] if family.after_padding else table


def _projection(base: Any, family: Family) -> Affine | None:
    """From the embeddings' width to the model's, where the model has it."""
    if family.project is None or family.project not in dict(base.named_modules()):
        return None
    return linear_of(family.project, base.get_submodule(family.project))


def _layer(layer: nn.Module, family: Family, config: Any, index: int) -> Layer:
    head_dim = getattr(config, "d_kv", None) or config.hidden_size // config.num_attention_heads
    return layer_of(
        f"layer {index}",
        layer.get_submodule(family.query),
        None if family.key is None else layer.get_submodule(family.key),
        heads=config.num_attention_heads,
        head_dim=head_dim,
        scale=family.scale(config, index, head_dim),
        norm=None if family.before is None else norm_of(family.before, layer.get_submodule(family.before)),
    )


def _is_decoder(base: Any) -> bool:
    return bool(getattr(base.config, "is_decoder", False))


def _bucket_bias(base: Any, family: Family) -> Callable[[int, int], Bias | None]:
    """T5's bias (Raffel et al. 2020, Sec. 2.1), where the family has it."""
    path = family.buckets
    if path is None:
        return lambda layer, length: None
    shared = path in dict(base.named_modules())
    holders: list[Any] = [base] if shared else list(family.layers(base))

    def bias(layer: int, length: int) -> Bias:
        table = holders[0 if shared else layer].get_submodule(path).weight.detach()  # (buckets, H)
        buckets = t5_buckets(
            torch.arange(-(length - 1), length),
            buckets=len(table),
            max_distance=family.max_distance(base.config),
            bidirectional=not _is_decoder(base),
        )
        return Toeplitz(table.cpu().double()[buckets].T[None], length)

    return bias
