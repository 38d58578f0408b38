"""The encoder: BERT's architecture with any encoding."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils import can_return_tuple

from headway.bias.checks import check_ids
from headway.encodings import Encoding, parts_of
from headway.models.config import EncoderConfig
from headway.models.context import ForwardContext
from headway.models.layers import EncoderLayer, LengthProjection, Pooler
from headway.models.norm import LayerNorm
from headway.models.padding import lengths_or_mask
from headway.models.performer import RandomFeatures
from headway.models.pretrained import HeadwayPreTrainedModel
from headway.running import may_read


class EncoderPreTrainedModel(HeadwayPreTrainedModel):
    """Base of the encoder and of the models with a head on it."""

    config_class = EncoderConfig
    config: EncoderConfig
    base_model_prefix = "encoder"
    _no_split_modules: ClassVar[list[str]] = ["EncoderLayer"]
    _resettable: ClassVar[tuple[type[nn.Module], ...]] = (Encoding, LengthProjection, RandomFeatures)
    # Loading a model for another task drops its head; any other tensor without a place in the model is an error.
    _keys_to_ignore_on_load_unexpected: ClassVar[set[str]] = {
        r"^prediction\.",
        r"^classifier\.",
        r"^spans\.",
        r"(^|\.)pooler\.",
    }


class EncoderModel(EncoderPreTrainedModel):
    """The encoder without a head.

    `encoding` is the encoding of positions, and `segments` that of segments, or None.
    """

    def __init__(self, config: EncoderConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.words = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.encoding, self.segments = config.build()
        self.norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.projection = LengthProjection(config) if config.attention == "linformer" else None
        self.features = None
        if config.attention == "performer":
            assert config.num_features is not None  # checked by the configuration
            self.features = RandomFeatures(
                config.num_hidden_layers,
                config.num_attention_heads,
                config.num_features,
                config.head_dim,
                config.normalised_features,
            )
        self.layers = nn.ModuleList(EncoderLayer(config, index) for index in range(config.num_hidden_layers))
        self.pooler = Pooler(config) if add_pooling_layer else None
        self.post_init()

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        documents: Tensor | None = None,
        lengths: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutputWithPooling:
        """Compute the hidden state of every token, and the pooled state of the first one.

        Args:
            input_ids: (B, L) token ids; or pass `inputs_embeds`, (B, L, E), instead.
            attention_mask: (B, L), nonzero = a word, zero = padding; or boolean (B, Lq, Lk) or (B, H|1, Lq, Lk), True =
                may attend.
            token_type_ids: (B, L) segments; all 0 unless given.
            documents: (B, L) ids of packed texts, which do not attend to one another and each count positions from 0;
                padding has an id of its own, such as -1. As the first token then belongs to only one of the texts,
                nothing is pooled, and `pooler_output` is None.
            lengths: (B,) number of words of each sequence, with padding on the right, instead of attention_mask. On a
                GPU this is faster, because the model does not read a mask there.
            output_attentions: also return the weights of each layer, (B, H, L, Lk), before dropout, computed by the
                plain formula.
            output_hidden_states: also return the input of each layer and the last output.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("input_ids, inputs_embeds: expected exactly one of them, got both or neither.")
        if input_ids is not None and input_ids.numel() and may_read(input_ids):
            check_ids("input_ids", input_ids, self.words.num_embeddings, "vocab_size")
        x = self.words(input_ids) if inputs_embeds is None else inputs_embeds
        context = self._context(x, attention_mask, token_type_ids, documents, lengths)
        x = self.dropout(self.norm(context.embed(x)))
        with_weights = self.config.output_attentions if output_attentions is None else output_attentions
        with_states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        states, all_weights = [x], []
        for layer in self.layers:
            x, weights = layer(x, context, self.projection, with_weights)
            states.append(x)
            all_weights.append(weights)
        return BaseModelOutputWithPooling(
            last_hidden_state=x,
            pooler_output=None if self.pooler is None or documents is not None else self.pooler(x),
            hidden_states=tuple(states) if with_states else None,
            attentions=tuple(all_weights) if with_weights else None,
        )

    def _context(
        self,
        x: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        documents: Tensor | None,
        lengths: Tensor | None,
    ) -> ForwardContext:
        if x.dim() != 3:
            raise ValueError(
                f"input_ids: expected (B, L), got {x.dim() - 1} axes. For one sequence, pass input_ids[None]."
            )
        batch, length, _ = x.shape
        if batch == 0 or length == 0:
            raise ValueError(f"input_ids: expected at least one sequence of at least one word, got {(batch, length)}.")
        for name, ids in (("token_type_ids", token_type_ids), ("documents", documents)):
            if ids is None:
                continue
            if ids.dim() != 2 or ids.shape[1] != length or (ids.shape[0] != 1 and ids.shape[0] != batch):
                raise ValueError(f"{name}: expected {(batch, length)} (from the input), got {tuple(ids.shape)}.")
        if documents is not None and (self.projection is not None or self.features is not None):
            raise NotImplementedError(
                f"documents: {self.config.attention} sums over all keys of a row, so that packed texts would attend to "
                f"one another. Pad each text to a row of its own, or use attention='full'."
            )
        lengths, mask = lengths_or_mask(attention_mask, lengths, (batch, length))
        if self.segments is None:
            _check_no_segments(token_type_ids)
        return ForwardContext(
            [*parts_of(self.encoding), *([] if self.segments is None else [self.segments])],
            scale=0.0 if self.config.attention == "synthesizer" else self.encoding.scale,
            q_len=length,
            k_len=length if self.projection is None else self.projection.matrix.shape[-2],
            segments=None if self.segments is None else token_type_ids,
            documents=documents,
            lengths=lengths,
            mask=mask,
            window=self.config.window,
            features=self.features,
            x=x,
            heads=(self.config.num_attention_heads, self.config.head_dim),
        )


def _check_no_segments(token_type_ids: Tensor | None) -> None:
    """Raise ValueError if there are segment ids other than 0, which a model without segments would ignore.

    Tokenizers return segment ids without being asked, so ids that are all 0 are accepted. The ids are read on the CPU
    only; on a GPU that would wait for the device.
    """
    if token_type_ids is None or not may_read(token_type_ids):
        return
    if bool(token_type_ids.any()):
        raise ValueError(
            "token_type_ids: expected segment 0 everywhere, because the model has segments=none, got others. "
            "Build or load it with an encoding that has segments=input or segments=per-head, or leave the ids out."
        )
