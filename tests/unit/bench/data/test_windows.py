"""Questions with long texts: windows, labels, and what is left out."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from headway.bench.data.text.tokenizers import train_tokenizer
from headway.bench.data.transfer.spec import Answer, Question
from headway.bench.data.transfer.windows import NOWHERE, windows


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text("\n".join(" ".join(f"w{at}" for at in range(60)) + " who is it ?" for _ in range(2)))
    return train_tokenizer(str(path), kind="word")


def ask(context, answer, question="who is it ?"):
    return Question("q", question, context, (Answer(answer, context.index(answer)),))


CONTEXT = " ".join(f"w{at}" for at in range(40))


def test_windows_overlap_and_cover_the_text(tokenizer):
    made = windows(tokenizer, [ask(CONTEXT, "w20")], length=20, overlap=4, max_question=8)
    covered = [tuple(CONTEXT[a:b] for a, b in made.spans(window)) for window in range(len(made))]
    assert all(before[-4:] == after[:4] for before, after in pairwise(covered))
    assert list(dict.fromkeys(word for window in covered for word in window)) == CONTEXT.split()
    assert (made.lengths <= 20).all()
    assert made.question.tolist() == [0] * len(made)


def test_labels_point_at_the_answer_or_nowhere(tokenizer):
    made = windows(tokenizer, [ask(CONTEXT, "w20 w21 w22")], length=20, overlap=4, max_question=8)
    found = 0
    for window, (begin, end) in enumerate(made.labels):
        if (begin, end) == NOWHERE:
            continue
        spans, first = made.spans(window), made.first[window]
        assert CONTEXT[spans[begin - first, 0] : spans[end - first, 1]] == "w20 w21 w22"
        tokens = made.tokens[made.bounds[window] : made.bounds[window + 1]]
        assert tokenizer.decode(tokens[begin : end + 1]) == "w20 w21 w22"
        found += 1
    assert 1 <= found < len(made)


def test_an_answer_longer_than_the_overlap_may_be_in_no_window(tokenizer):
    long = " ".join(f"w{at}" for at in range(5, 30))
    made = windows(tokenizer, [ask(CONTEXT, long)], length=20, overlap=4, max_question=8)
    assert (made.labels == NOWHERE).all()


def test_long_questions_are_cut_and_white_space_before_them_does_not_count(tokenizer):
    wordy = "   " + " ".join(["who is it ?"] * 20)
    made = windows(tokenizer, [ask(CONTEXT, "w20", wordy)], length=24, overlap=4, max_question=8)
    assert (made.first == 1 + 8 + 1).all()
    assert (made.segments[made.bounds[0] : made.bounds[1]] == np.repeat([0, 1], [10, 14])).all()


def test_a_cut_inside_a_word_is_covered_by_whole_tokens(tokenizer):
    context = "w1 w2 w34 w5"
    made = windows(tokenizer, [ask(context, "34")], length=20, overlap=4, max_question=8)
    begin, end = made.labels[0]
    assert begin == end
    assert context[slice(*made.spans(0)[begin - made.first[0]])] == "w34"


def test_an_overlap_without_room_is_named(tokenizer):
    with pytest.raises(ValueError, match=r"overlap: expected less than 9 \(length 20 less 8 tokens .*, got 9"):
        windows(tokenizer, [ask(CONTEXT, "w20")], length=20, overlap=9, max_question=8)


def test_a_length_without_room_is_named(tokenizer):
    with pytest.raises(ValueError, match=r"length: expected at least 12 \(8 tokens of question, .*, got 11"):
        windows(tokenizer, [ask(CONTEXT, "w20")], length=11, overlap=0, max_question=8)
    assert len(windows(tokenizer, [ask("w20", "w20")], length=12, overlap=0, max_question=8)) == 1


def test_questions_without_answer_are_labelled_nowhere(tokenizer):
    made = windows(tokenizer, [Question("q", "who ?", CONTEXT, ())], length=20, overlap=4, max_question=8)
    assert (made.labels == NOWHERE).all()
