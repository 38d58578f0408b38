"""From scores of tokens to answers: exact search, windows, original text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from headway.bench.data.transfer.spec import Question
from headway.bench.data.transfer.windows import Windows
from headway.bench.tasks.finetune.spans import best_answers, best_spans


def by_trying_all(scores, max_tokens):
    found = []
    for begin in range(len(scores)):
        for end in range(begin, min(begin + max_tokens, len(scores))):
            found.append((begin, end, float(scores[begin, 0] + scores[end, 1])))
    return sorted(found, key=lambda each: -each[2])


@given(
    scores=arrays(np.float32, st.tuples(st.integers(0, 12), st.just(2)), elements=st.integers(-4, 4)),
    count=st.integers(1, 30),
    max_tokens=st.integers(1, 14),
)
def test_the_search_is_exact(scores, count, max_tokens):
    assert best_spans(scores, count=count, max_tokens=max_tokens) == by_trying_all(scores, max_tokens)[:count]


def one_window(words, question=0, first=2, start=0):
    """A window whose text is those words, in front of it two other tokens."""
    offsets, at = [], start
    for word in words:
        offsets.append((at, at + len(word)))
        at += len(word) + 1
    return {"question": question, "first": first, "offsets": np.array(offsets, np.int32)}


def put_together(*made):
    size = [each["first"] + len(each["offsets"]) + 1 for each in made]
    return Windows(
        tokens=np.zeros(sum(size), np.int32),
        segments=np.zeros(sum(size), np.uint8),
        bounds=np.cumsum([0, *size]),
        labels=np.zeros((len(made), 2), np.int64),
        pad=0,
        question=np.array([each["question"] for each in made]),
        first=np.array([each["first"] for each in made]),
        offsets=np.concatenate([each["offsets"] for each in made]),
        text_bounds=np.cumsum([0, *(len(each["offsets"]) for each in made)]),
    )


def scores(length, begins, ends):
    found = np.full((length, 2), -9.0, np.float32)
    for at, value in begins.items():
        found[at, 0] = value
    for at, value in ends.items():
        found[at, 1] = value
    return found


def test_the_best_window_wins_and_answers_are_in_the_words_of_the_text():
    question = Question("q", "?", "Red  cats sleep here", ())
    windows = put_together(one_window(["Red", "", "cats"]), one_window(["cats", "sleep", "here"], start=5))
    first = scores(6, {2: 5.0, 0: 99.0}, {4: 1.0, 1: 99.0})  # the question's own tokens do not count
    second = scores(6, {2: 4.0}, {3: 4.0})
    found = best_answers([question], windows, [first, second], count=3, max_tokens=10)["q"]
    assert (found[0].text, found[0].start, found[0].end) == ("cats sleep", 5, 15)
    assert found[0].score == 8.0
    assert found[1].text == "Red  cats"
    assert len({each.text for each in found}) == len(found) == 3


def test_answers_have_a_greatest_length_and_run_forwards():
    question = Question("q", "?", "a b c d e", ())
    windows = put_together(one_window(list("abcde")))
    wanted = scores(8, {2: 5.0, 6: 5.0}, {6: 5.0, 3: 4.0})
    assert best_answers([question], windows, [wanted], count=1, max_tokens=5)["q"][0].text == "a b c d e"
    assert best_answers([question], windows, [wanted], count=2, max_tokens=2)["q"][0].text == "e"
    backwards = scores(8, {5: 5.0}, {3: 5.0})
    found = best_answers([question], windows, [backwards], count=1, max_tokens=5)["q"][0]
    assert found.score == pytest.approx(-4.0)


def test_questions_without_text_have_no_answer():
    question = Question("q", "?", "x", ())
    windows = put_together({"question": 0, "first": 0, "offsets": np.zeros((0, 2), np.int32)})
    assert best_answers([question], windows, [scores(1, {}, {})], count=5, max_tokens=5) == {"q": []}


def test_white_space_in_tokens_is_no_part_of_an_answer():
    question = Question("q", "?", "a cat", ())
    windows = put_together({"question": 0, "first": 0, "offsets": np.array([[0, 1], [1, 5]], np.int32)})
    found = best_answers([question], windows, [scores(3, {1: 3.0}, {1: 3.0})], count=1, max_tokens=5)["q"][0]
    assert (found.text, found.start, found.end) == ("cat", 2, 5)
