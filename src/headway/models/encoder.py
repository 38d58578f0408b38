"""The encoder: BERT's architecture, in which position enters only through the encoding's four methods."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.utils import can_return_tuple

from headway.bias.checks import check_ids
from headway.encodings import Encoding, parts_of
from headway.models.config import EncoderConfig
from headway.models.frame import Frame
from headway.models.layers import EncoderLayer, LengthProjection, Pooler
from headway.models.norm import LayerNorm
from headway.models.padding import padding
from headway.models.pretrained import HeadwayPreTrainedModel
from headway.running import may_read


class EncoderPreTrainedModel(HeadwayPreTrainedModel):
    """What all encoder models share."""

    config_class = EncoderConfig
    config: EncoderConfig
    base_model_prefix = "encoder"
    _no_split_modules: ClassVar[list[str]] = ["EncoderLayer"]
    _draw_themselves: ClassVar[tuple[type[nn.Module], ...]] = (Encoding, LengthProjection)
    # A head is left behind when a model goes on to another task; any other tensor that has no place is an error.
    _keys_to_ignore_on_load_unexpected: ClassVar[set[str]] = {
        r"^prediction\.",
        r"^classifier\.",
        r"^spans\.",
        r"(^|\.)pooler\.",
    }

    def _choices(self) -> str:
        return f"{super()._choices()} and segments {self.config.segments!r}"


class EncoderModel(EncoderPreTrainedModel):
    """Words, position and segments through the layers; without a head.

    `encoding` is the encoding of positions, `segments` that of segments (None where there is none).
    """

    def __init__(self, config: EncoderConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        self.words = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.encoding, self.segments = config.build()
        self.norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.projection = LengthProjection(config) if config.attention == "linformer" else None
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
        """Hidden states of every token, and the pooled first one.

        Args:
            input_ids: (B, L) words; or `inputs_embeds`, (B, L, E), in their place.
            attention_mask: (B, L), nonzero = a word, zero = padding; or boolean (B, Lq, Lk) or (B, H|1, Lq, Lk), True =
                may attend.
            token_type_ids: (B, L) segments; all 0 unless given.
            documents: (B, L) ids of packed texts. They do not see one another and each counts its positions from 0;
                padding has an id of its own, such as -1. The first token is then that of one text among several, so
                that nothing is pooled: `pooler_output` is None.
            lengths: (B,) words of each sequence, all padding after them, in place of attention_mask. On a GPU a model
                can only know this if it is told.
            output_attentions: also the weights, (B, H, L, Lk) for each layer, before dropout; from the plain formula.
            output_hidden_states: also the layers' inputs and the last output.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("input_ids, inputs_embeds: expected exactly one of them, got both or neither.")
        if input_ids is not None and input_ids.numel() and may_read(input_ids):
            check_ids("input_ids", input_ids, self.words.num_embeddings, "vocab_size")
        x = self.words(input_ids) if inputs_embeds is None else inputs_embeds
        frame = self._frame(x, attention_mask, token_type_ids, documents, lengths)
        x = self.dropout(self.norm(frame.embed(x)))
        with_weights = self.config.output_attentions if output_attentions is None else output_attentions
        with_states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        states, all_weights = [x], []
        for layer in self.layers:
            x, weights = layer(x, frame, self.projection, with_weights)
            states.append(x)
            all_weights.append(weights)
        return BaseModelOutputWithPooling(
            last_hidden_state=x,
            pooler_output=None if self.pooler is None or documents is not None else self.pooler(x),
            hidden_states=tuple(states) if with_states else None,
            attentions=tuple(all_weights) if with_weights else None,
        )

    def _frame(
        self,
        x: Tensor,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None,
        documents: Tensor | None,
        lengths: Tensor | None,
    ) -> Frame:
        if x.dim() != 3:
            raise ValueError(
                f"input_ids: expected (B, L), got {x.dim() - 1} axes. Of one sequence, pass input_ids[None]."
            )
        batch, length, _ = x.shape
        if batch == 0 or length == 0:
            raise ValueError(f"input_ids: expected at least one sequence of at least one word, got {(batch, length)}.")
        for name, ids in (("token_type_ids", token_type_ids), ("documents", documents)):
            if ids is None:
                continue
            if ids.dim() != 2 or ids.shape[1] != length or (ids.shape[0] != 1 and ids.shape[0] != batch):
                raise ValueError(f"{name}: expected {(batch, length)} (from the input), got {tuple(ids.shape)}.")
        if self.projection is not None and documents is not None:
            raise NotImplementedError(
                "documents: linformer mixes all keys of a row, so that packed texts would see one another. "
                "Pad each text to a row of its own, or use attention='full'."
            )
        lengths, mask = padding(attention_mask, lengths, (batch, length))
        if self.segments is None:
            _check_no_segments(token_type_ids)
        return Frame(
            [*parts_of(self.encoding), *([] if self.segments is None else [self.segments])],
            scale=self.encoding.scale,
            q_len=length,
            k_len=length if self.projection is None else self.projection.matrix.shape[-2],
            segments=None if self.segments is None else token_type_ids,
            documents=documents,
            lengths=lengths,
            mask=mask,
            x=x,
            heads=(self.config.num_attention_heads, self.config.head_dim),
        )


def _check_no_segments(token_type_ids: Tensor | None) -> None:
    """Tokenizers give ids of segments unasked. All of segment 0 is no loss; others would be lost, which is an error.

    Read on the CPU only: elsewhere it would wait for the device.
    """
    if token_type_ids is None or not may_read(token_type_ids):
        return
    if bool(token_type_ids.any()):
        raise ValueError(
            "token_type_ids: expected segment 0 everywhere, because the model has segments='none', got others. "
            "Build or load it with segments='input' or segments='per-head', or leave the ids out."
        )
