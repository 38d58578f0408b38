"""The configuration of the encoder: its sizes, by default those of BERT, and its encodings."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, ClassVar, Self

import torch
from transformers import PreTrainedConfig

from headway.bias import Toeplitz
from headway.encodings import ENCODINGS, DietAbs, Dimensions, Encoding, EncodingChoice, option_names, parts_of
from headway.encodings.choice import OLD_FIELDS, with_one_encoding

ATTENTIONS = ("full", "local", "linformer", "performer", "synthesizer")
OF_ATTENTION = {"window": "local", "projected_length": "linformer", "num_features": "performer"}
PROJECTION_SHARINGS = ("none", "head", "key-value", "layer")
PROBLEM_TYPES = ("regression", "single_label_classification", "multi_label_classification")


class HeadwayConfig(PreTrainedConfig):  # type: ignore[misc]
    """A transformers configuration that names its encoding in one text, `encoding`; see `EncodingChoice`."""

    encoding: str = "none"

    @property
    def choice(self) -> EncodingChoice:
        """The encoding with all its options."""
        return EncodingChoice.parse(self.encoding)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Self:
        """Make a configuration from its saved values, such as those of config.json."""
        check_names({name: value for name, value in kwargs.items() if name in OLD_FIELDS}, [], {})
        config: Self = super().from_dict(with_one_encoding(config_dict), **kwargs)
        return config


class EncoderConfig(HeadwayConfig):
    """Settings of an encoder; the defaults are those of BERT-base (Devlin et al. 2019).

    Args:
        max_position_embeddings: longest sequence of training; the limit of encodings that do not extend.
        type_vocab_size: number of segments.
        encoding: the encoding with its options, such as "diet-abs:rank=64,sharing=layer,segments=per-head". Segments
            that it does not name are those of BERT, segments=input.
        attention: full; local, where each query sees keys at most `window` away; linformer, whose keys and values are
            projected to `projected_length` along the length; performer, whose weights are products of `num_features`
            random features; or synthesizer, which has no q and k, so that scores are the encoding's alone.
        window: of local attention, to either side.
        projected_length: of linformer; projections are initialised for texts of `max_position_embeddings`.
        projection_sharing: none, head (all heads of a layer), key-value (those, and keys with values) or layer (all).
        num_features: of performer; more approximate exp(q k^T) better.
        normalised_features: whether performer divides q and k by their length, which makes training stable (Luo et al.
            2021); otherwise it approximates the usual weights.
        initializer_range: of words, projections and heads; encodings draw their own (their option init_std).
        classifier_dropout: before the classification head; hidden_dropout_prob unless given.
    """

    model_type: ClassVar[str] = "headway-encoder"

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    encoding: str = "learned:segments=input"
    attention: str = "full"
    window: int | None = None
    projected_length: int | None = None
    projection_sharing: str = "key-value"
    num_features: int | None = None
    normalised_features: bool = True
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    classifier_dropout: float | None = None
    layer_norm_eps: float = 1e-12
    initializer_range: float = 0.02
    pad_token_id: int | None = 0
    tie_word_embeddings: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        check_names(kwargs, [known.name for known in fields(self)], fixed_settings("gelu"))
        super().__post_init__(**kwargs)
        self.check()
        with torch.device("meta"):  # raises if a name or option is wrong
            self.build()

    def check(self) -> None:
        """Raise if a setting is wrong. Models call it again, because `from_pretrained` can change a configuration."""
        self.encoding = str(self.choice)
        self._check_sizes()
        self._check_attention()

    @property
    def choice(self) -> EncodingChoice:
        """The encoding with all its options, segments among them."""
        choice = super().choice
        return replace(choice, segments=choice.segments or "input")

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    def build(self) -> tuple[Encoding, Encoding | None]:
        """Build the encoding of positions and, where there are any, that of segments; see `build_apart`."""
        choice = self.choice
        if "key_length" in choice.options:
            raise ValueError("key_length: cannot be set in a model, where it is projected_length. Leave it out.")
        if self.attention == "linformer" and DietAbs in choice.kinds:
            choice = replace(choice, options={**choice.options, "key_length": self.projected_length})
        dims = Dimensions(
            num_layers=self.num_hidden_layers,
            num_heads=self.num_attention_heads,
            head_dim=self.head_dim,
            max_length=self.max_position_embeddings,
        )
        position, segments = choice.build_apart(dims, num_segments=self.type_vocab_size)
        _check_encodings(self.attention, [*parts_of(position), *parts_of(segments)])
        return position, segments

    @property
    def pair_segments(self) -> str:
        """How pairs of texts take segments unless somebody chooses: per-head, where attention has a bias for them."""
        return "input" if self.attention in ("linformer", "performer") else "per-head"

    def _check_sizes(self) -> None:
        for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}: expected a whole number of at least 1, got {value!r}.")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size: expected a multiple of num_attention_heads ({self.num_attention_heads}), "
                f"got {self.hidden_size}."
            )
        pad = self.pad_token_id
        if pad is not None and not (isinstance(pad, int) and 0 <= pad < self.vocab_size):
            raise ValueError(f"pad_token_id: expected None or 0 to {self.vocab_size - 1} (vocab_size), got {pad!r}.")
        check_numbers(self, ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"))
        if self.problem_type is not None and self.problem_type not in PROBLEM_TYPES:
            raise ValueError(f"problem_type: expected one of {', '.join(PROBLEM_TYPES)}, got {self.problem_type!r}.")

    def _check_attention(self) -> None:
        if self.attention not in ATTENTIONS:
            raise ValueError(f"attention: expected one of {', '.join(ATTENTIONS)}, got {self.attention!r}.")
        if self.projection_sharing not in PROJECTION_SHARINGS:
            raise ValueError(
                f"projection_sharing: expected one of {', '.join(PROJECTION_SHARINGS)}, "
                f"got {self.projection_sharing!r}."
            )
        most = {**dict.fromkeys(OF_ATTENTION, 1 << 30), "projected_length": self.max_position_embeddings}
        for name, attention in OF_ATTENTION.items():
            value = getattr(self, name)
            if self.attention != attention:
                if value is not None:
                    raise ValueError(
                        f"{name}: expected None with attention={self.attention!r}, got {value!r}. It is a setting of "
                        f"attention={attention!r}."
                    )
            elif not (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most[name]):
                raise ValueError(
                    f"{name}: expected 1 to {most[name]:,} (max_position_embeddings) with attention={attention!r}, "
                    f"got {value!r}. Chen et al. (2021b) use 32."
                    if name == "projected_length"
                    else f"{name}: expected a whole number of at least 1 with attention={attention!r}, got {value!r}."
                )
        if self.attention == "performer" and self.attention_probs_dropout_prob:
            raise ValueError(
                f"attention_probs_dropout_prob: expected 0 with attention='performer', which computes no weights that "
                f"could be dropped, got {self.attention_probs_dropout_prob}."
            )


def check_numbers(config: Any, shares: Iterable[str]) -> None:
    """Raise ValueError if a number is missing or out of range; torch would raise later, without naming it."""
    for name in ("max_position_embeddings", "type_vocab_size"):
        value = getattr(config, name, 1)
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name}: expected a whole number of at least 1, got {value!r}.")
    for name in shares:
        value = getattr(config, name)
        if value is not None and not (isinstance(value, int | float) and 0 <= value < 1):
            raise ValueError(f"{name}: expected a share of at least 0 and below 1, got {value!r}.")
    for name in ("layer_norm_eps", "initializer_range"):
        value = getattr(config, name, 1.0)
        if not (isinstance(value, int | float) and 0 <= value < math.inf):
            raise ValueError(f"{name}: expected a number of at least 0, got {value!r}.")


OTHER_NAMES = {  # names of settings in our encodings and in other libraries
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "max_length": "max_position_embeddings",
    "embed_dim": "hidden_size",
    "d_model": "hidden_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "activation_dropout": "activation_dropout_prob",
    "encoder_ffn_dim": "intermediate_size",
    "decoder_ffn_dim": "intermediate_size",
    "encoder_attention_heads": "num_attention_heads",
    "decoder_attention_heads": "num_attention_heads",
}
ELSEWHERE = {  # settings that follow from others, or that are part of another
    "head_dim": "no such setting; it is hidden_size / num_attention_heads. Set those.",
    "rope_theta": "it is an option of the encoding. Write it there: encoding='rope:base=...'.",
    "sharing": "it is part of the encoding. Write it there: encoding='diet-abs:sharing=...'.",
    "segments": "it is part of the encoding. Write it there: encoding='diet-abs:segments=...'.",
    "encoding_options": "they are part of the encoding. Write them there: encoding='diet-abs:rank=...'.",
}
ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")
FIXED: dict[str, Any] = {  # settings of other libraries' models that ours do not have, with the value ours act by
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "add_cross_attention": False,
}
OF_ONE_MODEL = (  # settings that only encoders or only translation models have
    "attention", "window", "projected_length", "projection_sharing", "num_features", "normalised_features",
    "classifier_dropout", "type_vocab_size",
    "encoder_layers", "decoder_layers", "cross", "norm", "activation_dropout_prob", "label_smoothing",
)  # fmt: skip


def fixed_settings(activation: str) -> dict[str, Any]:
    """Return the fixed settings of a model with this activation, by the names that other libraries use."""
    return {**FIXED, **dict.fromkeys(ACTIVATIONS, activation)}


def check_names(names: Mapping[str, Any], known: list[str], fixed: Mapping[str, Any]) -> None:
    """Raise ValueError for a name that is misspelt or that has no effect; transformers would keep it silently."""
    options = {option for kind in ENCODINGS.values() for option in option_names(kind)}
    for name, value in names.items():
        if name in ELSEWHERE:
            raise ValueError(f"{name}: {ELSEWHERE[name]}")
        if name in options:
            raise ValueError(f"{name}: it is an option of the encoding. Write it there: encoding='NAME:{name}=...'.")
        # Ids of other special tokens, such as cls_token_id, describe the tokenizer and are not misspelt.
        near = [] if name.endswith("_token_id") else difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        meant = OTHER_NAMES.get(name, near[0] if near else None)
        if meant in known:
            raise ValueError(f"{name}: no such setting. Did you mean {meant!r}?")
        if name == "num_layers":
            raise ValueError("num_layers: no such setting. Did you mean 'encoder_layers' and 'decoder_layers'?")
        if name in fixed and value not in (None, fixed[name]):
            raise ValueError(f"{name}: no such setting; here it is always {fixed[name]!r}, got {value!r}.")
        if name in OF_ONE_MODEL:
            raise ValueError(f"{name}: this kind of model has no such setting. It has {', '.join(known)}.")


def check_settings(kind: type[PreTrainedConfig], names: Iterable[str]) -> None:
    """Raise ValueError for names that a configuration of ours would keep without any effect."""
    known = [field.name for field in fields(kind)]
    unknown = [name for name in names if not (name in known or hasattr(kind, name) or name == "attn_implementation")]
    check_names(dict.fromkeys(unknown), known, {})
    if unknown:
        raise ValueError(f"{unknown[0]}: no such setting. Expected some of {', '.join(known)}.")


def _check_encodings(attention: str, parts: list[Encoding]) -> None:
    """Raise NotImplementedError for an encoding that a kind of attention cannot take."""
    for part in parts:
        acts = f"{part.name} ({' and '.join(part.places)})"
        if attention == "linformer" and not isinstance(part, DietAbs) and set(part.places) - {"input"}:
            raise NotImplementedError(
                f"attention: linformer's keys are mixtures of all positions, on which {acts} is not defined. Use an "
                f"encoding of the input (learned, sinusoidal, none), diet-abs, and segments=input or none; or "
                f"attention='full'."
            )
        if attention == "performer" and not (set(part.places) <= {"input", "queries and keys"} or _is_toeplitz(part)):
            raise NotImplementedError(
                f"attention: performer multiplies its weights by a number for each offset, which {acts} is not. Use an "
                f"encoding of the input, rope, or one that yields a Toeplitz bias (t5, tisa, alibi, diet-rel, "
                f"rel-scalar), and segments=input or none; or attention='full'."
            )
        if attention == "synthesizer" and (part.meets_query or "queries and keys" in part.places):
            raise NotImplementedError(
                f"attention: synthesizer has no q and k for {acts} to act on. Use an encoding that adds numbers to the "
                f"scores (synthesizer, diet-abs, diet-rel, t5, tisa, alibi), or attention='full'."
            )
    if attention == "synthesizer" and not any("scores" in part.places for part in parts):
        raise ValueError(
            "attention: synthesizer has no scores but those of the encoding, and this one adds none. Use synthesizer, "
            "diet-abs, diet-rel, t5, tisa or alibi, alone or beside it."
        )


def _is_toeplitz(part: Encoding) -> bool:
    """Return whether an encoding does nothing but add a Toeplitz bias to the scores."""
    if part.places != ("scores",) or part.meets_query or part.takes_segments:
        return False
    bias = part._bias(0, 1, 1, 0, None, None)
    return bias is None or all(isinstance(term, Toeplitz) for term in bias.terms)
