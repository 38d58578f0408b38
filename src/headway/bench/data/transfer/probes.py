"""Probes: tasks whose answer is in the order of words alone, made from running text.

Training, dev and test have different articles, chosen by a hash of the article, and items are a function of the article
and a fixed seed. The generator that draws a label sees no word, so that a bag of words can only guess. An encoder
should not have been pretrained on the articles.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from random import Random

from headway.bench.data.mlm.packing import sentences
from headway.bench.data.reading import hash_share
from headway.bench.data.transfer.spec import Example, TaskSpec

Document = list[str]  # lines, as `headway.bench.data.text.corpora` has them
SIZES = {"train": 40_000, "dev": 2_000, "test": 20_000}  # at most
SHARES = {"train": 0.55, "dev": 0.05, "test": 0.4}  # of the articles
FEWEST = 200  # items of a split, below which a score says nothing
SWAP_WORDS = (6, 60)  # of a sentence
ORDER_WORDS = (4, 40)  # of each of two sentences
WINDOW, SHIFTS = 61, 17  # words of a text, and places at which its word of interest may stand
STEP = 8  # words from a text to the next, which overlap
DISTANCES = ((1, 2), (3, 5), (6, 11), (12, 22))  # words
WORD = re.compile(r"[A-Za-z]{4,}")


def adjacent_words(document: Document, rng: Random) -> Iterator[tuple[str, str | None, int]]:
    """Ask whether two adjacent words of a sentence were exchanged; the first and the last word stay."""
    for line in document:
        for sentence in sentences(line):
            words = sentence.split()
            if not SWAP_WORDS[0] <= len(words) <= SWAP_WORDS[1]:
                continue
            places = [at for at in range(1, len(words) - 2) if words[at].lower() != words[at + 1].lower()]
            if not places:
                continue
            at, label = rng.choice(places), rng.randrange(2)
            if label:
                words[at], words[at + 1] = words[at + 1], words[at]
            yield " ".join(words), None, label


def sentence_order(document: Document, rng: Random) -> Iterator[tuple[str, str | None, int]]:
    """Ask whether two neighbouring sentences of a paragraph were exchanged."""
    for line in document:
        found = list(sentences(line))
        for first, second in zip(found[::2], found[1::2], strict=False):
            if not all(ORDER_WORDS[0] <= len(each.split()) <= ORDER_WORDS[1] for each in (first, second)):
                continue
            label = rng.randrange(2)
            yield f"{second} {first}" if label else f"{first} {second}", None, label


def repeated_word(document: Document, rng: Random) -> Iterator[tuple[str, str | None, int]]:
    """Ask how far apart the two occurrences of a word are; the second one was put in.

    The word occurs once in a text of 61 words, at a place that varies, with room for every distance on both sides.
    """
    words = [word for line in document for word in line.split()]
    plain = [re.sub(r"\W", "", word).lower() for word in words]
    middle = DISTANCES[-1][1] + SHIFTS - 1
    for start in range(0, len(words) - WINDOW - SHIFTS + 2, STEP):
        at = start + middle
        shifts = [
            shift for shift in range(SHIFTS) if plain[start + shift : start + shift + WINDOW].count(plain[at]) == 1
        ]
        if not WORD.fullmatch(words[at]) or not shifts:
            continue
        shift, label, before = rng.choice(shifts), rng.randrange(len(DISTANCES)), rng.randrange(2)
        text, place = words[start + shift : start + shift + WINDOW], middle - shift
        distance = rng.randint(*DISTANCES[label])
        text.insert(place + 1 - distance if before else place + distance, words[at])
        yield words[at], " ".join(text), label


Probe = Callable[[Document, Random], Iterator[tuple[str, str | None, int]]]


def _made(probe: Probe, documents: Iterable[Document], split: str) -> list[Example]:
    """Make the items of a split: all that its articles give, or as many as the split may have, drawn at random."""
    names = list(SHARES)
    low = sum(SHARES[name] for name in names[: names.index(split)])
    found = []
    for document in documents:
        text = "\n".join(document)
        if low <= hash_share(f"probe {text}") < low + SHARES[split]:
            found += list(probe(document, Random(f"{probe.__name__} {text}")))
    if len(found) < FEWEST:
        raise ValueError(
            f"{probe.__name__}: expected text for at least {FEWEST} items of {split}, got {len(found)} from its "
            f"articles. Give more text, with blank lines between articles."
        )
    if len(found) > SIZES[split]:
        chosen = Random(f"{probe.__name__} {split}").sample(range(len(found)), SIZES[split])
        found = [found[at] for at in sorted(chosen)]
    return [Example(f"{split}-{number}", *item) for number, item in enumerate(found)]


def _task(name: str, probe: Probe, labels: tuple[str, ...], *, pair: bool = False) -> TaskSpec:
    return TaskSpec(
        name=f"probe:{name}",
        group="probe",
        kind="classes",
        labels=labels,
        pair=pair,
        splits=dict.fromkeys(SIZES, ()),
        published={(split, "en"): size for split, size in SIZES.items()},
        from_text=lambda documents, split: _made(probe, documents, split),
    )


PROBES: tuple[TaskSpec, ...] = (
    _task("swap", adjacent_words, ("in order", "exchanged")),
    _task("order", sentence_order, ("in order", "exchanged")),
    _task("distance", repeated_word, tuple(f"{low} to {high}" for low, high in DISTANCES), pair=True),
)
