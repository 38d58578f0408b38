"""The layers of BERT (Devlin et al. 2019, Sec. 3), with position wherever the encoding puts it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from headway.attention.linformer import projected
from headway.models.config import EncoderConfig
from headway.models.context import ForwardContext
from headway.models.norm import LayerNorm
from headway.models.padding import keep_mask


class EncoderLayer(GradientCheckpointingLayer):  # type: ignore[misc]
    """Attention and feed-forward layer, each followed by dropout, the residual sum and LayerNorm."""

    def __init__(self, config: EncoderConfig, index: int) -> None:
        super().__init__()
        self.attention = SelfAttention(config, index)
        self.attention_norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)
        self.norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        x: Tensor,  # (B, L, E)
        context: ForwardContext,
        projection: LengthProjection | None = None,
        output_attentions: bool = False,
    ) -> tuple[Tensor, Tensor | None]:  # (B, L, E), and the weights (B, H, L, Lk) if asked for
        mixed, weights = self.attention(x, context, projection, output_attentions)
        x = self.attention_norm(x + self.dropout(mixed))
        x = self.norm(x + self.dropout(self.down(F.gelu(self.up(x)))))
        return x, weights


class SelfAttention(nn.Module):
    """Multi-head self-attention; the encoding may rotate q and k, and add to scores and values.

    With attention="synthesizer" there are no q and k, and the scores are the encoding's alone (Tay et al. 2021).
    """

    def __init__(self, config: EncoderConfig, index: int) -> None:
        super().__init__()
        self.index = index
        self.heads = (config.num_attention_heads, config.head_dim)
        self.dropout = config.attention_probs_dropout_prob
        self.has_queries = config.attention != "synthesizer"
        if self.has_queries:
            self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        else:
            self.v = nn.Linear(config.hidden_size, config.hidden_size)
        self.output = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(
        self, x: Tensor, context: ForwardContext, projection: LengthProjection | None, output_attentions: bool
    ) -> tuple[Tensor, Tensor | None]:
        if self.has_queries:
            q, k, v, qkv = context.split_and_rotate(self.qkv(x).unflatten(-1, (3, *self.heads)), self.index)
        else:
            v, qkv = self.v(x).unflatten(-1, self.heads).transpose(1, 2), None
            q = k = v.detach()  # their product is multiplied by a scale of 0
        if projection is not None:  # the projected keys leave out padding, so that attention needs no mask
            k, v = projection(k, v, self.index, keep_mask(context.lengths, context.mask, context.q_len))
        mixed, weights = context.attend(
            q,
            k,
            v,
            self.index,
            dropout=self.dropout if self.training else 0.0,
            output_attentions=output_attentions,
            no_padding=projection is not None,
            qkv=None if projection is not None else qkv,
        )
        return self.output(mixed.transpose(1, 2).flatten(2)), weights


class LengthProjection(nn.Module):
    """Linformer's projections of keys and values along the length, for all layers.

    Paper:    Wang et al. (2020), "Linformer", Sec. 4
    Symbols:  E, F -> matrix[:, 0], matrix[:, 1], (layers, 2, heads, projected_length, max_length), each axis of size 1
              where it is shared;  k -> projected_length
    Departs:  normal initialisation with standard deviation max_length ** -0.5, so that projected keys have the variance
              of keys in texts of max_length; models are made for the length of their texts. The default sharing,
              "key-value", is that of Chen et al. (2021b), Eq. (4), which has one E for all heads of a layer
    Checked:  tests/parity/test_linformer.py
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        assert config.projected_length is not None  # checked by the configuration
        shared = ("none", "head", "key-value", "layer").index(config.projection_sharing)
        layers = 1 if shared >= 3 else config.num_hidden_layers
        kinds = 1 if shared >= 2 else 2
        heads = 1 if shared >= 1 else config.num_attention_heads
        self.matrix = nn.Parameter(
            torch.empty(layers, kinds, heads, config.projected_length, config.max_position_embeddings)
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.matrix, std=self.matrix.shape[-1] ** -0.5)

    def forward(
        self,
        k: Tensor,  # (B, H, L, D)
        v: Tensor,  # (B, H, L, D)
        layer: int,
        keep: Tensor | None,  # (B, L) boolean
    ) -> tuple[Tensor, Tensor]:  # (B, H, projected_length, D) both
        matrix = self.matrix[layer if len(self.matrix) > 1 else 0]
        return projected(k, matrix[0], keep), projected(v, matrix[-1], keep)


class Pooler(nn.Module):
    """A linear layer and tanh on the first token's hidden state."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:  # (B, L, E) to (B, E)
        pooled: Tensor = self.dense(x[:, 0]).tanh()
        return pooled
