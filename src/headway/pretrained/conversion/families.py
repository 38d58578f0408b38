"""Which models can be converted, and where their attention is: one row a family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn


@dataclass(frozen=True, kw_only=True)
class Family:
    """Paths of submodules; `layers` from the model without a head, `attention` from one layer."""

    config: str  # name of the configuration's class in transformers
    layers: Callable[[Any], Sequence[nn.Module]] = lambda base: base.encoder.layer  # every application, in turn
    attention: str = "attention.self"  # the module that calls transformers' attention interface
    heads: str = "num_attention_heads"  # of the configuration
    width: str = "hidden_size"
    after_padding: bool = False  # whether position 0 is the row after that of the padding token's id


def _albert_layers(base: Any) -> list[nn.Module]:
    """ALBERT's layers share modules (Lan et al. 2020, Sec. 3.1): each application counts."""
    config, groups = base.config, base.encoder.albert_layer_groups
    per_group = config.num_hidden_layers / config.num_hidden_groups
    return [layer for n in range(config.num_hidden_layers) for layer in groups[int(n / per_group)].albert_layers]


BERT = Family(config="BertConfig")
ROBERTA = replace(BERT, config="RobertaConfig", after_padding=True)

FAMILIES: dict[str, Family] = {  # by config.model_type; MiniLM's are bert or xlm-roberta
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": replace(ROBERTA, config="XLMRobertaConfig"),
    "camembert": replace(ROBERTA, config="CamembertConfig"),
    "electra": replace(BERT, config="ElectraConfig"),
    "albert": Family(config="AlbertConfig", layers=_albert_layers, attention="attention"),
    "distilbert": Family(
        config="DistilBertConfig",
        layers=lambda base: base.transformer.layer,
        attention="attention",
        heads="n_heads",
        width="dim",
    ),
}

CONVERTED = "headway-"  # a converted model's type is this and its family's
OWN = "headway-encoder"  # the type of headway's own encoders, converted or not

OUT_OF_REACH = "its attention does not go through transformers' attention interface, so that no bias can be given to it"
REASONS: dict[str, str] = {  # why others, that people ask for, cannot be converted
    "xlnet": OUT_OF_REACH,
    "deberta": OUT_OF_REACH,
    "deberta-v2": OUT_OF_REACH,
    "mpnet": OUT_OF_REACH,
    "funnel": OUT_OF_REACH,
    "longformer": "it attends within windows and has no matrix of scores to add a bias to",
    "big_bird": "it attends within blocks and has no matrix of scores to add a bias to",
    "t5": "its positions are a bias already",
    "mt5": "its positions are a bias already",
    "umt5": "its positions are a bias already",
    "modernbert": "it turns queries and keys (RoPE) and adds no position to its input",
    "gpt2": "it is a decoder, and decoders, which keep a cache of keys, are not supported",
}


def check_family(model_type: str) -> None:
    """Raise for a type that cannot be converted, with the reason."""
    if model_type in FAMILIES or model_type == OWN:
        return
    supported = ", ".join([*FAMILIES, OWN])
    if model_type.removeprefix(CONVERTED) in FAMILIES:
        raise ValueError(
            f"model: expected one of the types {supported}, got {model_type}: converted already. Convert the original."
        )
    reason = REASONS.get(model_type, "no family of that name is known here")
    raise NotImplementedError(f"model: expected one of the types {supported}, got {model_type!r}: {reason}.")
