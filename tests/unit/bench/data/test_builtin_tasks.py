"""The built-in language's tasks under the interface of GLUE and XTREME."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from headway.bench.data.transfer.builtin import BUILTIN, SIZES, make
from headway.bench.data.transfer.spec import Example, Question
from headway.bench.data.transfer.tasks import find_task, load


@cache
def made(name, split, language):
    return load(find_task(name), split=split, language=language).examples


def examples(name, split, language=None):
    return made(name, split, language or find_task(name).languages[0])


def key(example):
    return (example.question, example.context) if isinstance(example, Question) else (example.first, example.second)


@pytest.mark.parametrize("name", [task.name for task in BUILTIN])
def test_splits_have_their_sizes_and_share_no_example(name):
    seen = set()
    for split, size in SIZES.items():
        found = examples(name, split)
        assert len(found) == size
        keys = {key(example) for example in found}
        assert len(keys) == size
        assert not keys & seen
        seen |= keys


@pytest.mark.parametrize("name", [task.name for task in BUILTIN])
def test_languages_ask_the_same_in_other_words(name):
    first, *others = (examples(name, "dev", language) for language in find_task(name).languages)
    for other in others:
        assert {key(each) for each in first}.isdisjoint(key(each) for each in other)
        if not isinstance(first[0], Question):
            assert [each.label for each in first] == [each.label for each in other]


@pytest.mark.parametrize("name", ["builtin:acceptability", "builtin:entailment", "builtin:roles", "builtin:similarity"])
def test_labels_are_about_equally_frequent(name):
    counts = Counter(example.label for example in examples(name, "train"))
    share = SIZES["train"] / len(counts)
    assert all(abs(count - share) < 6 * share**0.5 for count in counts.values())


@pytest.mark.parametrize("name", ["builtin:questions", "builtin:role-questions"])
def test_answers_stand_where_they_say(name):
    for language in find_task(name).languages:
        for each in examples(name, "dev", language):
            assert " ".join(each.context.split()) == each.context
            assert len(each.answers[0].text.split()) == 2
            answer = each.answers[0]
            assert each.context[answer.start : answer.start + len(answer.text)] == answer.text
            before = each.context[: answer.start]
            assert not before or before.endswith(" ")


def test_an_unknown_language_is_named():
    with pytest.raises(ValueError, match="language: expected one of english, invented, got 'verb-final'"):
        load(find_task("builtin:questions"), language="verb-final")


def test_a_task_that_has_too_few_examples_says_so():
    def three(draw, name):
        return Example(name, f"sentence {draw.rng.randrange(3)} .", None, 0)

    with pytest.raises(ValueError, match="three: expected 1000 different examples for test, got 3 in 20000 draws"):
        make(three, "train", "english")
