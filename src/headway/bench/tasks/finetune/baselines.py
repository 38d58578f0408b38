"""Scores of simple classifiers on the same dev split: the most frequent label, and a linear model on bags of words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.bench.data.transfer.spec import Example, Split, TaskSpec
from headway.bench.tasks.finetune.config import FinetuneConfig
from headway.bench.tasks.finetune.data import read_splits, sample
from headway.bench.tasks.finetune.metrics import scores


def baseline_scores(config: FinetuneConfig) -> dict[str, dict[str, float]]:
    """Return the metrics of each baseline on the first dev split; none for questions.

    Features of the bag of words are the words of the first text, those of the second, and those that both have.
    """
    if not config.has_baselines:
        return {}
    task = config.task_spec
    on_error = config.data.on_error
    every = [
        example
        for reference in config.training
        for split in read_splits(reference, on_error)
        for example in _labelled_examples(split)
    ]
    train = sample(every, config.data.limit)
    dev = _labelled_examples(read_splits(config.development[0], on_error)[0])
    actual, labels = _labels(dev), _labels(train)
    return {
        "most frequent": scores(task.metrics, np.full_like(actual, _most_frequent(task, labels)), actual),
        "bag of words": scores(task.metrics, _bag_of_words(task, train, labels, dev), actual),
    }


def _labelled_examples(split: Split) -> list[Example]:
    return [example for example in split.labelled if isinstance(example, Example)]


def _labels(examples: Sequence[Example]) -> NDArray[Any]:
    return np.array([example.label for example in examples])


def _most_frequent(task: TaskSpec, labels: NDArray[Any]) -> float:
    return float(labels.mean()) if task.kind == "number" else int(np.bincount(labels).argmax())


def _bag_of_words(
    task: TaskSpec, train: Sequence[Example], labels: NDArray[Any], dev: Sequence[Example]
) -> NDArray[Any]:
    if task.kind != "number" and len(set(labels)) == 1:  # from which scikit-learn learns nothing
        return np.full(len(dev), labels[0])
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression, Ridge

    words = CountVectorizer(binary=True, token_pattern=r"\S+", dtype=np.float32)
    words.fit(text for each in train for text in (each.first, each.second) if text is not None)

    def features(examples: Sequence[Example]) -> Any:
        first = words.transform([each.first for each in examples])
        if not task.pair:
            return first
        second = words.transform([each.second or "" for each in examples])
        return hstack([first, second, first.multiply(second)]).tocsr()

    model = Ridge() if task.kind == "number" else LogisticRegression(max_iter=1000)
    return np.asarray(model.fit(features(train), labels).predict(features(dev)))
