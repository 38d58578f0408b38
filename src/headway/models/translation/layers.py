"""The layers of the Transformer (Vaswani et al. 2017, Sec. 3.1), with position wherever the encoding puts it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import EncoderDecoderCache
from transformers.modeling_layers import GradientCheckpointingLayer

from headway.models.context import ForwardContext
from headway.models.norm import LayerNorm
from headway.models.translation.config import TranslationConfig
from headway.running import may_read


class Packing:
    """Removes and restores padding: layers that treat words one by one then take a batch as one matrix of its words.

    It does so only on a CPU and where lengths are given; otherwise both methods return their input. On a GPU the number
    of words is unknown without waiting for the device, and a compiled graph needs fixed shapes.
    """

    def __init__(
        self,
        lengths: Tensor | None,  # (B,), number of words of each sequence; padding is on the right
        length: int,  # L
    ) -> None:
        self.places: Tensor | None = None  # (N,), indices of the words into B * L
        if lengths is not None and may_read(lengths):
            words = torch.arange(length) < lengths[:, None]
            self.shape = words.shape
            self.places = words.flatten().nonzero()[:, 0]

    def pack(self, x: Tensor) -> Tensor:  # (B, L, E) to (N, E)
        """Remove the padding."""
        return x if self.places is None else x.flatten(0, 1).index_select(0, self.places)

    def unpack(self, x: Tensor) -> Tensor:  # (N, E) to (B, L, E)
        """Restore the padding, as zeros."""
        if self.places is None:
            return x
        zeros = x.new_zeros(self.shape.numel(), x.shape[-1])
        return zeros.index_copy_(0, self.places, x).view(*self.shape, x.shape[-1])


NO_PADDING = Packing(None, 0)


class Linear(nn.Module):
    """A linear layer whose weight is stored as (inputs, outputs); that of nn.Linear is (outputs, inputs).

    With 4 to 64 rows, as in a step of beam search, a CPU multiplies 1.2 to 2 times faster with this layout. With one
    row, with thousands (training) and on GPUs both take the same time.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights by Glorot's uniform distribution; as in fairseq, q, k and v together count as one wide layer."""
        nn.init.xavier_uniform_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:  # (..., inputs) to (..., outputs)
        return F.linear(x, self.weight.mT, self.bias)

    def extra_repr(self) -> str:
        return f"inputs={self.weight.shape[0]}, outputs={self.weight.shape[1]}"


class EncoderLayer(GradientCheckpointingLayer):  # type: ignore[misc]
    """Self-attention and feed-forward layer."""

    def __init__(self, config: TranslationConfig, index: int) -> None:
        super().__init__()
        self.attention = SelfAttention(config, index, causal=False)
        self.feed_forward = FeedForward(config)
        self.around_attention, self.around_feed_forward = Residual(config), Residual(config)

    def forward(
        self,
        x: Tensor,  # (B, L, E), packed
        context: ForwardContext,
        packing: Packing,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # as x, and the weights (B, H, L, L) if they were asked for
        mixed, weights = self.attention(
            self.around_attention.normalize_input(x), context, packing, None, output_attentions
        )
        x = self.around_attention.add_output(x, mixed)
        x = self.around_feed_forward.add_output(x, self.feed_forward(self.around_feed_forward.normalize_input(x)))
        return x, weights


class DecoderLayer(GradientCheckpointingLayer):  # type: ignore[misc]
    """Causal self-attention, attention to the source, and feed-forward layer."""

    def __init__(self, config: TranslationConfig, index: int) -> None:
        super().__init__()
        self.attention = SelfAttention(config, index, causal=True)
        self.cross_attention = CrossAttention(config, index)
        self.feed_forward = FeedForward(config)
        self.around_attention, self.around_cross_attention = Residual(config), Residual(config)
        self.around_feed_forward = Residual(config)

    def forward(
        self,
        x: Tensor,  # (B, Lq, E), packed
        memory: Tensor,  # (B, Lk, E), packed: the encoded source
        contexts: tuple[ForwardContext, ForwardContext],  # within the target, and from there to the source
        packings: tuple[Packing, Packing],  # of target and source
        past_key_values: EncoderDecoderCache | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:  # as x, weights of both attentions if asked for
        mixed, weights = self.attention(
            self.around_attention.normalize_input(x), contexts[0], packings[0], past_key_values, output_attentions
        )
        x = self.around_attention.add_output(x, mixed)
        mixed, cross_weights = self.cross_attention(
            self.around_cross_attention.normalize_input(x),
            memory,
            contexts[1],
            packings,
            past_key_values,
            output_attentions,
        )
        x = self.around_cross_attention.add_output(x, mixed)
        x = self.around_feed_forward.add_output(x, self.feed_forward(self.around_feed_forward.normalize_input(x)))
        return x, weights, cross_weights


class SelfAttention(nn.Module):
    """Multi-head self-attention; the encoding may rotate q and k, and add to scores and values."""

    def __init__(self, config: TranslationConfig, index: int, *, causal: bool) -> None:
        super().__init__()
        self.index, self.causal = index, causal
        self.heads = (config.num_attention_heads, config.head_dim)
        self.dropout = config.attention_probs_dropout_prob
        self.qkv = Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = Linear(config.hidden_size, config.hidden_size)

    def project(self, x: Tensor, packing: Packing = NO_PADDING) -> Tensor:  # (B, L, 3, H, D)
        """Project x to q, k and v."""
        qkv = packing.unpack(self.qkv(x))
        return qkv.view(*qkv.shape[:2], 3, *self.heads)

    def forward(
        self,
        x: Tensor,
        context: ForwardContext,
        packing: Packing,
        cache: EncoderDecoderCache | None,
        output_attentions: bool,
    ) -> tuple[Tensor, Tensor | None]:
        q, k, v, qkv = context.split_and_rotate(
            self.project(x, packing), self.index
        )  # rotated before they join the cache
        if cache is not None:
            k, v = cache.self_attention_cache.update(k, v, self.index)
        mixed, weights = context.attend(
            q,
            k,
            v,
            self.index,
            causal=self.causal,
            dropout=self.dropout if self.training else 0.0,
            output_attentions=output_attentions,
            qkv=None if cache is not None else qkv,
        )
        return self.output(packing.pack(mixed.transpose(1, 2).flatten(2))), weights


class CrossAttention(nn.Module):
    """Multi-head attention from the target to the source."""

    def __init__(self, config: TranslationConfig, index: int) -> None:
        super().__init__()
        self.index = index
        self.heads = (config.num_attention_heads, config.head_dim)
        self.dropout = config.attention_probs_dropout_prob
        self.query = Linear(config.hidden_size, config.hidden_size)
        self.key_value = Linear(config.hidden_size, 2 * config.hidden_size)
        self.output = Linear(config.hidden_size, config.hidden_size)

    def project(self, x: Tensor, packing: Packing = NO_PADDING) -> Tensor:  # (B, H, Lq, D)
        """Project the target to q."""
        q = packing.unpack(self.query(x))
        return q.view(*q.shape[:2], *self.heads).transpose(1, 2)

    def project_memory(self, memory: Tensor, packing: Packing = NO_PADDING) -> tuple[Tensor, Tensor]:
        """Project the encoded source to k and v, both (B, H, Lk, D)."""
        kv = packing.unpack(self.key_value(memory))
        k, v = kv.view(*kv.shape[:2], 2, *self.heads).permute(2, 0, 3, 1, 4)
        return k, v

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        context: ForwardContext,
        packings: tuple[Packing, Packing],
        cache: EncoderDecoderCache | None,
        output_attentions: bool,
    ) -> tuple[Tensor, Tensor | None]:
        packing, memory_packing = packings
        if cache is not None and cache.is_updated.get(self.index):
            cached = cache.cross_attention_cache.layers[self.index]
            k, v = cached.keys, cached.values
        else:
            k, v = self.project_memory(memory, memory_packing)
            if cache is not None:
                k, v = cache.cross_attention_cache.update(k, v, self.index)
                cache.is_updated[self.index] = True
        dropout = self.dropout if self.training else 0.0
        q = self.project(x, packing)
        mixed, weights = context.attend(q, k, v, self.index, dropout=dropout, output_attentions=output_attentions)
        return self.output(packing.pack(mixed.transpose(1, 2).flatten(2))), weights


class FeedForward(nn.Module):
    """Two linear layers with ReLU between them (Vaswani et al. 2017, Eq. (2))."""

    def __init__(self, config: TranslationConfig) -> None:
        super().__init__()
        self.up = Linear(config.hidden_size, config.intermediate_size)
        self.down = Linear(config.intermediate_size, config.hidden_size)
        self.dropout = nn.Dropout(config.activation_dropout_prob)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(self.dropout(F.relu(self.up(x))))
        return y


class Residual(nn.Module):
    """The residual connection of a sublayer: dropout, the sum, and LayerNorm before the sublayer or after the sum."""

    def __init__(self, config: TranslationConfig) -> None:
        super().__init__()
        self.norm_first = config.norm == "pre"
        self.norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def normalize_input(self, x: Tensor) -> Tensor:
        """Return the sublayer's input, which is normalized if the norm comes first."""
        return self.norm(x) if self.norm_first else x

    def add_output(self, x: Tensor, y: Tensor) -> Tensor:
        """Add the sublayer's output y to the residual stream x, and normalize the sum unless the norm came first."""
        x = x + self.dropout(y)
        return x if self.norm_first else self.norm(x)
