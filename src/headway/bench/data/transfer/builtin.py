"""The built-in language's counterparts of GLUE and XTREME: the same interface, no download, labels by construction.

Every task has the language `english` (its words, not its difficulty) for training and others for transfer: `invented`
says the same in the same order with other content words; `verb-final` has its own words and order, for the tasks whose
sentences have a translation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from random import Random
from typing import Any

from headway.bench.data.language.grammar import Sentence
from headway.bench.data.language.labelled import (
    LABELS,
    ROLE_LABELS,
    SpanQuestion,
    corrupt,
    entailment_pair,
    question,
    role_pair,
    role_question,
    similarity_pair,
)
from headway.bench.data.language.language import Language
from headway.bench.data.transfer.spec import Answer, Example, Question, TaskSpec

SIZES = {"test": 1000, "dev": 1000, "train": 10_000}  # in the order in which they are made
DRAWS = 20  # for each example that is asked for, before a task is declared to have no more
ENGLISH, INVENTED, VERB_FINAL = "english", "invented", "verb-final"


@dataclass(frozen=True, slots=True)
class Draw:
    """What one example is made from: a language, how it writes sentences, and a source of randomness."""

    language: Language
    write: Callable[[Sentence], str]
    rng: Random


def acceptability(draw: Draw, name: str) -> Example:
    """Ask whether a sentence is grammatical; the others are the same words in another order."""
    sentence = draw.language.sample(draw.rng)
    if draw.rng.random() < 0.5:
        return Example(name, sentence.text, None, 1)
    return Example(name, " ".join(corrupt(sentence, draw.rng).words), None, 0)


def entailment(draw: Draw, name: str) -> Example:
    """Ask whether a sentence follows from another, contradicts it, or neither."""
    pair = entailment_pair(draw.language, draw.rng)
    return Example(name, draw.write(pair.premise), draw.write(pair.hypothesis), LABELS.index(pair.label))


def roles(draw: Draw, name: str) -> Example:
    """Ask whether a sentence says of the same two that the same one acts, or exchanges them."""
    pair = role_pair(draw.language, draw.rng)
    return Example(name, draw.write(pair.premise), draw.write(pair.hypothesis), ROLE_LABELS.index(pair.label))


def similarity(draw: Draw, name: str) -> Example:
    """Ask how many of their five parts two sentences share."""
    pair = similarity_pair(draw.language, draw.rng)
    return Example(name, draw.write(pair.first), draw.write(pair.second), float(pair.score))


def span_question(draw: Draw, name: str) -> Question:
    """Ask who acts on somebody, or is acted on by somebody, in a text of three sentences."""
    return _to_question(question(draw.language, draw.rng), name)


def role_span(draw: Draw, name: str) -> Question:
    """Ask who acts, or is acted on, in a text of two sentences."""
    return _to_question(role_question(draw.language, draw.rng), name)


def _to_question(asked: SpanQuestion, name: str) -> Question:
    start = len(" ".join(asked.context[: asked.start])) + (1 if asked.start else 0)
    answer = Answer(" ".join(asked.context[asked.start : asked.end]), start)
    return Question(name, " ".join(asked.question), " ".join(asked.context), (answer,))


def make(
    example: Callable[[Draw, str], Example] | Callable[[Draw, str], Question], split: str, language: str
) -> list[Example] | list[Question]:
    """Return all examples of a split; no two splits share one, and all languages have the same content."""
    return list(_made(example, split, language).values())


@lru_cache(maxsize=4)  # a split is made when it is read, and needed again to make the next one
def _made(example: Callable[[Draw, str], Any], split: str, language: str) -> dict[tuple[str, str | None], Any]:
    """Make the examples of a split by their texts, none of which an earlier split has."""
    names = list(SIZES)
    earlier = [_made(example, name, language) for name in names[: names.index(split)]]
    spoken = Language(words=INVENTED if language == INVENTED else ENGLISH)
    write = (lambda s: " ".join(spoken.verb_final(s))) if language == VERB_FINAL else (lambda s: s.text)
    draw = Draw(spoken, write, Random(f"{example.__name__} {split}"))
    size, draws = SIZES[split], 0
    examples: dict[tuple[str, str | None], Any] = {}
    while len(examples) < size:
        draws += 1
        if draws > DRAWS * size:
            raise ValueError(
                f"{example.__name__}: expected {size} different examples for {split}, got {len(examples)} in "
                f"{DRAWS * size} draws. The language has too few words to say more: give it more nouns or verbs."
            )
        made = example(draw, f"{split}-{len(examples)}")
        texts = (made.first, made.second) if isinstance(made, Example) else (made.question, made.context)
        if texts not in examples and not any(texts in other for other in earlier):
            examples[texts] = made
    return examples


def _task(
    name: str, example: Callable[[Draw, str], Example] | Callable[[Draw, str], Question], **rest: object
) -> TaskSpec:
    languages = (ENGLISH, INVENTED, VERB_FINAL) if example in (entailment, roles, similarity) else (ENGLISH, INVENTED)
    return TaskSpec(
        name=f"builtin:{name}",
        group="builtin",
        splits=dict.fromkeys(SIZES, ()),
        languages=languages,
        published={(split, language): size for split, size in SIZES.items() for language in languages},
        make=partial(make, example),
        **rest,  # type: ignore[arg-type]
    )


BUILTIN: tuple[TaskSpec, ...] = (
    _task("acceptability", acceptability, kind="classes", labels=("0", "1"), pair=False, metrics=("matthews",)),
    _task("entailment", entailment, kind="classes", labels=LABELS),
    _task("roles", roles, kind="classes", labels=ROLE_LABELS),
    _task("similarity", similarity, kind="number", metrics=("pearson", "spearman")),
    _task("questions", span_question, kind="spans", metrics=("f1", "exact_match")),
    _task("role-questions", role_span, kind="spans", metrics=("f1", "exact_match")),
)
