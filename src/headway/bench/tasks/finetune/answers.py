"""Exact match and F1 of answers, as the official evaluators of SQuAD v1.1 and MLQA count them.

Papers:  Rajpurkar et al. (2016), Sec. 6.1; Lewis et al. (2020), Sec. 4.1, articles and segmentation by language
Departs: scores are from 0 to 1, the evaluators print percentages
Checked: tests/unit/bench/tasks/test_answers.py
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from headway.bench.data.transfer.spec import Question

Normal = Callable[[str], str]

ARTICLES: dict[str, str | None] = {
    "en": r"\b(a|an|the)\b",
    "es": r"\b(un|una|unos|unas|el|la|los|las)\b",
    "vi": r"\b(của|là|cái|chiếc|những)\b",
    "de": r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b",
    "ar": "ال",  # also inside words: the evaluator's other alternative can never match
    "hi": None,
    "zh": None,
}
IDEOGRAPH = re.compile("[\u4e00-\u9fa5]")


def normal_squad(text: str) -> str:
    """Lower case, without ASCII punctuation, English articles and surplus white space; for XQuAD and TyDiQA too."""
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def normal_mlqa(text: str, language: str) -> str:
    """Lower case, without Unicode punctuation, the language's articles and surplus white space.

    In Chinese each ideograph is a word.
    """
    if language not in ARTICLES:
        raise ValueError(f"language: expected one of {', '.join(ARTICLES)}, got {language!r}.")
    text = "".join(c for c in text.lower() if not _punctuation(c))
    articles = ARTICLES[language]
    if articles is not None:
        text = re.sub(articles, " ", text)
    if language == "zh":
        text = IDEOGRAPH.sub(r" \g<0> ", text)
    return " ".join(text.split())


def normalisation(kind: str, language: str) -> Normal:
    """How a data set compares answers; those of MLQA are in the language of the text ("de" of "de-en")."""
    return partial(normal_mlqa, language=language.split("-")[0]) if kind == "mlqa" else normal_squad


def exact_match(predicted: str, answer: str, normal: Normal) -> float:
    return float(normal(predicted) == normal(answer))


def f1(predicted: str, answer: str, normal: Normal) -> float:
    """Harmonic mean of precision and recall of words; 0 without a common word, so also of two empty answers."""
    said, right = normal(predicted).split(), normal(answer).split()
    common = sum((Counter(said) & Counter(right)).values())
    return 2 * common / (len(said) + len(right)) if common else 0.0


def answer_scores(
    predicted: Mapping[str, str], questions: Sequence[Question], normal: Normal = normal_squad
) -> dict[str, float]:
    """Means over all questions, each against the answer it agrees with best; a question without prediction counts 0."""
    totals = dict.fromkeys(("f1", "exact_match"), 0.0)
    for question in questions:
        if question.id not in predicted:
            continue
        said = predicted[question.id]
        totals["f1"] += max(f1(said, answer.text, normal) for answer in question.answers)
        totals["exact_match"] += max(exact_match(said, answer.text, normal) for answer in question.answers)
    return {name: total / len(questions) for name, total in totals.items()}


def _punctuation(character: str) -> bool:
    return character in string.punctuation or unicodedata.category(character).startswith("P")
