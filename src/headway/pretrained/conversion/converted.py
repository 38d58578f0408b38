"""Converted models: transformers' own classes, with a bias on the scores that cannot be lost.

There is one converted class for every class of transformers that can be converted, made when this module is imported
and registered with transformers' Auto classes.
"""

from __future__ import annotations

from inspect import signature
from typing import Any, cast

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING

from headway.encodings import Encoding, Together
from headway.pretrained.conversion import attention_interface
from headway.pretrained.conversion.attention_interface import ARGUMENT, NAME, PassState
from headway.pretrained.conversion.conversion import FAMILIES, Conversion, check_family
from headway.pretrained.model_types import CONVERTED, OWN

AUTO_CLASSES = (
    "AutoModel",
    "AutoModelForPreTraining",
    "AutoModelForMaskedLM",
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
    "AutoModelForQuestionAnswering",
    "AutoModelForMultipleChoice",
    "AutoModelForNextSentencePrediction",
    "AutoModelForTextEncoding",
)


class PositionBias(PreTrainedModel):  # type: ignore[misc]
    """The bias's parameters, as a model within the model, so that transformers lets it draw its own parameters."""

    def __init__(self, config: Any, layers: int) -> None:
        super().__init__(config)
        conversion = Conversion.of(config)
        self.encoding = conversion.build(config, layers)
        self.meets_keys = conversion.meets_keys
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
    """Base of converted models; their class of transformers comes after it.

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
        _attach_bias(self.base_model)
        self.tie_weights()

    @property
    def conversion(self) -> Conversion:
        return Conversion.of(self.config)

    def _check_and_adjust_attn_implementation(self, attn_implementation: str | None, *args: Any, **kwargs: Any) -> str:
        _check_implementation(NAME if attn_implementation in (None, "headway") else attn_implementation)
        return NAME


def has_pooler(model: Any) -> bool:
    return getattr(model.base_model, "pooler", None) is not None


def encoding_of(model: Any) -> Encoding:
    """Return the encoding that a conversion gave to a model, with any head or none."""
    base = model.base_model
    if model.config.model_type != OWN:
        return cast(Encoding, base.position_bias.encoding)
    encoding: Encoding = base.encoding  # of headway's own encoders, where the old encoding may have stayed beside it
    return cast(Encoding, encoding.parts[-1]) if isinstance(encoding, Together) else encoding


def max_length_of(model: Any) -> int | None:
    """Return the number of tokens of the longest text that a model takes, converted or not; None for no limit."""
    base = model.base_model
    encoding = getattr(base, "encoding", None)  # headway's own encoders have one
    if isinstance(encoding, Encoding):
        return _encoding_limit(encoding)
    added = _encoding_limit(base.position_bias.encoding) if isinstance(model, Converted) else None
    if isinstance(model, Converted) and model.conversion.replaces:
        return added
    table = base.embeddings.position_embeddings
    positions = int(table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1))
    return positions if added is None else min(positions, added)


def _encoding_limit(encoding: Encoding) -> int | None:
    return None if encoding.extends else int(encoding.dims.max_length)


def _check_implementation(name: str | None) -> None:
    if name != NAME:
        raise ValueError(
            f"attn_implementation: expected {NAME!r}, because no other adds a converted model's bias to the scores, "
            f"got {name!r}. Leave it out."
        )


def _attach_bias(base: Any) -> None:
    """Give the bias to a model without a head, and take its positions out where they are replaced."""
    conversion, family = Conversion.of(base.config), FAMILIES[base.config.source_type]
    layers = family.layers(base)
    base.position_bias = PositionBias(base.config, len(layers))
    attentions = [layer.get_submodule(family.attention) for layer in layers]
    if len(set(attentions)) == len(layers):
        for n, module in enumerate(attentions):
            module.headway_layer = n  # type: ignore[assignment]
    base.register_forward_pre_hook(_pass_bias_on, with_kwargs=True)
    embeddings = base.embeddings
    embeddings.headway_arguments = tuple(signature(embeddings.forward).parameters)
    table = embeddings.position_embeddings
    embeddings.headway_positions = table.num_embeddings - (table.padding_idx + 1 if family.after_padding else 0)
    if conversion.replaces:
        embeddings.position_embeddings = nn.Embedding(1, table.embedding_dim)
    hook = _use_one_position if conversion.replaces else _check_positions
    embeddings.register_forward_pre_hook(hook, with_kwargs=True)


Call = tuple[tuple[Any, ...], dict[str, Any]]


def _pass_bias_on(base: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Before the model runs, add the argument that its attention modules need."""
    _check_implementation(base.config._attn_implementation)
    if ARGUMENT in kwargs:
        return args, kwargs
    state = PassState(
        encoding=base.position_bias.encoding,
        meets_keys=base.position_bias.meets_keys,
        with_weights=bool(kwargs.get("output_attentions", base.config.output_attentions)),
    )
    return args, {**kwargs, ARGUMENT: state}


def _check_positions(embeddings: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Before embeddings run that keep their positions, raise for a text longer than these."""
    given, words = _embedding_arguments(embeddings, args, kwargs)
    length = words.shape[1]
    if length > embeddings.headway_positions:
        raise ValueError(
            f"input_ids: expected at most {embeddings.headway_positions} tokens, the model's own positions, which stay "
            f"in mode 'supplement', got {length}. Truncate them, or convert with mode='replace' for longer texts."
        )
    return (), given


def _use_one_position(embeddings: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Before embeddings run whose positions were replaced, put every token at row 0 of their table of one."""
    given, words = _embedding_arguments(embeddings, args, kwargs)
    return (), {**given, "position_ids": torch.zeros(1, words.shape[1], dtype=torch.long, device=words.device)}


def _embedding_arguments(
    embeddings: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[dict[str, Any], Tensor]:
    """Return the arguments by name, and the one that has the words, (B, L) or (B, L, E)."""
    given = {**dict(zip(embeddings.headway_arguments, args, strict=False)), **kwargs}
    if given.get("position_ids") is not None:
        raise NotImplementedError(
            "position_ids: expected none, because a bias counts positions from the first column, got some. Pad texts "
            "on the right and do not pack them."
        )
    return given, given["inputs_embeds"] if given.get("input_ids") is None else given["input_ids"]


CONFIGS: dict[str, type[PreTrainedConfig]] = {}  # by the family's model_type
MODELS: dict[type, type[Converted]] = {}  # by the class that was converted


def converted_class(model: Any) -> type[Converted]:
    """Return the class that a model becomes; raise for one that cannot be converted."""
    config = getattr(model, "config", None)
    if not isinstance(config, PreTrainedConfig):
        raise TypeError(
            f"model: expected a transformers model, got {type(model).__name__}. Of a wrapped one "
            f"(sentence-transformers, PEFT, DDP) convert the model inside."
        )
    check_family(config.model_type)
    if type(model) not in MODELS:
        known = ", ".join(
            source.__name__ for source in MODELS if MODELS[source].config_class is CONFIGS[config.model_type]
        )
        raise NotImplementedError(f"model: expected one of {known}, got {type(model).__name__}.")
    return MODELS[type(model)]


def _register_classes() -> None:
    """Make all converted classes and register them with transformers."""
    attention_interface.register()
    for name, family in FAMILIES.items():
        source = getattr(transformers, family.config)
        config = CONFIGS[name] = _make_class(
            f"Converted{source.__name__}",
            (source,),
            model_type=f"{CONVERTED}{name}",
            source_type=name,
            position_bias=None,
            pooler=True,
            __annotations__={"position_bias": dict | None, "pooler": bool},
            __doc__=f"{source.__name__}, in `position_bias` what was done to the model, and whether it has a `pooler`.",
        )
        AutoConfig.register(config.model_type, config, exist_ok=True)
        AutoTokenizer.register(config, tokenizer_class=TOKENIZER_MAPPING[source], exist_ok=True)
        for auto in (getattr(transformers, auto_name) for auto_name in AUTO_CLASSES):
            if source in auto._model_mapping:
                auto.register(config, _converted_model(auto._model_mapping[source], config), exist_ok=True)


def _converted_model(source: type, config: type[PreTrainedConfig]) -> type[Converted]:
    if source not in MODELS:
        doc = f"{source.__name__} with a bias on its scores."
        MODELS[source] = _make_class(
            f"Converted{source.__name__}", (Converted, source), config_class=config, __doc__=doc
        )
    return MODELS[source]


def _make_class(name: str, bases: tuple[type, ...], **attributes: Any) -> Any:
    """Make a class that can be found by its name in this module, as pickling needs."""
    made = type(name, bases, {"__module__": __name__, **attributes})
    globals()[name] = made
    return made


_register_classes()
