"""The encoder stack and the decoder stack."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from transformers import EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions

from headway.encodings import Encoding, parts_of
from headway.models.context import ForwardContext
from headway.models.norm import LayerNorm
from headway.models.translation.config import TranslationConfig
from headway.models.translation.layers import DecoderLayer, EncoderLayer, Packing
from headway.running import may_read


class Encoder(nn.Module):
    """The encoder; it holds the word embeddings, which the decoder uses too."""

    main_input_name = "input_ids"  # transformers' generate asks an encoder for it

    def __init__(self, config: TranslationConfig) -> None:
        super().__init__()
        self.scale = config.hidden_size**0.5  # Vaswani et al. (2017), Sec. 3.4
        self.words = nn.Embedding(config.vocab_size, config.hidden_size)
        self.encoding = config.build_encoder()
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.layers = nn.ModuleList(EncoderLayer(config, index) for index in range(config.encoder_layers))
        self.norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps) if config.norm == "pre" else None

    def embed_words(self, ids: Tensor) -> Tensor:  # (B, L) to (B, L, E)
        """Look up the word embeddings, scaled by E^0.5."""
        x: Tensor = self.words(ids) * self.scale
        return x

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool = True,
        inputs_embeds: Tensor | None = None,  # (B, L, E), from `embed_words`, in place of input_ids
    ) -> BaseModelOutput:
        x = inputs_embeds
        if x is None:
            if input_ids is None:
                raise ValueError("input_ids: expected the source (B, L), or encoder_outputs in its place, got neither.")
            x = self.embed_words(input_ids)
        lengths = lengths_of(attention_mask, x.shape[:2])
        context = forward_context(self.encoding, x.shape[1], x.shape[1], lengths=lengths)
        packing = Packing(lengths, x.shape[1])
        x = self.dropout(packing.pack(context.embed(x)))
        states, all_weights = [x], []
        for layer in self.layers:
            x, weights = layer(x, context, packing, bool(output_attentions))
            states.append(x)
            all_weights.append(weights)
        return BaseModelOutput(
            last_hidden_state=packing.unpack(x if self.norm is None else self.norm(x)),
            hidden_states=tuple(packing.unpack(state) for state in states) if output_hidden_states else None,
            attentions=tuple(all_weights) if output_attentions else None,
        )


class Decoder(nn.Module):
    """The decoder."""

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
        context = forward_context(self.encoding, length, start + length, start)  # the causal mask hides the padding
        cross_context = forward_context(self.cross_encoding, length, memory.shape[1], start, lengths)
        packing = Packing(own_lengths if past_key_values is None else None, length)
        memory_packing = Packing(lengths, memory.shape[1])
        memory = memory_packing.pack(memory)
        x = self.dropout(packing.pack(context.embed(x)))
        states, all_weights, all_cross_weights = [x], [], []
        for layer in self.layers:
            x, weights, cross_weights = layer(
                x,
                memory,
                (context, cross_context),
                (packing, memory_packing),
                past_key_values=past_key_values,
                output_attentions=bool(output_attentions),
            )
            states.append(x)
            all_weights.append(weights)
            all_cross_weights.append(cross_weights)
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=packing.unpack(x if self.norm is None else self.norm(x)),
            hidden_states=tuple(packing.unpack(state) for state in states) if output_hidden_states else None,
            attentions=tuple(all_weights) if output_attentions else None,
            cross_attentions=tuple(all_cross_weights) if output_attentions else None,
        )


def forward_context(
    encoding: Encoding | None, q_len: int, k_len: int, q_start: int = 0, lengths: Tensor | None = None
) -> ForwardContext:
    """Describe one forward pass through self-attention or, with another k_len, through attention to the source."""
    return ForwardContext(
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
    """Return the number of words of each sequence; on a CPU, raise ValueError if padding is not on the right."""
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
