"""Models of transformers: where each family keeps its positions, projections and norms, and how these are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from headway.bias import Bias, Toeplitz
from headway.encodings import t5_buckets
from headway.pretrained.analysis.anatomy import Affine, Layer, Reading, read_layer, read_linear, read_norm
from headway.pretrained.analysis.matrices import Array, to_array
from headway.pretrained.analysis.own_encoders import bias_of_parts
from headway.pretrained.model_types import CONVERTED, albert_layers


@dataclass(frozen=True, kw_only=True)
class PartPaths:
    """Paths of submodules, from the model without a head, or from one layer of it (`query`, `key`, `before`)."""

    words: str = "embeddings.word_embeddings"
    positions: str | None = "embeddings.position_embeddings"
    after_padding: bool = False  # whether position 0 is the row after that of the padding token's id
    segments: str | None = "embeddings.token_type_embeddings"
    norm: str | None = "embeddings.LayerNorm"
    project: str | None = None  # from the width of embeddings to that of the model; may be absent
    layers: Callable[[Any], Sequence[nn.Module]] = lambda model: model.encoder.layer
    query: str = "attention.self.query"
    key: str | None = "attention.self.key"  # None: one module gives queries, keys and values side by side
    before: str | None = None  # the norm between a layer's input and its projections
    scale: Callable[[Any, int, int], float] = lambda config, layer, head_dim: head_dim**-0.5
    buckets: str | None = None  # T5's table of biases: the path in its layer, or in the model where all layers share
    max_distance: Callable[[Any], int] = lambda config: 128
    causal: bool = False
    stacks: bool = False  # whether the paths begin at `encoder` or `decoder`


def _gpt2_scale(config: Any, layer: int, head_dim: int) -> float:
    scale = head_dim**-0.5 if config.scale_attn_weights else 1.0
    return scale / (layer + 1) if config.scale_attn_by_inverse_layer_idx else scale


BERT = PartPaths()
ROBERTA = replace(BERT, after_padding=True)
T5 = PartPaths(
    words="embed_tokens",
    positions=None,
    segments=None,
    norm=None,
    layers=lambda stack: stack.block,
    query="layer.0.SelfAttention.q",
    key="layer.0.SelfAttention.k",
    before="layer.0.layer_norm",
    scale=lambda config, layer, head_dim: 1.0,
    buckets="block.0.layer.0.SelfAttention.relative_attention_bias",
    max_distance=lambda config: config.relative_attention_max_distance,
    stacks=True,
)

FAMILIES: dict[str, PartPaths] = {  # by config.model_type; MiniLM's are bert or xlm-roberta
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "electra": replace(BERT, project="embeddings_project"),
    "albert": PartPaths(
        project="encoder.embedding_hidden_mapping_in",
        layers=albert_layers,
        query="attention.query",
        key="attention.key",
    ),
    "distilbert": PartPaths(
        segments=None,
        layers=lambda model: model.transformer.layer,
        query="attention.q_lin",
        key="attention.k_lin",
    ),
    "mpnet": PartPaths(
        after_padding=True,
        segments=None,
        query="attention.attn.q",
        key="attention.attn.k",
        buckets="encoder.relative_attention_bias",
    ),
    "gpt2": PartPaths(
        words="wte",
        positions="wpe",
        segments=None,
        norm=None,
        layers=lambda model: model.h,
        query="attn.c_attn",
        key=None,
        before="ln_1",
        scale=_gpt2_scale,
        causal=True,
    ),
    "t5": T5,
    "mt5": T5,
    "umt5": replace(T5, buckets="layer.0.SelfAttention.relative_attention_bias"),
}


def read_hugging_face(model: Any, *, stack: str) -> Reading:
    """Read a model whose type is in `FAMILIES`, as it is or converted, with any head or none."""
    kind, base = model.config.model_type, model.base_model
    if kind.startswith(CONVERTED):
        return _read_converted(kind, base, FAMILIES[kind.removeprefix(CONVERTED)])
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
    return _read_family(kind, base, family, runs_alone=stack == "encoder")


def _read_converted(kind: str, base: Any, family: PartPaths) -> Reading:
    """Read the family's parts, and the bias that was added to its scores.

    Where positions were replaced, one row, the same for every token, is all that is left of their table.
    """
    done, encoding = base.config.position_bias, base.position_bias.encoding
    replaced = done["mode"] == "replace"
    reading = _read_family(kind, base, replace(family, positions=None) if replaced else family, runs_alone=True)
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


def _read_family(kind: str, base: Any, family: PartPaths, *, runs_alone: bool) -> Reading:
    positions = _positions(base, family)
    limit = None if positions is None else len(positions)
    return Reading(
        model_type=kind,
        model=base,
        words=_weight(base, family.words),
        positions=positions,
        segments=None if family.segments is None else _weight(base, family.segments),
        norm=None if family.norm is None else read_norm(family.norm, base.get_submodule(family.norm)),
        project=_projection(base, family),
        layers=tuple(_layer(layer, family, base.config, n) for n, layer in enumerate(family.layers(base))),
        limit=limit,
        usual_length=512 if limit is None else limit,
        causal=family.causal or _is_decoder(base),
        runs_alone=runs_alone,
        bias_of=_bucket_bias(base, family),
    )


def _weight(base: Any, path: str) -> Array:
    return to_array(f"{path}.weight", base.get_submodule(path).weight)


def _positions(base: Any, family: PartPaths) -> Array | None:
    if family.positions is None:
        return None
    table = _weight(base, family.positions)
    return table[base.get_submodule(family.positions).padding_idx + 1 :] if family.after_padding else table


def _projection(base: Any, family: PartPaths) -> Affine | None:
    """Read the projection from the embeddings' width to the model's, where the model has one."""
    if family.project is None or family.project not in dict(base.named_modules()):
        return None
    return read_linear(family.project, base.get_submodule(family.project))


def _layer(layer: nn.Module, family: PartPaths, config: Any, index: int) -> Layer:
    head_dim = getattr(config, "d_kv", None) or config.hidden_size // config.num_attention_heads
    return read_layer(
        f"layer {index}",
        layer.get_submodule(family.query),
        None if family.key is None else layer.get_submodule(family.key),
        heads=config.num_attention_heads,
        head_dim=head_dim,
        scale=family.scale(config, index, head_dim),
        norm=None if family.before is None else read_norm(family.before, layer.get_submodule(family.before)),
    )


def _is_decoder(base: Any) -> bool:
    return bool(getattr(base.config, "is_decoder", False))


def _bucket_bias(base: Any, family: PartPaths) -> Callable[[int, int], Bias | None]:
    """Return a function that makes T5's bias (Raffel et al. 2020, Sec. 2.1), or nothing, of a layer and a length."""
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
