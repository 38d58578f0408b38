"""Converted models: transformers' own classes, with a bias on the scores that cannot be lost."""

from __future__ import annotations

from inspect import signature
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from headway.encodings import Encoding, Together
from headway.pretrained.conversion.conversion import Conversion
from headway.pretrained.conversion.families import FAMILIES, OWN
from headway.pretrained.conversion.interface import ARGUMENT, NAME, Frame


class PositionBias(PreTrainedModel):  # type: ignore[misc]
    """The bias's parameters: a model within the model, so that transformers lets it draw itself."""

    def __init__(self, config: Any, layers: int) -> None:
        super().__init__(config)
        self.encoding = Conversion.of(config).build(config, layers)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if not isinstance(module, Encoding):
            return
        # What was loaded stays: only what a checkpoint lacks, and buffers, are made anew.
        loaded = [(p, p.clone()) for p in module.parameters() if getattr(p, "_is_hf_initialized", False)]
        module.reset_parameters()
        for parameter, value in loaded:
            parameter.copy_(value)


class Converted(PreTrainedModel):  # type: ignore[misc]
    """What converted models have beside their class of transformers, which comes after this one.

    `position_bias` of the model without a head holds the bias. It is added in headway's attention, the only one that a
    converted model accepts: any other would leave it out. `pooler` of the configuration says whether there is one, so
    that a model without a head is loaded with no more than was saved.
    """

    position_bias: PositionBias

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        if not config.pooler and not args and "add_pooling_layer" in signature(super().__init__).parameters:
            kwargs.setdefault("add_pooling_layer", False)
        super().__init__(config, *args, **kwargs)
        self.config.pooler = has_pooler(self)
        prepare(self.base_model)
        self.tie_weights()

    @property
    def conversion(self) -> Conversion:
        return Conversion.of(self.config)

    def _check_and_adjust_attn_implementation(self, attn_implementation: str | None, *args: Any, **kwargs: Any) -> str:
        check_implementation(NAME if attn_implementation is None else attn_implementation)
        return NAME


def has_pooler(model: Any) -> bool:
    return getattr(model.base_model, "pooler", None) is not None


def check_implementation(name: str | None) -> None:
    if name != NAME:
        raise ValueError(
            f"attn_implementation: expected {NAME!r}, because no other adds a converted model's bias to the scores, "
            f"got {name!r}. Leave it out."
        )


def prepare(base: Any) -> None:
    """Give the bias to a model without a head, and take its positions out where they are replaced."""
    conversion, family = Conversion.of(base.config), FAMILIES[base.config.source_type]
    layers = family.layers(base)
    base.position_bias = PositionBias(base.config, len(layers))
    attentions = [layer.get_submodule(family.attention) for layer in layers]
    if len(set(attentions)) == len(layers):
        for n, module in enumerate(attentions):
            module.headway_layer = n  # type: ignore[assignment]
    base.register_forward_pre_hook(hand_over, with_kwargs=True)
    embeddings = base.embeddings
    embeddings.headway_arguments = tuple(signature(embeddings.forward).parameters)
    table = embeddings.position_embeddings
    embeddings.headway_positions = table.num_embeddings - (table.padding_idx + 1 if family.after_padding else 0)
    if conversion.replaces:
        embeddings.position_embeddings = nn.Embedding(1, table.embedding_dim)
    embeddings.register_forward_pre_hook(without_positions if conversion.replaces else with_positions, with_kwargs=True)


Call = tuple[tuple[Any, ...], dict[str, Any]]


def hand_over(base: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Before the model runs: what its attention modules need."""
    check_implementation(base.config._attn_implementation)
    if ARGUMENT in kwargs:
        return args, kwargs
    frame = Frame(
        encoding=base.position_bias.encoding,
        meets_keys=Conversion.of(base.config).meets_keys,
        with_weights=bool(kwargs.get("output_attentions", base.config.output_attentions)),
    )
    return args, {**kwargs, ARGUMENT: frame}


def with_positions(embeddings: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Before the embeddings run, where their positions stay."""
    given, words = _embedded(embeddings, args, kwargs)
    length = words.shape[1]
    if length > embeddings.headway_positions:
        raise ValueError(
            f"input_ids: expected at most {embeddings.headway_positions} tokens, the model's own positions, which stay "
            f"in mode 'supplement', got {length}. Truncate them, or convert with mode='replace' for longer texts."
        )
    return (), given


def without_positions(embeddings: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Before the embeddings run, where their positions were replaced: every token is at row 0 of a table of one."""
    given, words = _embedded(embeddings, args, kwargs)
    return (), {**given, "position_ids": torch.zeros(1, words.shape[1], dtype=torch.long, device=words.device)}


def _embedded(embeddings: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], Tensor]:
    """The arguments by name, and which of them has the words, (B, L) or (B, L, E)."""
    given = {**dict(zip(embeddings.headway_arguments, args, strict=False)), **kwargs}
    if given.get("position_ids") is not None:
        raise NotImplementedError(
            "position_ids: expected none, because a bias counts positions from the first column, got some. Pad texts "
            "on the right and do not pack them."
        )
    return given, given["inputs_embeds"] if given.get("input_ids") is None else given["input_ids"]


def encoding_of(model: Any) -> Encoding:
    """The encoding that a converted model was given, with any head or none."""
    base = model.base_model
    if model.config.model_type != OWN:
        return cast(Encoding, base.position_bias.encoding)
    encoding: Encoding = base.encoding  # of headway's own, beside which the old one may have stayed
    return cast(Encoding, encoding.parts[-1]) if isinstance(encoding, Together) else encoding
