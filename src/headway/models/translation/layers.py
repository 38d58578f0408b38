"""The layers: the Transformer's (Vaswani et al. 2017, Sec. 3.1), with position wherever the encoding puts it."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import EncoderDecoderCache
from transformers.modeling_layers import GradientCheckpointingLayer

from headway.attention.call import attention
from headway.attention.eager import weighted
from headway.attention.request import checked
from headway.models.frame import Frame
from headway.models.norm import LayerNorm
from headway.models.translation.config import TranslationConfig
from headway.models.translation.linear import Linear


class EncoderLayer(GradientCheckpointingLayer):  # type: ignore[misc]
    """Attention and feed-forward."""

    def __init__(self, config: TranslationConfig, index: int) -> None:
        super().__init__()
        self.attention = SelfAttention(config, index, causal=False)
        self.feed_forward = FeedForward(config)
        self.around_attention, self.around_feed_forward = Residual(config), Residual(config)

    def forward(
        self, x: Tensor, frame: Frame, output_attentions: bool = False
    ) -> tuple[Tensor, Tensor | None]:  # (B, L, E), and the weights (B, H, L, L) if they were asked for
        mixed, weights = self.attention(self.around_attention.enter(x), frame, None, output_attentions)
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
        x: Tensor,  # (B, Lq, E)
        memory: Tensor,  # (B, Lk, E), the encoded source
        frame: Frame,
        cross_frame: Frame,
        past_key_values: EncoderDecoderCache | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:  # (B, Lq, E), weights of both attentions if asked for
        mixed, weights = self.attention(self.around_attention.enter(x), frame, past_key_values, output_attentions)
        x = self.around_attention.leave(x, mixed)
        mixed, cross_weights = self.cross_attention(
            self.around_cross_attention.enter(x), memory, cross_frame, past_key_values, output_attentions
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

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # (B, L, E) to q, k, v (B, H, L, D)
        q, k, v = self.qkv(x).unflatten(-1, (3, *self.heads)).permute(2, 0, 3, 1, 4)
        return q, k, v

    def forward(
        self, x: Tensor, frame: Frame, cache: EncoderDecoderCache | None, output_attentions: bool
    ) -> tuple[Tensor, Tensor | None]:
        q, k, v = self.project(x)
        q, k = frame.rotate(q, k, self.index)  # keys are turned before they join the cache
        if cache is not None:
            k, v = cache.self_attention_cache.update(k, v, self.index)
        dropout = self.dropout if self.training else 0.0
        mixed, weights = attend(q, k, v, frame, self.index, self.causal, dropout, output_attentions)
        return self.output(mixed.transpose(1, 2).flatten(2)), weights


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

    def project(self, x: Tensor) -> Tensor:  # (B, Lq, E) to (B, H, Lq, D)
        q: Tensor = self.query(x).unflatten(-1, self.heads).transpose(1, 2)
        return q

    def project_memory(self, memory: Tensor) -> tuple[Tensor, Tensor]:  # (B, Lk, E) to k, v (B, H, Lk, D)
        k, v = self.key_value(memory).unflatten(-1, (2, *self.heads)).permute(2, 0, 3, 1, 4)
        return k, v

    def forward(
        self, x: Tensor, memory: Tensor, frame: Frame, cache: EncoderDecoderCache | None, output_attentions: bool
    ) -> tuple[Tensor, Tensor | None]:
        if cache is not None and cache.is_updated.get(self.index):
            kept = cache.cross_attention_cache.layers[self.index]
            k, v = kept.keys, kept.values
        else:
            k, v = self.project_memory(memory)
            if cache is not None:
                k, v = cache.cross_attention_cache.update(k, v, self.index)
                cache.is_updated[self.index] = True
        dropout = self.dropout if self.training else 0.0
        mixed, weights = attend(self.project(x), k, v, frame, self.index, False, dropout, output_attentions)
        return self.output(mixed.transpose(1, 2).flatten(2)), weights


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


def attend(
    q: Tensor, k: Tensor, v: Tensor, frame: Frame, layer: int, causal: bool, dropout: float, output_attentions: bool
) -> tuple[Tensor, Tensor | None]:  # (B, H, Lq, D), and the weights (B, H, Lq, Lk) if they were asked for
    arguments: dict[str, Any] = {
        "bias": frame.bias(layer),
        "value_bias": frame.value_bias(layer),
        "mask": frame.mask,
        "causal": causal,
        "lengths": frame.lengths,
        "documents": None,
        "scale": frame.scale,
        "dropout": dropout,
    }
    if output_attentions:
        return weighted(checked(q, k, v, **arguments))
    return attention(q, k, v, **arguments), None
