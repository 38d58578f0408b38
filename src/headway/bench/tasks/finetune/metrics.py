"""Metrics of classes and numbers, and exact match and F1 of answers.

Classes and numbers are scored by scikit-learn and scipy; what they leave undefined is 0 here.

Papers:  Rajpurkar et al. (2016), Sec. 6.1, answers of SQuAD v1.1; Lewis et al. (2020), Sec. 4.1, articles and
         segmentation by language in MLQA
Departs: scores are from 0 to 1, the official evaluators print percentages
Checked: tests/unit/bench/tasks/test_metrics.py, tests/unit/bench/tasks/test_answers.py
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.bench.data.transfer.spec import Question

Metric = Callable[[NDArray[Any], NDArray[Any]], float]


def accuracy(predicted: NDArray[Any], actual: NDArray[Any]) -> float:
    return float(np.mean(predicted == actual))


def f1(predicted: NDArray[Any], actual: NDArray[Any]) -> float:
    """Return F1 of class 1; 0 where it is neither predicted nor present."""
    from sklearn.metrics import f1_score

    return float(f1_score(actual, predicted, labels=[1], average="macro", zero_division=0.0))


def matthews(predicted: NDArray[Any], actual: NDArray[Any]) -> float:
    """Return Matthews correlation of any number of classes; 0 where predictions or labels are all of one class."""
    from sklearn.metrics import matthews_corrcoef

    if _constant(predicted) or _constant(actual):
        return 0.0
    return float(matthews_corrcoef(actual, predicted))


def pearson(predicted: NDArray[Any], actual: NDArray[Any]) -> float:
    """Return the linear correlation; 0 where either side is constant, for which scipy returns NaN."""
    from scipy.stats import pearsonr

    if _constant(predicted) or _constant(actual):
        return 0.0
    return float(pearsonr(predicted.astype(np.float64), actual.astype(np.float64)).statistic)


def spearman(predicted: NDArray[Any], actual: NDArray[Any]) -> float:
    """Return the correlation of ranks, where ties share their mean rank; 0 where either side is constant."""
    from scipy.stats import spearmanr

    if _constant(predicted) or _constant(actual):
        return 0.0
    return float(spearmanr(predicted, actual).statistic)


METRICS: dict[str, Metric] = {
    "accuracy": accuracy,
    "f1": f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}


def scores(names: tuple[str, ...], predicted: NDArray[Any], actual: NDArray[Any]) -> dict[str, float]:
    """Compute the metrics of these names."""
    if predicted.shape != actual.shape or not len(actual):
        raise ValueError(f"predicted: expected {actual.shape} (from actual), at least one, got {predicted.shape}.")
    return {name: METRICS[name](predicted, actual) for name in names}


def _constant(values: NDArray[Any]) -> bool:
    return bool(np.all(values == values[0]))


Normalise = Callable[[str], str]

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
    """Remove case, ASCII punctuation, English articles and surplus white space; XQuAD and TyDiQA use this too."""
    text = "".join(c for c in text.lower() if c not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def normal_mlqa(text: str, language: str) -> str:
    """Remove case, Unicode punctuation, the language's articles and surplus white space.

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


def normalisation(kind: str, language: str) -> Normalise:
    """Return how a data set normalises answers; those of MLQA are in the language of the text ("de" of "de-en")."""
    return partial(normal_mlqa, language=language.split("-")[0]) if kind == "mlqa" else normal_squad


def exact_match(predicted: str, answer: str, normalise: Normalise) -> float:
    return float(normalise(predicted) == normalise(answer))


def word_f1(predicted: str, answer: str, normalise: Normalise) -> float:
    """Return the harmonic mean of precision and recall of words; 0 where they have none in common."""
    words, expected = normalise(predicted).split(), normalise(answer).split()
    common = sum((Counter(words) & Counter(expected)).values())
    return 2 * common / (len(words) + len(expected)) if common else 0.0


def answer_scores(
    predicted: Mapping[str, str], questions: Sequence[Question], normalise: Normalise = normal_squad
) -> dict[str, float]:
    """Average F1 and exact match over all questions.

    A prediction is compared with the answer that it agrees with best; a question without prediction counts 0.
    """
    totals = dict.fromkeys(("f1", "exact_match"), 0.0)
    for question in questions:
        if question.id not in predicted:
            continue
        text = predicted[question.id]
        totals["f1"] += max(word_f1(text, answer.text, normalise) for answer in question.answers)
        totals["exact_match"] += max(exact_match(text, answer.text, normalise) for answer in question.answers)
    return {name: total / len(questions) for name, total in totals.items()}


def _punctuation(character: str) -> bool:
    return character in string.punctuation or unicodedata.category(character).startswith("P")
