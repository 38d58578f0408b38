"""Probes from running text: articles apart, the same words under each label, and labels that can be checked by hand."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from headway.bench.data.transfer import probes
from headway.bench.data.transfer.probes import DISTANCES, PROBES, adjacent_words, repeated_word, sentence_order
from headway.bench.data.transfer.spec import Example
from headway.bench.data.transfer.tasks import file_of, find_task, load

NAMES = [task.name for task in PROBES]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Articles of made-up words, in sentences of several lengths."""
    rng = random.Random(0)
    words = ["".join(rng.choice("abcdefghijklmnop") for _ in range(rng.randint(2, 9))) for _ in range(3000)]

    def sentence() -> str:
        return " ".join(rng.choices(words, k=rng.randint(5, 20))).capitalize() + "."

    articles = ["\n".join(" ".join(sentence() for _ in range(8)) for _ in range(6)) for _ in range(400)]
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("\n\n".join(articles) + "\n")
    return path


@pytest.mark.parametrize("name", NAMES)
def test_splits_have_different_articles_and_are_the_same_each_time(corpus, name):
    task = find_task(name)
    splits = {split: load(task, corpus, split).examples for split in task.splits}
    articles = corpus.read_text().split("\n\n")
    of = {word: at for at, article in enumerate(articles) for word in _triples(article)}
    owners = {
        split: {of[triple] for each in examples for triple in _triples(each.second or each.first) if triple in of}
        for split, examples in splits.items()
    }
    assert not owners["train"] & owners["test"] and not owners["train"] & owners["dev"]
    assert not owners["dev"] & owners["test"]
    assert splits["test"] == load(task, corpus, "test").examples


def _triples(text: str) -> list[tuple[str, ...]]:
    """Four words that follow one another, which no two articles share."""
    words = text.lower().replace(".", "").split()
    return list(zip(words, words[1:], words[2:], words[3:], strict=False))


@pytest.mark.parametrize("name", NAMES)
def test_a_bag_of_words_can_only_guess(corpus, name):
    task = find_task(name)
    train, test = (load(task, corpus, split).examples for split in ("train", "test"))
    counts = Counter(each.label for each in test)
    chance = 1 / len(task.labels)
    assert all(count / len(test) == pytest.approx(chance, abs=0.07) for count in counts.values())
    vectorizer = CountVectorizer()
    seen = vectorizer.fit_transform(_text(each) for each in train)
    model = LogisticRegression(max_iter=300).fit(seen, [each.label for each in train])
    right = model.score(vectorizer.transform(_text(each) for each in test), [each.label for each in test])
    assert right < chance + 4 * (chance * (1 - chance) / len(test)) ** 0.5


def _text(example: Example) -> str:
    return f"{example.first} {example.second or ''}"


def test_adjacent_words_are_exchanged_where_the_label_says_so():
    line = "One two three four five six seven eight."
    found = [item for seed in range(60) for item in adjacent_words([line], random.Random(seed))]
    words = line.split()
    for text, second, label in found:
        changed = [at for at, (a, b) in enumerate(zip(words, text.split(), strict=True)) if a != b]
        assert second is None
        assert len(changed) == 2 * label
        assert sorted(text.split()) == sorted(words)
        assert not changed or (changed[1] == changed[0] + 1 and changed[0] > 0 and changed[1] < 7)
    assert {label for *_, label in found} == {0, 1}
    assert not list(adjacent_words(["Too few words here."], random.Random(0)))
    assert not list(adjacent_words(["the the the the the the the"], random.Random(0))), "nothing could be exchanged"


def test_two_sentences_are_exchanged_where_the_label_says_so():
    first, second = "The first one is here.", "Then comes the second one."
    found = {
        (text, label)
        for seed in range(20)
        for text, _, label in sentence_order([f"{first} {second} Short."], random.Random(seed))
    }
    assert found == {(f"{first} {second}", 0), (f"{second} {first}", 1)}


def test_the_distance_is_that_of_the_label():
    document = [" ".join(f"word{chr(97 + at // 26)}{chr(97 + at % 26)}" for at in range(200))]
    found = [item for seed in range(200) for item in repeated_word(document, random.Random(seed))]
    sides = set()
    for word, text, label in found:
        first, second = [at for at, each in enumerate(text.split()) if each == word]
        assert DISTANCES[label][0] <= second - first <= DISTANCES[label][1]
        assert len(text.split()) == probes.WINDOW + 1
        sides.add((label, text.split()[second - 1] > word))
    assert {label for *_, label in found} == set(range(len(DISTANCES)))
    assert len(sides) == 2 * len(DISTANCES), "the copy stands before and after"


def test_a_word_that_occurs_again_is_left_out():
    document = [" ".join(["again"] * 200)]
    assert not list(repeated_word(document, random.Random(0)))


def test_a_split_has_no_more_items_than_it_may(corpus, monkeypatch):
    whole = load(find_task("probe:swap"), corpus, "test").examples
    monkeypatch.setitem(probes.SIZES, "test", 300)
    some = load(find_task("probe:swap"), corpus, "test").examples
    assert len(some) == 300 < len(whole)
    assert {each.first for each in some} < {each.first for each in whole}


def test_too_little_text_is_refused_and_a_source_is_needed(tmp_path, corpus):
    (tmp_path / "short.txt").write_text("One sentence with a few words in it.\n\nAnother one.\n")
    with pytest.raises(ValueError, match="at least 200 items of test, got"):
        load(find_task("probe:swap"), tmp_path / "short.txt", "test")
    with pytest.raises(FileNotFoundError, match="does not exist"):
        load(find_task("probe:order"), tmp_path / "none.txt", "test")
    assert file_of(find_task("probe:order"), corpus, "test") == corpus


def test_the_built_in_language_gives_sentences_to_exchange_words_in():
    found = load(find_task("probe:swap"), "builtin:4000", "test")
    assert len(found.examples) >= probes.FEWEST
    assert file_of(find_task("probe:swap"), "builtin:4000", "test") is None
