"""How far verb forms can be told without word order: measured, and well below the true rule."""

from __future__ import annotations

from collections import Counter
from math import log

import pytest

from headway.bench.data import Language, Sentence
from headway.bench.data.language.grammar import Agreement


def numbers(sentence: Sentence, end: int | None = None) -> list[bool]:
    return [token.plural for token in sentence.tokens[:end] if token.category == "noun"]


def nearest_noun(sentence: Sentence, agreement: Agreement) -> float:
    return float(numbers(sentence, agreement.verb)[-1] == agreement.plural)


def majority_of_nouns(sentence: Sentence, agreement: Agreement) -> float:
    margin = sum(1 if plural else -1 for plural in numbers(sentence))
    return 0.5 if margin == 0 else float((margin > 0) == agreement.plural)


def head_noun(sentence: Sentence, agreement: Agreement) -> float:
    """By the spelling alone: a plural noun ends in s, a plural verb does not."""
    verb = sentence.words[agreement.verb]
    return float(sentence.words[agreement.noun].endswith("s") == (verb == "are" or not verb.endswith("s")))


def accuracy(rule, positions) -> float:
    return sum(rule(*position) for position in positions) / len(positions)


POSITIONS = [(sentence, each) for sentence in Language().sentences(5000, seed=1) for each in sentence.agreements]


def test_head_noun_always_decides():
    assert accuracy(head_noun, POSITIONS) == 1.0


def test_numbers_are_balanced():
    main = [each.plural for sentence, each in POSITIONS if each == sentence.main]
    assert abs(sum(main) / len(main) - 0.5) < 0.02


@pytest.mark.parametrize(
    ("where", "share", "nearest", "majority"),
    [
        (lambda sentence, each: True, 1.0, 0.85, 0.78),
        (lambda sentence, each: each == sentence.main and each.distance > 1, 0.2, 0.56, 0.75),
        (lambda sentence, each: each.attracted, 0.18, 0.3, 0.62),
    ],
    ids=["all", "main verbs at a distance", "attracted"],
)
def test_nearest_noun_and_majority_stay_below(where, share, nearest, majority):
    chosen = [position for position in POSITIONS if where(*position)]
    assert len(chosen) >= share * len(POSITIONS)
    assert accuracy(nearest_noun, chosen) < nearest
    assert accuracy(majority_of_nouns, chosen) < majority


def naive_bayes(examples: list[tuple[Counter, bool]]) -> float:
    """Held-out accuracy of naive Bayes on bags of words."""
    train, test = examples[::2], examples[1::2]
    seen = {plural: Counter() for plural in (False, True)}
    for bag, plural in train:
        seen[plural].update(bag)
    total = {plural: sum(counts.values()) for plural, counts in seen.items()}

    def evidence(word: str) -> float:
        return log((seen[True][word] + 1) / total[True]) - log((seen[False][word] + 1) / total[False])

    right = [(sum(n * evidence(word) for word, n in bag.items()) > 0) == plural for bag, plural in test]
    return sum(right) / len(right)


def test_bag_of_words_is_at_chance_with_one_noun_of_each_number():
    """One verb agrees, and two nouns might be its head. The same bags decide where both have one number."""
    mixed, equal = [], []
    for sentence in Language(nouns=8, verbs=4, adjectives=4, max_depth=1).sentences(12_000, seed=2):
        if len(sentence.agreements) == 1 and len(numbers(sentence)) == 2:
            verb = sentence.main.verb
            bag = Counter(sentence.words[:verb] + sentence.words[verb + 1 :])
            (equal if len(set(numbers(sentence))) == 1 else mixed).append((bag, sentence.main.plural))
    assert min(len(mixed), len(equal)) > 1000
    assert abs(naive_bayes(mixed) - 0.5) < 0.05
    assert naive_bayes(equal) > 0.99
