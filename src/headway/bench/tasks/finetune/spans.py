"""Search of the best answers, from scores that an answer begins or ends at a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from headway.bench.data.transfer.spec import Question
from headway.bench.data.transfer.windows import Windows


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible answer: characters `start` to `end` of the text, and the sum of the scores of its ends."""

    text: str
    start: int
    end: int
    score: float


def best_answers(
    questions: Sequence[Question],
    windows: Windows,
    scores: Sequence[NDArray[np.float32]],  # of each window, (L, 2): that an answer begins, ends at a token
    *,
    count: int,
    max_tokens: int,
) -> dict[str, list[Candidate]]:
    """Return the best answers of each question over all its windows, by id, best first.

    The search is exact: it compares all spans of up to `max_tokens` tokens in all windows by the sum of the scores of
    their ends. A text that several spans have counts once.

    Args:
        count: largest number of answers of a question.
    """
    found: list[list[Candidate]] = [[] for _ in questions]
    for window, ends in enumerate(scores):
        owner = int(windows.question[window])
        first, spans = int(windows.first[window]), windows.spans(window)
        text = questions[owner].context
        for begin, end, score in best_spans(ends[first : first + len(spans)], count=count, max_tokens=max_tokens):
            found[owner].append(_candidate(text, int(spans[begin, 0]), int(spans[end, 1]), score))
    return {question.id: _distinct(each, count) for question, each in zip(questions, found, strict=True)}


def best_spans(
    scores: NDArray[np.float32],  # (n, 2)
    *,
    count: int,
    max_tokens: int,
) -> list[tuple[int, int, float]]:
    """Return the best `count` spans of up to `max_tokens` tokens as (first, last, score), best and leftmost first."""
    if not len(scores):
        return []
    reach = min(max_tokens, len(scores))
    ends = np.concatenate([scores[:, 1], np.full(reach - 1, -np.inf, scores.dtype)])
    sums = (scores[:, :1] + sliding_window_view(ends, reach)).ravel()  # (n, reach): the second axis is length - 1
    kept = min(count, len(sums))
    bound = np.partition(sums, -kept)[-kept]
    best = np.flatnonzero((sums >= bound) & np.isfinite(sums))
    best = best[np.argsort(-sums[best], kind="stable")][:count]
    return [(int(at // reach), int(at // reach + at % reach), float(sums[at])) for at in best]


def _candidate(text: str, start: int, end: int, score: float) -> Candidate:
    """Make a candidate without white space at its ends, which some tokenizers count among a token's characters."""
    span = text[start:end]
    start += len(span) - len(span.lstrip())
    span = span.strip()
    return Candidate(span, start, start + len(span), score)


def _distinct(candidates: list[Candidate], count: int) -> list[Candidate]:
    kept: dict[str, Candidate] = {}
    for candidate in sorted(candidates, key=lambda each: -each.score):
        kept.setdefault(candidate.text, candidate)
    return list(kept.values())[:count]
