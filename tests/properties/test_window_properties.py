"""Answers survive being cut into windows and found again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.bench.data.text.tokenizers import train_tokenizer
from headway.bench.data.transfer.spec import Answer, Question
from headway.bench.data.transfer.windows import NOWHERE, windows
from headway.bench.tasks.finetune.spans import best_answers

WORDS = ("cat", "catfish", "sat", "mat,", "(the", "hat)", "été", "北京大学", "Don't", "2019", "ﬁsh", "ＡＢ")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    """Word pieces, lower case, accents dropped: tokens and words of the text differ in every way."""
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text("\n".join(" ".join(WORDS) for _ in range(3)))
    return train_tokenizer(str(path), kind="wordpiece", vocab_size=60)


@settings(max_examples=60)
@given(data=st.data())
def test_an_answer_of_up_to_the_overlap_is_whole_in_a_window_and_found_there(tokenizer, data):
    words = data.draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=40))
    gaps = data.draw(st.lists(st.sampled_from([" ", "  ", "\n", "\t"]), min_size=len(words), max_size=len(words)))
    begin = data.draw(st.integers(0, len(words) - 1))
    end = data.draw(st.integers(begin + 1, min(begin + 3, len(words))))
    starts = np.cumsum([0, *(len(word) + len(gap) for word, gap in zip(words, gaps, strict=True))])
    context = "".join(word + gap for word, gap in zip(words, gaps, strict=True))
    text = context[starts[begin] : starts[end - 1] + len(words[end - 1])]
    question = Question("q", "sat cat", context, (Answer(text, int(starts[begin])),))

    length = len(tokenizer(text, add_special_tokens=False)["input_ids"])
    room = length + data.draw(st.integers(1, 20))
    made = windows(tokenizer, [question], length=room + 3 + 8, overlap=length, max_question=8)
    holds = (made.labels != NOWHERE).any(1)
    assert holds.any()

    scores = []
    for window, (first, last) in enumerate(made.labels):
        found = np.zeros((made.lengths[window], 2), np.float32)
        if holds[window]:
            found[first, 0] = found[last, 1] = 1.0
        scores.append(found)
    best = best_answers([question], made, scores, count=5, max_tokens=length)["q"][0]
    assert (best.text, best.start) == (text, starts[begin])
    assert context[best.start : best.end] == text
