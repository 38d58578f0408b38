"""What heads do on real texts: the ranks of their scores, and what they attend to.

Chen et al. (2021b), Sec. 2.3, Theorem 1 and Figs. 2 and 8: position added to the input leaves scores of rank d_h at
most; position added to the scores reaches d_h + d_p. Chen et al. (2021a), Fig. 2, compares words with positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from headway.pretrained.analysis.anatomy import Reading
from headway.pretrained.analysis.hidden_states import check_runs
from headway.pretrained.analysis.matrices import Array, Whole
from headway.pretrained.analysis.patterns import Patterns, attention_patterns, average_patterns, softmax, stack_patterns
from headway.pretrained.analysis.scores import text_scores

RELATIVE = 1e-3  # of the greatest singular value: the tolerance of `relative`
SHORTEST = 3  # tokens a text must have
USUAL = 128  # tokens that a longer text is cut to

Tokens = tuple[Array, Array | None]  # ids of a text's tokens, and of their segments in models that have segments


@dataclass(frozen=True, eq=False)
class Ranks:
    """Ranks of any number of matrices; each field has the shape of their leading axes."""

    numerical: Array  # singular values above L * eps * the greatest (numpy.linalg.matrix_rank, float64)
    relative: Array  # singular values above RELATIVE * the greatest
    effective: Array  # exp of the entropy of the singular values' shares (Roy and Vetterli 2007)


def ranks(matrices: Array) -> Ranks:  # (..., L, L)
    """Compute numerical, relative and effective ranks."""
    with threadpool_limits(1):  # many small matrices: threads would wait for one another
        values = np.linalg.svd(matrices.astype(np.float64), compute_uv=False)
    greatest = values[..., :1]
    noise = greatest * max(matrices.shape[-2:]) * np.finfo(np.float64).eps
    total = values.sum(axis=-1, keepdims=True)
    share = values / np.where(total == 0.0, 1.0, total)
    entropy = -(share * np.log(np.where(share == 0.0, 1.0, share))).sum(axis=-1)
    return Ranks(
        numerical=(values > noise).sum(axis=-1),
        relative=(values > RELATIVE * greatest).sum(axis=-1),
        effective=np.where(total[..., 0] == 0.0, 0.0, np.exp(entropy)),
    )


@dataclass(frozen=True, eq=False)
class TextRanks:
    """Ranks of the scores of each head on each of T texts, by kind: whole, words, positions (see `text_scores`)."""

    lengths: Array  # (T,)
    head_dim: int
    adds_to_scores: bool  # whether the model adds position or segments to its scores
    each: dict[str, Ranks]  # (T, layers, H), of the first layers where a kind is told apart
    average: dict[str, Ranks]  # (layers, H)
    within_theorem: bool | None  # Theorem 1, first part: rank(whole) <= d_h always; None where scores are added to
    beyond_head_dim: float  # share of heads and texts with rank(whole) > d_h, which the second part makes possible


def _gather_ranks(
    texts: Sequence[dict[str, Ranks]],  # of each text, the ranks of each kind, (layers, H)
    *,
    lengths: Sequence[int],
    head_dim: int,
    adds_to_scores: bool,
) -> TextRanks:
    """Gather the ranks of several texts; Theorem 1 says something of texts longer than the head's width alone."""
    each = {
        kind: Ranks(*(np.stack([getattr(text[kind], field.name) for text in texts]) for field in fields(Ranks)))
        for kind in texts[0]
    }
    average = {
        kind: Ranks(*(getattr(ranks, field.name).mean(axis=0) for field in fields(Ranks)))
        for kind, ranks in each.items()
    }
    beyond = each["whole"].numerical > head_dim
    return TextRanks(
        lengths=np.array(lengths),
        head_dim=head_dim,
        adds_to_scores=adds_to_scores,
        each=each,
        average=average,
        within_theorem=None if adds_to_scores else not bool(beyond.any()),
        beyond_head_dim=float(beyond.mean()),
    )


@dataclass(frozen=True, eq=False)
class SameToken:
    """Attention of a token to its other occurrences in the text; mean over all tokens that occur more than once."""

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
    """Measure ranks and patterns on texts, each cut to `length` tokens, or to 128 or the model's positions."""
    return measure_tokens(reading, tokenize(reading, tokenizer, texts, length), progress=progress)


def measure_tokens(
    reading: Reading, tokens: Sequence[Tokens], *, progress: Callable[[int], None] | None = None
) -> TextMeasures:
    """Measure ranks and patterns on tokenized texts; one text's matrices are held at a time."""
    return measure_text_scores(
        ((ids, text_scores(reading, ids, segments)) for ids, segments in tokens),
        head_dim=reading.layers[0].head_dim,
        causal=reading.causal,
        adds_to_scores=reading.bias_of(0, SHORTEST) is not None or reading.segment_scores is not None,
        progress=progress,
    )


def measure_text_scores(
    texts: Iterable[tuple[Array, dict[str, list[Array]]]],  # ids of the tokens, and what `text_scores` returns
    *,
    head_dim: int,
    causal: bool,
    adds_to_scores: bool,
    progress: Callable[[int], None] | None = None,
) -> TextMeasures:
    """Measure ranks and patterns of the scores of texts."""
    found, patterns, repeated, lengths = [], [], [], []
    for number, (ids, scores) in enumerate(texts):
        found.append({kind: ranks(np.stack(layers)) for kind, layers in scores.items()})
        patterns.append(stack_patterns([attention_patterns(Whole(layer), causal=causal) for layer in scores["whole"]]))
        repeated.append(_sum_same_token(scores["whole"], ids, causal=causal))
        lengths.append(len(ids))
        if progress is not None:
            progress(number)
    mean = average_patterns(patterns)
    return TextMeasures(
        ranks=_gather_ranks(found, lengths=lengths, head_dim=head_dim, adds_to_scores=adds_to_scores),
        patterns=mean,
        kinds=mean.kinds(),
        same_token=_mean_over_tokens(repeated),
    )


def _sum_same_token(scores: Sequence[Array], ids: Array, *, causal: bool) -> tuple[Array, float, int]:
    """Sum shares, (layers, H), and chance over the tokens that a text has more than once; return their number too."""
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


def tokenize(reading: Reading, tokenizer: Any, texts: Sequence[str], length: int | None) -> list[Tokens]:
    """Tokenize texts, and return those that have enough tokens."""
    check_runs(reading)
    takes_segments = reading.segments is not None or reading.segment_scores is not None
    return tokenize_texts(
        tokenizer, texts, length, words=len(reading.words), limit=reading.limit, takes_segments=takes_segments
    )


def tokenize_texts(
    tokenizer: Any,
    texts: Sequence[str],
    length: int | None,
    *,
    words: int,
    limit: int | None,
    takes_segments: bool,
) -> list[Tokens]:
    """Tokenize texts for a model with so many words and at most `limit` positions."""
    if isinstance(texts, str):
        raise TypeError("texts: expected a list of texts, got one string. Wrap it in a list.")
    if length is None:
        length = min(USUAL, limit or USUAL)
    if limit is not None and length > limit:
        raise ValueError(f"text_length: the model has {limit} positions, got {length}. Ask for at most {limit}.")
    found = []
    for text in texts:
        encoded = tokenizer(text, truncation=True, max_length=length)
        ids = np.array(encoded["input_ids"])
        if len(ids) and ids.max() >= words:
            raise ValueError(
                f"tokenizer: expected ids below {words} (the model's words), got {ids.max()}. "
                f"Give the tokenizer the model was trained with."
            )
        segments = encoded.get("token_type_ids") if takes_segments else None
        if text.strip() and len(ids) >= SHORTEST:
            found.append((ids, None if segments is None else np.array(segments)))
    if not found:
        raise ValueError(f"texts: expected at least one text of {SHORTEST} tokens or more, got {len(texts)} without.")
    return found
