"""The layers: the Transformer's (Vaswani et al. 2017, Sec. 3.1), with position wherever the encoding puts it."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import EncoderDecoderCache
from transformers.modeling_layers import GradientCheckpointingLayer

from headway.models.frame import Frame
from headway.models.norm import LayerNorm
from headway.models.translation.config import TranslationConfig
from headway.models.translation.linear import Linear
from headway.models.translation.packing import Packing

ALL = Packing(None, 0)  # nothing is padding


class EncoderLayer(GradientCheckpointingLayer):  # type: ignore[misc]
    """Attention and feed-forward."""

    def __init__(self, config: TranslationConfig, index: int) -> None:
        super().__init__()
        self.attention = SelfAttention(config, index, causal=False)
        self.feed_forward = FeedForward(config)
        self.around_attention, self.around_feed_forward = Residual(config), Residual(config)

    def forward(
        self,
        x: Tensor,  # (B, L, E), packed
        frame: Frame,
        packing: Packing,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # as x, and the weights (B, H, L, L) if they were asked for
        mixed, weights = self.attention(self.around_attention.enter(x), frame, packing, None, output_attentions)
        x = self.around_attention.leave(x, mixed)
        x = self.around_feed_forward.leave(x, self.feed_forward(self.around_feed_forward.enter(x)))
        return x, weights


class DecoderLayer(GradientCheckpointingLayer):  # type: ignore[misc]
    """Causal attention, attention to the source, and feed-forward."""

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
        frames: tuple[Frame, Frame],  # within the target, and from there to the source
        packings: tuple[Packing, Packing],  # of target and source
        past_key_values: EncoderDecoderCache | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:  # as x, weights of both attentions if asked for
        mixed, weights = self.attention(
            self.around_attention.enter(x), frames[0], packings[0], past_key_values, output_attentions
        )
        x = self.around_attention.leave(x, mixed)
        mixed, cross_weights = self.cross_attention(
            self.around_cross_attention.enter(x), memory, frames[1], packings, past_key_values, output_attentions
        )
        x = self.around_cross_attention.leave(x, mixed)
        x = self.around_feed_forward.leave(x, self.feed_forward(self.around_feed_forward.enter(x)))
        return x, weights, cross_weights


class SelfAttention(nn.Module):
    """All heads' attention within one side; the encoding turns q and k, and adds to scores and values."""

    def __init__(self, config: TranslationConfig, index: int, *, causal: bool) -> None:
        super().__init__()
        self.index, self.causal = index, causal
        self.heads = (config.num_attention_heads, config.head_dim)
        self.dropout = config.attention_probs_dropout_prob
        self.qkv = Linear(config.hidden_size, 3 * config.hidden_size)
        self.output = Linear(config.hidden_size, config.hidden_size)

    def project(self, x: Tensor, packing: Packing = ALL) -> Tensor:  # (B, L, 3, H, D)
        """q, k and v."""
        qkv = packing.padded(self.qkv(x))
        return qkv.view(*qkv.shape[:2], 3, *self.heads)

    def forward(
        self, x: Tensor, frame: Frame, packing: Packing, cache: EncoderDecoderCache | None, output_attentions: bool
    ) -> tuple[Tensor, Tensor | None]:
        q, k, v, qkv = frame.parted(self.project(x, packing), self.index)  # turned before they join the cache
        if cache is not None:
            k, v = cache.self_attention_cache.update(k, v, self.index)
        mixed, weights = frame.attend(
            q,
            k,
            v,
            self.index,
            causal=self.causal,
            dropout=self.dropout if self.training else 0.0,
            output_attentions=output_attentions,
            qkv=None if cache is not None else qkv,
        )
        return self.output(packing.packed(mixed.transpose(1, 2).flatten(2))), weights


class CrossAttention(nn.Module):
    """All heads' attention from the target to the source."""

    def __init__(self, config: TranslationConfig, index: int) -> None:
        super().__init__()
        self.index = index
        self.heads = (config.num_attention_heads, config.head_dim)
        self.dropout = config.attention_probs_dropout_prob
        self.query = Linear(config.hidden_size, config.hidden_size)
        self.key_value = Linear(config.hidden_size, 2 * config.hidden_size)
        self.output = Linear(config.hidden_size, config.hidden_size)

    def project(self, x: Tensor, packing: Packing = ALL) -> Tensor:  # (B, H, Lq, D)
        q = packing.padded(self.query(x))
        return q.view(*q.shape[:2], *self.heads).transpose(1, 2)

    def project_memory(self, memory: Tensor, packing: Packing = ALL) -> tuple[Tensor, Tensor]:
        """k and v, both (B, H, Lk, D)."""
        kv = packing.padded(self.key_value(memory))
        k, v = kv.view(*kv.shape[:2], 2, *self.heads).permute(2, 0, 3, 1, 4)
        return k, v

    def forward(
        self,
        x: Tensor,
        memory: Tensor,
        frame: Frame,
        packings: tuple[Packing, Packing],
        cache: EncoderDecoderCache | None,
        output_attentions: bool,
    ) -> tuple[Tensor, Tensor | None]:
        packing, memory_packing = packings
        if cache is not None and cache.is_updated.get(self.index):
            kept = cache.cross_attention_cache.layers[self.index]
            k, v = kept.keys, kept.values
        else:
            k, v = self.project_memory(memory, memory_packing)
            if cache is not None:
                k, v = cache.cross_attention_cache.update(k, v, self.index)
                cache.is_updated[self.index] = True
        dropout = self.dropout if self.training else 0.0
        q = self.project(x, packing)
        mixed, weights = frame.attend(q, k, v, self.index, dropout=dropout, output_attentions=output_attentions)
        return self.output(packing.packed(mixed.transpose(1, 2).flatten(2))), weights


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
    """What is around a sublayer: dropout, the sum with its input, and LayerNorm, after the sum or before it all."""

    def __init__(self, config: TranslationConfig) -> None:
        super().__init__()
        self.norm_first = config.norm == "pre"
        self.norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def enter(self, x: Tensor) -> Tensor:
        """The sublayer's input."""
        return self.norm(x) if self.norm_first else x

    def leave(self, x: Tensor, y: Tensor) -> Tensor:
        """The layer's value after the sublayer, whose input was x and whose output is y."""
        x = x + self.dropout(y)
        return x if self.norm_first else self.norm(x)
