"""Text to batches. The built-in language needs no download and imports nothing but the standard library."""

from headway.data.language import Controls, Language
from headway.data.language_tasks import (
    Corruption,
    EntailmentPair,
    SimilarityPair,
    SpanQuestion,
    corrupt,
    entailment_pair,
    question,
    similarity_pair,
)
from headway.data.sentence import Agreement, Role, Roles, Sentence

__all__ = [
    "Agreement",
    "Controls",
    "Corruption",
    "EntailmentPair",
    "Language",
    "Role",
    "Roles",
    "Sentence",
    "SimilarityPair",
    "SpanQuestion",
    "corrupt",
    "entailment_pair",
    "question",
    "similarity_pair",
]
