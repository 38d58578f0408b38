"""The translation model's configuration: the Transformer's sizes, and where position goes."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, ClassVar

import torch

from headway.encodings import Dimensions, Encoding, EncodingChoice, option_names
from headway.models.config import HeadwayConfig, check_names, check_numbers, fixed_settings

CROSSINGS = ("none", "same")
NORMS = ("post", "pre")


class TranslationConfig(HeadwayConfig):
    """Sizes and choices of an encoder-decoder; what is not given is Transformer-base (Vaswani et al. 2017, Table 3).

    Args:
        max_position_embeddings: longest source and target of training; the limit of encodings that do not extend.
        encoding: the encoding with its options, such as "shaw:clip=8,sharing=head", in encoder and decoder, each with
            parameters of its own. Buckets of offsets (t5, tupe-rel) are those of one direction in the decoder unless
            "bidirectional" is given. There are no segments.
        cross: position in the decoder's attention to the source: none, as Shaw et al. (2018) and T5, or same, the
            encoding once more between target position i and source position j, for encodings of scores and values.
        norm: post, LayerNorm after each sum (Vaswani et al. 2017; Shaw et al. 2018, Sec. 2.1), or pre, before each
            sublayer and once at the end.
        hidden_dropout_prob: after embeddings and sublayers; the other two as in Vaswani et al. (2017), none.
        label_smoothing: share of the target's weight that all words have alike.
        tie_word_embeddings: whether the output's weights are the words' embeddings. Source and target always share
            theirs: the vocabulary is one.
        decoder_start_token_id: what the decoder sees first; bos_token_id unless given.
    """

    model_type: ClassVar[str] = "headway-translation"
    attribute_map: ClassVar[dict[str, str]] = {"num_hidden_layers": "encoder_layers"}
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    vocab_size: int = 32768
    hidden_size: int = 512
    encoder_layers: int = 6
    decoder_layers: int = 6
    num_attention_heads: int = 8
    intermediate_size: int = 2048
    max_position_embeddings: int = 512
    encoding: str = "sinusoidal"
    cross: str = "none"
    norm: str = "post"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.0
    activation_dropout_prob: float = 0.0
    label_smoothing: float = 0.1
    layer_norm_eps: float = 1e-6
    tie_word_embeddings: bool = True
    is_encoder_decoder: bool = True
    use_cache: bool = True
    pad_token_id: int = 0
    bos_token_id: int = 1
    eos_token_id: int = 2
    decoder_start_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        check_names(kwargs, [known.name for known in fields(self)], fixed_settings("relu"))
        super().__post_init__(**kwargs)
        if self.decoder_start_token_id is None:
            self.decoder_start_token_id = self.bos_token_id
        self.check()
        with torch.device("meta"):  # names and options are wrong here or nowhere
            self.build_encoder(), self.build_decoder(), self.build_cross()

    def check(self) -> None:
        """Raise where a setting is wrong. Models ask again: `from_pretrained` changes a configuration that was made."""
        choice = self.choice
        if choice.segments not in (None, "none"):
            raise ValueError(f"segments: expected none, because a translation model has none, got {choice.segments!r}.")
        self.encoding = str(replace(choice, segments=None))
        self._check_sizes()
        self._check_tokens()

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def decoder_start(self) -> int:
        assert self.decoder_start_token_id is not None  # given, or bos_token_id
        return self.decoder_start_token_id

    def build_encoder(self) -> Encoding:
        return self._build(self.choice, self.encoder_layers)

    def build_decoder(self) -> Encoding:
        choice = self.choice
        if any("bidirectional" in option_names(kind) for kind in choice.kinds):
            choice = replace(choice, options={"bidirectional": False, **choice.options})
        return self._build(choice, self.decoder_layers)

    def build_cross(self) -> Encoding | None:
        """Build the encoding of the decoder's attention to the source, if it has one."""
        if self.cross == "none":
            return None
        built = self._build(self.choice, self.decoder_layers)
        if not built.places or set(built.places) - {"scores", "values"}:
            raise NotImplementedError(
                f"cross: {built.name} acts on {' and '.join(built.places) or 'nothing'}, which relates no target "
                f"position to a source position. Use cross='none', or an encoding of scores (diet-abs, diet-rel, "
                f"t5, tisa, alibi, ...)."
            )
        return built

    def _build(self, choice: EncodingChoice, layers: int) -> Encoding:
        return choice.build(
            Dimensions(
                num_layers=layers,
                num_heads=self.num_attention_heads,
                head_dim=self.head_dim,
                max_length=self.max_position_embeddings,
            )
        )

    def _check_sizes(self) -> None:
        sizes = ("vocab_size", "hidden_size", "encoder_layers", "decoder_layers", "num_attention_heads")
        for name in (*sizes, "intermediate_size", "max_position_embeddings"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}: expected a whole number of at least 1, got {value!r}.")
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size: expected a multiple of num_attention_heads ({self.num_attention_heads}), "
                f"got {self.hidden_size}."
            )
        for name, known in (("cross", CROSSINGS), ("norm", NORMS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name}: expected one of {', '.join(known)}, got {getattr(self, name)!r}.")
        dropout = ("hidden_dropout_prob", "attention_probs_dropout_prob", "activation_dropout_prob")
        check_numbers(self, (*dropout, "label_smoothing"))

    def _check_tokens(self) -> None:
        for name in ("pad_token_id", "eos_token_id", "decoder_start_token_id"):
            value = getattr(self, name)
            if not isinstance(value, int) or not 0 <= value < self.vocab_size:
                raise ValueError(f"{name}: expected 0 to {self.vocab_size - 1} (vocab_size), got {value!r}.")
        if self.pad_token_id == self.eos_token_id:
            raise ValueError(
                f"eos_token_id: expected another token than pad_token_id, got {self.eos_token_id} for both. "
                f"Padding is no target, and the end of a sentence must be one."
            )
