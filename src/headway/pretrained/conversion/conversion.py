"""Which models can be converted, by family; and `Conversion`, the record of what was done to one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from headway.encodings import Dimensions, Encoding, EncodingChoice
from headway.encodings.choice import with_one_encoding
from headway.pretrained.model_types import CONVERTED, OWN, albert_layers

MODES = ("supplement", "replace")
BIASES = ("tisa", "diet-rel", "diet-abs", "t5", "alibi")  # what `convert` adds
SHAW = "shaw"  # what checkpoints of the types relative_key and relative_key_query have


@dataclass(frozen=True, kw_only=True)
class LayerPaths:
    """Where a family of models has its layers and attention.

    `layers` takes the model without a head; `attention` is a path inside one layer; `heads` and `width` are names in
    the configuration.
    """

    config: str  # name of the configuration's class in transformers
    layers: Callable[[Any], Sequence[nn.Module]] = lambda base: base.encoder.layer  # every application, in turn
    attention: str = "attention.self"  # the module that calls transformers' attention interface
    heads: str = "num_attention_heads"
    width: str = "hidden_size"
    after_padding: bool = False  # whether position 0 is the row after that of the padding token's id


BERT = LayerPaths(config="BertConfig")
ROBERTA = replace(BERT, config="RobertaConfig", after_padding=True)

FAMILIES: dict[str, LayerPaths] = {  # by config.model_type; MiniLM's are bert or xlm-roberta
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": replace(ROBERTA, config="XLMRobertaConfig"),
    "camembert": replace(ROBERTA, config="CamembertConfig"),
    "electra": replace(BERT, config="ElectraConfig"),
    "albert": LayerPaths(config="AlbertConfig", layers=albert_layers, attention="attention"),
    "distilbert": LayerPaths(
        config="DistilBertConfig",
        layers=lambda base: base.transformer.layer,
        attention="attention",
        heads="n_heads",
        width="dim",
    ),
}

OUT_OF_REACH = "its attention does not go through transformers' attention interface, so no bias can be given to it"
REASONS: dict[str, str] = {  # why other models that people ask for cannot be converted
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
    "modernbert": "it rotates queries and keys (RoPE) and adds no position to its input",
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


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """The bias of a converted model.

    mode "supplement" is Eq. (4a) of Wennberg and Henter (2021): position embeddings stay, a bias is added to the
    scores. "replace" is Eq. (4b): one row, the same for every position, takes the place of their table.
    """

    encoding: str  # NAME[:OPTION=VALUE,...], see `EncodingChoice`
    mode: str
    max_length: int  # longest text of training; the limit of encodings that do not extend
    meets_keys: bool = False  # whether keys meet Shaw's table too (relative_key_query)

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode: expected one of {', '.join(MODES)}, got {self.mode!r}.")
        if self.choice.name not in (*BIASES, SHAW):
            raise ValueError(f"to: expected one of {', '.join(BIASES)}, got {self.choice.name!r}.")

    @property
    def choice(self) -> EncodingChoice:
        """The encoding with all its options."""
        return EncodingChoice.parse(self.encoding)

    @property
    def replaces(self) -> bool:
        return self.mode == "replace"

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, config: Any) -> Conversion:
        """Read the conversion from a converted model's configuration."""
        given = config.position_bias
        if given is None:
            raise ValueError(
                f"config: expected position_bias, which says what is added to the scores, got none in "
                f"{type(config).__name__}. Make converted models with headway.convert; load them with from_pretrained."
            )
        return cls(**with_one_encoding(given))

    def build(self, config: Any, layers: int) -> Encoding:
        """Build the encoding for a model's sizes."""
        family = FAMILIES[config.source_type]
        heads = getattr(config, family.heads)
        head_dim = getattr(config, family.width) // heads
        dims = Dimensions(num_layers=layers, num_heads=heads, head_dim=head_dim, max_length=self.max_length)
        return self.choice.build(dims)
