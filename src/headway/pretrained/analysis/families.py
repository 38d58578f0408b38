"""Where each family of Hugging Face models keeps its positions, projections and norms: one row a family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn


@dataclass(frozen=True, kw_only=True)
class Family:
    """Paths of submodules, from the model without a head, or from one layer of it (`query`, `key`, `before`)."""

    words: str = "embeddings.word_embeddings"
    positions: str | None = "embeddings.position_embeddings"
    after_padding: bool = False  # whether position 0 is the row after that of the padding token's id
    segments: str | None = "embeddings.token_type_embeddings"
    norm: str | None = "embeddings.LayerNorm"
    project: str | None = None  # from the width of embeddings to that of the model; may be absent
    layers: Callable[[Any], Sequence[nn.Module]] = lambda model: model.encoder.layer
    query: str = "attention.self.query"
    key: str | None = "attention.self.key"  # None: one module gives queries, keys and values side by side
    before: str | None = None  # the norm between a layer's input and its projections
    scale: Callable[[Any, int, int], float] = lambda config, layer, head_dim: head_dim**-0.5
    buckets: str | None = None  # T5's table of biases: the path in its layer, or in the model where all layers share
    max_distance: Callable[[Any], int] = lambda config: 128
    causal: bool = False
    stacks: bool = False  # whether the paths begin at `encoder` or `decoder`


def _albert_layers(model: Any) -> list[nn.Module]:
    """Every application in turn: ALBERT's layers share modules (Lan et al. 2020, Sec. 3.1)."""
    config, groups = model.config, model.encoder.albert_layer_groups
    per_group = config.num_hidden_layers / config.num_hidden_groups
    return [layer for n in range(config.num_hidden_layers) for layer in groups[int(n / per_group)].albert_layers]


def _gpt2_scale(config: Any, layer: int, head_dim: int) -> float:
    scale = head_dim**-0.5 if config.scale_attn_weights else 1.0
    return scale / (layer + 1) if config.scale_attn_by_inverse_layer_idx else scale


BERT = Family()
ROBERTA = replace(BERT, after_padding=True)
T5 = Family(
    words="embed_tokens",
    positions=None,
    segments=None,
    norm=None,
    layers=lambda stack: stack.block,
    query="layer.0.SelfAttention.q",
    key="layer.0.SelfAttention.k",
    before="layer.0.layer_norm",
    scale=lambda config, layer, head_dim: 1.0,
    buckets="block.0.layer.0.SelfAttention.relative_attention_bias",
    max_distance=lambda config: config.relative_attention_max_distance,
    stacks=True,
)

CONVERTED = (
    "headway-"  # the type of a model that was converted (headway.pretrained.conversion) is this and its family's
)

FAMILIES: dict[str, Family] = {  # by config.model_type; MiniLM's are bert or xlm-roberta
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": ROBERTA,
    "camembert": ROBERTA,
    "electra": replace(BERT, project="embeddings_project"),
    "albert": Family(
        project="encoder.embedding_hidden_mapping_in",
        layers=_albert_layers,
        query="attention.query",
        key="attention.key",
    ),
    "distilbert": Family(
        segments=None,
        layers=lambda model: model.transformer.layer,
        query="attention.q_lin",
        key="attention.k_lin",
    ),
    "mpnet": Family(
        after_padding=True,
        segments=None,
        query="attention.attn.q",
        key="attention.attn.k",
        buckets="encoder.relative_attention_bias",
    ),
    "gpt2": Family(
        words="wte",
        positions="wpe",
        segments=None,
        norm=None,
        layers=lambda model: model.h,
        query="attn.c_attn",
        key=None,
        before="ln_1",
        scale=_gpt2_scale,
        causal=True,
    ),
    "t5": T5,
    "mt5": T5,
    "umt5": replace(T5, buckets="layer.0.SelfAttention.relative_attention_bias"),
}
