"""All data of a sweep as tokens: to train on, to evaluate on during training, to transfer to and to predict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from headway.bench.data.reading import file_checksum
from headway.bench.data.transfer.encoded import Encoded, encode
from headway.bench.data.transfer.spec import Example, Question, Split, TaskSpec
from headway.bench.data.transfer.tasks import TaskData, file_of, found_languages, load
from headway.bench.data.transfer.windows import Windows, windows
from headway.bench.tasks.finetune.config import Data, FinetuneConfig, Spans
from headway.bench.tasks.finetune.metrics import answer_scores, normalisation, scores
from headway.bench.tasks.finetune.spans import Candidate, best_answers
from headway.bench.tasks.training.prepared_data import fingerprint_if_present
from headway.storage import config_hash

Scores = Sequence[NDArray[np.float32]]  # for each sequence: classes (C,), a number (1,), or tokens (L, 2)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One split in one language, ready to be scored.

    Args:
        metric: name of the metric that is the score; None is the mean of the task's metrics.
    """

    split: Split
    encoded: Encoded
    spans: Spans
    metric: str | None = None

    @property
    def task(self) -> TaskSpec:
        return self.split.task

    def metrics(self, model_scores: Scores) -> dict[str, float]:
        """Return the data set's metrics by name, and "score": `metric`, or else their mean (F1 for questions)."""
        if self.task.kind == "spans":
            answers = {name: each[0].text if each else "" for name, each in self.answers(model_scores).items()}
            normalise = normalisation(self.task.answers, self.split.language)
            metrics = answer_scores(answers, self.questions, normalise)
            return {"score": metrics[self.metric or "f1"], **metrics}
        metrics = scores(self.task.metrics, self.predictions(model_scores), self.encoded.labels)
        score = metrics[self.metric] if self.metric else float(np.mean(list(metrics.values())))
        return {"score": score, **metrics}

    def predictions(self, model_scores: Scores) -> NDArray[Any]:
        """Return the predicted classes or numbers."""
        stacked = np.stack(model_scores)
        return stacked[:, 0] if self.task.kind == "number" else stacked.argmax(1)

    def answers(self, model_scores: Scores) -> dict[str, list[Candidate]]:
        """Return the best answers of each question by id, best first."""
        assert isinstance(self.encoded, Windows)
        return best_answers(
            self.questions, self.encoded, model_scores, count=self.spans.count, max_tokens=self.spans.max_answer
        )

    @property
    def questions(self) -> Sequence[Question]:
        return cast(Sequence[Question], self.split.examples)


@dataclass(frozen=True, kw_only=True)
class SweepData:
    """The data that all runs of a sweep share.

    Args:
        dev: evaluations by name of the split; the score on the first chooses the best weights.
        transfer: evaluations by data set, and by language in it.
        described: a description of each split that was read, with the number of examples that were cut because they
            are too long; those of training also say how many examples are trained on in all.
    """

    train: Encoded
    dev: Mapping[str, Evaluation]
    transfer: Mapping[str, Mapping[str, Evaluation]]
    described: list[dict[str, Any]]


def prepare_data(config: FinetuneConfig, tokenizer: Any) -> SweepData:
    """Read all data, so that bad data raise before training, and tokenise all except data that are only predicted."""
    task, data = config.task_spec, config.data
    train = [split for reference in config.training for split in read_splits(reference, data.on_error)]
    dev = [split for reference in config.development for split in read_splits(reference, data.on_error)]
    transfer = _by_language("transfer", config.transferring, data)
    _by_language("predict", config.predicting, data)
    examples = sample([example for split in train for example in _labelled(split)], data.limit)
    trained = tokenise(task, examples, config, tokenizer)
    named = dict(zip(_names(dev, task), dev, strict=True))
    judged = [(split, evaluation(split, config, tokenizer)) for split in named.values()]
    transferred = {
        name: {language: (split, evaluation(split, config, tokenizer)) for language, split in found.items()}
        for name, found in transfer.items()
    }
    evaluated = [("dev", judged), *((name, list(found.values())) for name, found in transferred.items())]
    return SweepData(
        train=trained,
        dev={name: each for name, (_, each) in zip(named, judged, strict=True)},
        transfer={name: {key: each for key, (_, each) in found.items()} for name, found in transferred.items()},
        described=[
            *({"use": "train", **split.described(), "taken": len(examples), "cut": trained.cut} for split in train),
            *(
                {"use": use, **split.described(), "cut": each.encoded.cut}
                for use, found in evaluated
                for split, each in found
            ),
        ],
    )


def sample(examples: list[Any], limit: int | None) -> list[Any]:
    """Return at most `limit` examples, drawn at random but always the same ones."""
    if limit is None or limit >= len(examples):
        return examples
    chosen = np.random.default_rng(0).permutation(len(examples))[:limit]
    return [examples[at] for at in np.sort(chosen)]


def evaluation(split: Split, config: FinetuneConfig, tokenizer: Any, *, labelled: bool = True) -> Evaluation:
    """Tokenise a split to evaluate: its labelled examples or, if it is only predicted, all of them."""
    kept = replace(split, examples=_labelled(split) if labelled else split.examples)
    encoded = tokenise(split.task, kept.examples, config, tokenizer)
    metric = config.protocol.metric if config.protocol.metric in split.task.metrics else None
    return Evaluation(split=kept, encoded=encoded, spans=config.spans, metric=metric)


def tokenise(task: TaskSpec, examples: Sequence[Any], config: FinetuneConfig, tokenizer: Any) -> Encoded:
    """Tokenise examples; the texts of questions are cut into windows."""
    length = config.protocol.length
    if task.kind == "spans":
        return windows(
            tokenizer, examples, length=length, overlap=config.spans.overlap, max_question=config.spans.max_question
        )
    return encode(tokenizer, examples, length=length)


def languages(reference: TaskData, part: str, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """Return the languages to evaluate in: those that are named, or else all that the data set has."""
    task = reference.task
    if reference.languages:
        return reference.languages
    if len(task.languages) == 1:
        return task.languages
    if wanted:
        kept = tuple(name for name in wanted if task.has_language(name))
        if not kept:
            raise ValueError(
                f"languages: expected some of {task.name} ({', '.join(task.languages)}), got {', '.join(wanted)}."
            )
        return kept
    found = found_languages(task, reference.source, part)
    if Path(reference.source).is_file():
        if not found:
            raise ValueError(
                f"{reference.source}: expected to know its language, got a name that says none. Name it: "
                f"{task.name}@{part}:{task.languages[0]}={reference.source}."
            )
        return found
    missing = [language for language in task.languages if language not in found]
    if missing:
        raise FileNotFoundError(
            f"{reference.source}: expected {task.name} {part} in {', '.join(task.languages)}, got none in "
            f"{', '.join(missing)}. Add the files, or name the languages you want (--languages)."
        )
    return found


def read_splits(reference: TaskData, on_error: str) -> list[Split]:
    """Read the splits of an entry of train or dev: each of its parts in each of its languages."""
    return [
        load(reference.task, reference.source, part, language=language, on_error=on_error)
        for part in reference.parts
        for language in reference.languages or (None,)
    ]


def fingerprints(config: FinetuneConfig) -> list[str | None]:
    """Return a fingerprint of the files of each entry of a sweep's data, as they are today; None if they are gone.

    Data on the Hub, and data that ships as code, has no file and is taken to stay as it is.
    """
    own = [(each, None) for each in (*config.training, *config.development)]
    others = [(each, config.data.languages) for each in (*config.transferring, *config.predicting)]
    return [fingerprint_if_present(_fingerprint, each, wanted) for each, wanted in (*own, *others)]


def _fingerprint(reference: TaskData, wanted: tuple[str, ...] | None) -> str:
    found = [
        file_of(reference.task, reference.source, part, language=language)
        for part in reference.parts
        for language in (reference.languages or (None,) if wanted is None else languages(reference, part, wanted))
    ]
    return config_hash({"files": [None if file is None else _checksum(file, *_version(file)) for file in found]})


def _version(file: Path) -> tuple[int, int]:
    facts = file.stat()
    return facts.st_size, facts.st_mtime_ns


@lru_cache(maxsize=1024)  # the jobs of a study read the same files
def _checksum(file: Path, size: int, changed: int) -> str:
    return file_checksum(file)


def _by_language(use: str, references: Sequence[TaskData], data: Data) -> dict[str, dict[str, Split]]:
    """Read each split of the references, by the name of its data set, or DATA@SPLIT where there are several, and by
    language."""
    every = [(each, part) for each in references for part in each.parts]
    kinds = {(each.task.name, part) for each, part in every}
    found: dict[str, dict[str, Split]] = {}
    for each, part in every:
        task = each.task
        alone = sum(name == task.name for name, _ in kinds) == 1
        own = found.setdefault(task.name if alone else f"{task.name}@{part}", {})
        for language in languages(each, part, data.languages):
            if language in own:
                raise ValueError(
                    f"{use}: expected every split once in a language, got {task.name} {part} {language} twice."
                )
            own[language] = load(task, each.source, part, language=language, on_error=data.on_error)
    return found


def _labelled(split: Split) -> Sequence[Example] | Sequence[Question]:
    examples = split.labelled
    if not examples:
        raise ValueError(
            f"{split.task.name}: expected labels in its split {split.split} ({split.language}), got "
            f"{len(split.examples)} rows without any. Its authors or XTREME keep them back: "
            f"take another split, or only predict it."
        )
    return examples


def _names(dev: Sequence[Split], task: TaskSpec) -> list[str]:
    """Name each split, with its data set if that is not the task's, and its language if there are several."""
    names = [each.split if each.task.name == task.name else f"{each.task.name} {each.split}" for each in dev]
    found = [
        name if names.count(name) == 1 else f"{name} {each.language}" for name, each in zip(names, dev, strict=True)
    ]
    twice = next((name for name in found if found.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"dev: expected every split once in a language, got {twice} twice.")
    return found
