"""Text to batches.

The built-in language needs no download and nothing but the standard library; what needs numpy, torch, tokenizers or
datasets is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headway.data.language.labelled import (
    Corruption,
    EntailmentPair,
    SimilarityPair,
    SpanQuestion,
    corrupt,
    entailment_pair,
    question,
    similarity_pair,
)
from headway.data.language.language import Controls, Language
from headway.data.language.sentence import Agreement, Role, Roles, Sentence

if TYPE_CHECKING:
    from headway.data.mlm.batches import EvaluationBatches, MlmBatches
    from headway.data.mlm.shard_build import build_shards
    from headway.data.mlm.shards import Shards
    from headway.data.text.corpora import Corpus, open_corpus
    from headway.data.text.tokenizers import train_tokenizer

_HOMES = {
    "Corpus": "headway.data.text.corpora",
    "open_corpus": "headway.data.text.corpora",
    "train_tokenizer": "headway.data.text.tokenizers",
    "build_shards": "headway.data.mlm.shard_build",
    "Shards": "headway.data.mlm.shards",
    "MlmBatches": "headway.data.mlm.batches",
    "EvaluationBatches": "headway.data.mlm.batches",
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
        raise AttributeError(f"module 'headway.data' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
