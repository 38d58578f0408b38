"""Encoder and decoder: words and position through the layers of one side."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from transformers import EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions

from headway.encodings import Encoding, parts_of
from headway.models.frame import Frame
from headway.models.norm import LayerNorm
from headway.models.translation.config import TranslationConfig
from headway.models.translation.layers import DecoderLayer, EncoderLayer
from headway.models.translation.packing import Packing
from headway.running import may_read


class Encoder(nn.Module):
    """The source side; holds the words' embeddings, which the target side uses too."""

    main_input_name = "input_ids"  # what transformers' generate asks an encoder for

    def __init__(self, config: TranslationConfig) -> None:
        super().__init__()
        self.scale = config.hidden_size**0.5  # Vaswani et al. (2017), Sec. 3.4
        self.words = nn.Embedding(config.vocab_size, config.hidden_size)
        self.encoding = config.build_encoder()
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.layers = nn.ModuleList(EncoderLayer(config, index) for index in range(config.encoder_layers))
        self.norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if config.norm == "pre" else None

    def embedded(self, ids: Tensor) -> Tensor:  # (B, L) to (B, L, E)
        x: Tensor = self.words(ids) * self.scale
        return x

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool = True,
        inputs_embeds: Tensor | None = None,  # (B, L, E), what `embedded` gives, in place of input_ids
    ) -> BaseModelOutput:
        x = inputs_embeds
        if x is None:
            if input_ids is None:
                raise ValueError("input_ids: expected the source (B, L), or encoder_outputs in its place, got neither.")
            x = self.embedded(input_ids)
        lengths = lengths_of(attention_mask, x.shape[:2])
        frame = frame_of(self.encoding, x.shape[1], x.shape[1], lengths=lengths)
        packing = Packing(lengths, x.shape[1])
        x = self.dropout(packing.packed(frame.embed(x)))
        states, all_weights = [x], []
        for layer in self.layers:
            x, weights = layer(x, frame, packing, bool(output_attentions))
            states.append(x)
            all_weights.append(weights)
        return BaseModelOutput(
            last_hidden_state=packing.padded(x if self.norm is None else self.norm(x)),
            hidden_states=tuple(packing.padded(state) for state in states) if output_hidden_states else None,
            attentions=tuple(all_weights) if output_attentions else None,
        )


class Decoder(nn.Module):
    """The target side."""

    def __init__(self, config: TranslationConfig) -> None:
        super().__init__()
        self.encoding = config.build_decoder()
        self.cross_encoding = config.build_cross()
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.layers = nn.ModuleList(DecoderLayer(config, index) for index in range(config.decoder_layers))
        self.norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if config.norm == "pre" else None

    @property
    def each_layer(self) -> list[DecoderLayer]:
        return [cast(DecoderLayer, layer) for layer in self.layers]

    def forward(
        self,
        x: Tensor,  # (B, Lt, E), embedded words
        memory: Tensor,  # (B, Ls, E), the encoded source
        attention_mask: Tensor | None = None,  # (B, Ls)
        decoder_attention_mask: Tensor | None = None,  # (B, Lt)
        past_key_values: EncoderDecoderCache | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        length, start = x.shape[1], 0 if past_key_values is None else int(past_key_values.get_seq_length())
        own_lengths = lengths_of(decoder_attention_mask, (x.shape[0], start + length))
        lengths = lengths_of(attention_mask, memory.shape[:2])
        frame = frame_of(self.encoding, length, start + length, start)  # causal order needs no lengths
        cross_frame = frame_of(self.cross_encoding, length, memory.shape[1], start, lengths)
        packing = Packing(own_lengths if past_key_values is None else None, length)
        memory_packing = Packing(lengths, memory.shape[1])
        memory = memory_packing.packed(memory)
        x = self.dropout(packing.packed(frame.embed(x)))
        states, all_weights, all_cross_weights = [x], [], []
        for layer in self.layers:
            x, weights, cross_weights = layer(
                x,
                memory,
                (frame, cross_frame),
                (packing, memory_packing),
                past_key_values=past_key_values,
                output_attentions=bool(output_attentions),
            )
            states.append(x)
            all_weights.append(weights)
            all_cross_weights.append(cross_weights)
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=packing.padded(x if self.norm is None else self.norm(x)),
            hidden_states=tuple(packing.padded(state) for state in states) if output_hidden_states else None,
            attentions=tuple(all_weights) if output_attentions else None,
            cross_attentions=tuple(all_cross_weights) if output_attentions else None,
        )


def frame_of(
    encoding: Encoding | None, q_len: int, k_len: int, q_start: int = 0, lengths: Tensor | None = None
) -> Frame:
    return Frame(
        [] if encoding is None else parts_of(encoding),
        scale=None if encoding is None else encoding.scale,
        q_len=q_len,
        k_len=k_len,
        q_start=q_start,
        lengths=lengths,
    )


def lengths_of(
    attention_mask: Tensor | None,  # (B, L)
    shape: tuple[int, int] | torch.Size,
) -> Tensor | None:  # (B,), None where there is no padding
    """How many words each sequence has, all padding after them."""
    if attention_mask is None:
        return None
    if tuple(attention_mask.shape) != tuple(shape):
        raise ValueError(f"attention_mask: expected {tuple(shape)} as the words, got {tuple(attention_mask.shape)}.")
    keep = attention_mask != 0
    lengths = keep.sum(1)
    if may_read(keep):
        if not torch.equal(keep, torch.arange(shape[1]) < lengths[:, None]):
            raise ValueError(
                "attention_mask: expected ones and then zeros in each row, got zeros before ones. "
                "Pad on the right (tokenizer.padding_side = 'right')."
            )
        return None if bool(keep.all()) else lengths
    return lengths
