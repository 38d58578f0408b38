"""What heads do on real texts: the ranks of their scores, and what they attend to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.pretrained.analysis.anatomy import Reading
from headway.pretrained.analysis.arrays import Array
from headway.pretrained.analysis.blocks import Whole
from headway.pretrained.analysis.hidden_states import check_runs
from headway.pretrained.analysis.patterns import Patterns, attention_patterns, averaged, softmax, stacked
from headway.pretrained.analysis.rank import TextRanks, over_texts, ranks
from headway.pretrained.analysis.text_scores import text_scores

SHORTEST = 3  # tokens a text must have
USUAL = 128  # tokens that a longer text is cut to

Tokens = tuple[Array, Array | None]  # ids of a text's tokens, and of their segments in models that have segments


@dataclass(frozen=True, eq=False)
class SameToken:
    """Attention of tokens that a text has more than once to where else they stand in it; mean over such tokens."""

    share: Array  # (layers, H)
    chance: float  # what attention to every token alike would give


@dataclass(frozen=True, eq=False)
class TextMeasures:
    """Measures over T texts."""

    ranks: TextRanks
    patterns: Patterns  # (layers, H), mean over the texts
    kinds: Array  # (layers, H), of strings
    same_token: SameToken | None  # None where no text has a token twice


def measure_texts(
    reading: Reading,
    tokenizer: Any,
    texts: Sequence[str],
    *,
    length: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> TextMeasures:
    """Ranks and patterns on texts, each cut to `length` tokens: 128, or what the model has room for, unless given."""
    return measure_tokens(reading, tokenized(reading, tokenizer, texts, length), progress=progress)


def measure_tokens(
    reading: Reading, tokens: Sequence[Tokens], *, progress: Callable[[int], None] | None = None
) -> TextMeasures:
    """The same on texts that were tokenized; one text's matrices are held at a time."""
    found, patterns, repeated = [], [], []
    for number, (ids, segments) in enumerate(tokens):
        scores = text_scores(reading, ids, segments)
        found.append({kind: ranks(np.stack(layers)) for kind, layers in scores.items()})
        whole = [attention_patterns(Whole(layer), causal=reading.causal) for layer in scores["whole"]]
        patterns.append(stacked(whole))
        repeated.append(_to_same_token(scores["whole"], ids, causal=reading.causal))
        if progress is not None:
            progress(number)
    mean = averaged(patterns)
    return TextMeasures(
        ranks=over_texts(
            found,
            lengths=[len(ids) for ids, _ in tokens],
            head_dim=reading.layers[0].head_dim,
            adds_to_scores=reading.bias_of(0, SHORTEST) is not None or reading.segment_scores is not None,
        ),
        patterns=mean,
        kinds=mean.kinds(),
        same_token=_mean_over_tokens(repeated),
    )


def _to_same_token(scores: Sequence[Array], ids: Array, *, causal: bool) -> tuple[Array, float, int]:
    """Sums over the tokens that stand elsewhere too: of their shares, (layers, H), and of chance; and how many."""
    same = ids[:, None] == ids[None, :]
    np.fill_diagonal(same, False)
    rows = np.arange(len(ids)) if causal else None
    if rows is not None:
        same &= rows[None, :] <= rows[:, None]
    keys = np.full(len(ids), len(ids)) if rows is None else rows + 1
    count = same.sum(axis=-1)
    shares = [(softmax(layer, rows) * same).sum(axis=(1, 2)) for layer in scores]
    return np.stack(shares), float((count / keys).sum()), int((count > 0).sum())


def _mean_over_tokens(found: Sequence[tuple[Array, float, int]]) -> SameToken | None:
    tokens = sum(count for *_, count in found)
    if not tokens:
        return None
    share = sum((shares for shares, *_ in found), start=np.zeros(1)) / tokens
    return SameToken(share=share, chance=sum(chance for _, chance, _ in found) / tokens)


def tokenized(reading: Reading, tokenizer: Any, texts: Sequence[str], length: int | None) -> list[Tokens]:
    """Each text that has enough tokens."""
    check_runs(reading)
    if isinstance(texts, str):
        raise TypeError("texts: expected a list of texts, got one string. Wrap it in a list.")
    if length is None:
        length = min(USUAL, reading.limit or USUAL)
    if reading.limit is not None and length > reading.limit:
        raise ValueError(f"text_length: expected at most {reading.limit} (the model's positions), got {length}.")
    takes_segments = reading.segments is not None or reading.segment_scores is not None
    found = []
    for text in texts:
        encoded = tokenizer(text, truncation=True, max_length=length)
        ids = np.array(encoded["input_ids"])
        if len(ids) and ids.max() >= len(reading.words):
            raise ValueError(
                f"tokenizer: expected ids below {len(reading.words)} (the model's words), got {ids.max()}. "
                f"Give the tokenizer the model was trained with."
            )
        segments = encoded.get("token_type_ids") if takes_segments else None
        if text.strip() and len(ids) >= SHORTEST:
            found.append((ids, None if segments is None else np.array(segments)))
    if not found:
        raise ValueError(f"texts: expected at least one text of {SHORTEST} tokens or more, got {len(texts)} without.")
    return found
