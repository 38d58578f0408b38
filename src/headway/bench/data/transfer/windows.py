"""Questions with their texts as tokens: a long text is cut into windows that overlap.

Paper:  Devlin et al. (2019), Sec. 4.2, question and text as one sequence, windows as in their code
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.bench.data.transfer.encoded import CHUNK, Encoded, flat
from headway.bench.data.transfer.spec import Question

NOWHERE = (0, 0)  # the first token stands for "no answer in this window"


@dataclass(frozen=True, kw_only=True)
class Windows(Encoded):
    """Windows of all questions; W windows have C tokens of text in all.

    Args:
        question: (W,) index of the question of each window.
        first: (W,) index of the first token of the text.
        offsets: (C, 2) start and end character in the text of each of its tokens.
        text_bounds: (W + 1,) bounds of the tokens of each window in `offsets`.
    """

    question: NDArray[np.int64]
    first: NDArray[np.int64]
    offsets: NDArray[np.int32]
    text_bounds: NDArray[np.int64]

    def spans(self, window: int) -> NDArray[np.int32]:  # (tokens of the text, 2)
        return self.offsets[self.text_bounds[window] : self.text_bounds[window + 1]]


def windows(tokenizer: Any, questions: Sequence[Question], *, length: int, overlap: int, max_question: int) -> Windows:
    """Cut all questions into windows, each labelled with the first answer if the window holds the whole answer.

    Args:
        length: number of tokens in a window, question and special tokens included.
        overlap: number of text tokens that a window shares with the one before, which is also the longest answer that
            is always whole in one of them; transformers calls it stride.
        max_question: maximum number of tokens of a question; the rest is left out.
    """
    if not tokenizer.is_fast:
        raise ValueError(f"tokenizer: expected a fast one, which gives the offsets of tokens, got {type(tokenizer)}.")
    beside = max_question + tokenizer.num_special_tokens_to_add(pair=True)
    room = length - beside
    if room < 1:
        raise ValueError(
            f"length: expected at least {beside + 1} ({max_question} tokens of question, the special ones and one of "
            f"the text), got {length}. Raise it."
        )
    if overlap >= room:
        raise ValueError(
            f"overlap: expected less than {room} (length {length} less {max_question} tokens of question and the "
            f"special ones), got {overlap}. Lower it, or raise length."
        )
    rows: list[list[int]] = []
    segments: list[list[int]] = []
    owners, firsts, offsets, labels = [], [], [], []
    for start in range(0, len(questions), CHUNK):
        some = questions[start : start + CHUNK]
        made = tokenizer(
            _cut(tokenizer, [each.question.strip() for each in some], max_question),
            [each.context for each in some],
            truncation="only_second",
            max_length=length,
            stride=overlap,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_token_type_ids=True,
        )
        rows += made["input_ids"]
        segments += made["token_type_ids"]
        for number, owner in enumerate(made["overflow_to_sample_mapping"]):
            ids = made.sequence_ids(number)
            count = ids.count(1)
            first = ids.index(1) if count else 0
            spans = np.array(made["offset_mapping"][number][first : first + count], np.int32).reshape(-1, 2)
            owners.append(start + owner)
            firsts.append(first)
            offsets.append(spans)
            labels.append(label(some[owner], spans, first))
    encoded = flat(rows, segments, labels=np.array(labels, np.int64), pad=tokenizer.pad_token_id)
    return Windows(
        **vars(encoded),
        question=np.array(owners, np.int64),
        first=np.array(firsts, np.int64),
        offsets=np.concatenate(offsets),
        text_bounds=np.cumsum([0, *map(len, offsets)]),
    )


def label(question: Question, spans: NDArray[np.int32], first: int) -> tuple[int, int]:
    """Return first and last token of the question's first answer, or `NOWHERE` if the window does not hold it all."""
    if not question.answers or not len(spans):
        return NOWHERE
    answer = question.answers[0]
    end = answer.start + len(answer.text)
    if answer.start < spans[0, 0] or end > spans[-1, 1]:
        return NOWHERE
    begins = int(np.searchsorted(spans[:, 1], answer.start, side="right"))  # the first token that ends after its start
    ends = int(np.searchsorted(spans[:, 0], end, side="left")) - 1  # the last that begins before its end
    return (first + begins, first + ends) if begins <= ends else NOWHERE


def _cut(tokenizer: Any, texts: list[str], most: int) -> list[str]:
    """Truncate texts after so many tokens."""
    made = tokenizer(texts, add_special_tokens=False, truncation=True, max_length=most, return_offsets_mapping=True)
    return [
        text[: offsets[-1][1]] if len(offsets) == most else text
        for text, offsets in zip(texts, made["offset_mapping"], strict=True)
    ]
