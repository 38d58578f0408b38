"""Text to batches.

The built-in language needs no download and nothing but the standard library; what needs numpy, torch, tokenizers or
datasets is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headway.bench.data.language.grammar import Agreement, Role, Roles, Sentence
from headway.bench.data.language.labelled import (
    Corruption,
    EntailmentPair,
    SimilarityPair,
    SpanQuestion,
    corrupt,
    entailment_pair,
    question,
    similarity_pair,
)
from headway.bench.data.language.language import Controls, Language

if TYPE_CHECKING:
    from headway.bench.data.mlm.batches import EvaluationBatches, MlmBatches
    from headway.bench.data.mlm.shard_build import build_shards
    from headway.bench.data.mlm.shards import Shards
    from headway.bench.data.text.corpora import Corpus, open_corpus
    from headway.bench.data.text.tokenizers import train_tokenizer

_HOMES = {
    "Corpus": "headway.bench.data.text.corpora",
    "open_corpus": "headway.bench.data.text.corpora",
    "train_tokenizer": "headway.bench.data.text.tokenizers",
    "build_shards": "headway.bench.data.mlm.shard_build",
    "Shards": "headway.bench.data.mlm.shards",
    "MlmBatches": "headway.bench.data.mlm.batches",
    "EvaluationBatches": "headway.bench.data.mlm.batches",
}

__all__ = [
    "Agreement",
    "Controls",
    "Corpus",
    "Corruption",
    "EntailmentPair",
    "EvaluationBatches",
    "Language",
    "MlmBatches",
    "Role",
    "Roles",
    "Sentence",
    "Shards",
    "SimilarityPair",
    "SpanQuestion",
    "build_shards",
    "corrupt",
    "entailment_pair",
    "open_corpus",
    "question",
    "similarity_pair",
    "train_tokenizer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'headway.bench.data' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
