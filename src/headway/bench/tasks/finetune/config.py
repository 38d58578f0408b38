"""Configuration of a fine-tuning sweep: a task, an encoder to begin with, data, and the grid of runs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from headway.bench.data.transfer.spec import TaskSpec
from headway.bench.data.transfer.tasks import TASKS, TaskData, find_task
from headway.bench.tasks.training.settings import above_zero, at_least
from headway.storage import OMIT_DEFAULT, config_hash, settings

SEGMENTS = ("none", "input", "per-head")
SHARINGS = ("none", "head", "layer", "positions")


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """A pretrained encoder.

    Args:
        model: folder or Hub name of one of ours, or of any encoder of transformers.
        tokenizer: folder or Hub name; the model's own unless given.
        segments: where segments enter one of our encoders, for tasks of pairs (Chen et al. 2021b, App. A): none, input
            or per-head. By default a model with segments keeps them, and a model without gets per-head segments (at
            the input with linformer and performer). Tasks of single texts always keep the model as it is.
        segment_sharing: how per-head segments that are added here share their tables: none, head or layer (see
            `EncodingChoice`), or positions, to share as the model's positions do; none by default.
    """

    model: str
    tokenizer: str | None = None
    segments: str | None = None
    segment_sharing: str | None = field(default=None, metadata=OMIT_DEFAULT)

    def __post_init__(self) -> None:
        for name, known in (("segments", SEGMENTS), ("segment_sharing", SHARINGS)):
            value = getattr(self, name)
            if value is not None and value not in known:
                raise ValueError(f"{name}: expected one of {', '.join(known)}, got {value!r}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """The data of a sweep; each entry is [NAME[@SPLIT]=]SOURCE, see `TaskData.parse`.

    Args:
        train: data to train on, [NAME[@SPLIT]=]SOURCE; the task's training split, unless an entry names another data
            set with the same labels.
        dev: data to evaluate on during training; the score on the first entry chooses the best weights. The task's
            own dev split unless given.
        transfer: data to evaluate on after training, in all languages that the source has, never trained on.
        predict: data to write predictions for, which need no labels.
        languages: languages of the data to transfer to; all that are found unless given.
        limit: number of examples to train on, drawn at random but the same in all runs; all unless given.
        on_error: what happens at a bad row: raise, or skip to leave it out and count it.
    """

    train: tuple[str, ...] = ()
    dev: tuple[str, ...] = ()
    transfer: tuple[str, ...] = ()
    predict: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    limit: int | None = None
    on_error: str = "raise"

    def __post_init__(self) -> None:
        for name in ("train", "dev", "transfer", "predict", "languages"):
            if isinstance(getattr(self, name), str):
                raise ValueError(f"{name}: expected a tuple of texts, got {getattr(self, name)!r}.")
        if self.limit is not None:
            at_least("limit", self.limit, 1)
        if self.on_error not in ("raise", "skip"):
            raise ValueError(f"on_error: expected raise or skip, got {self.on_error!r}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """One run for each learning rate and seed.

    Args:
        rates: peak learning rates.
        seeds: seeds of new weights, batches and dropout.
    """

    rates: tuple[float, ...]
    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        for name, values in (("rates", self.rates), ("seeds", self.seeds)):
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{name}: expected at least one, and each once, got {values}.")
        if not all(math.isfinite(rate) and rate > 0 for rate in self.rates):
            raise ValueError(f"rates: expected finite learning rates above 0, got {self.rates}.")
        for seed in self.seeds:
            at_least("seeds", seed, 0)

    @property
    def runs(self) -> list[tuple[float, int]]:
        """Return all pairs of rate and seed; the seeds of one rate follow one another."""
        return [(rate, seed) for rate in self.rates for seed in self.seeds]


@dataclass(frozen=True, kw_only=True, slots=True)
class Protocol:
    """The settings of each run.

    Args:
        epochs: number of passes over the training data.
        length: tokens of a sequence, or of a window of a question's text.
        batch: number of sequences in a step.
        warmup: share of the steps in which the learning rate rises.
        weight_decay: decoupled weight decay of AdamW; biases, norms and encodings have none.
        clip: maximum norm of all gradients together.
        position_rate: factor of the learning rate for the parameters of encodings, segments per head among
            them. Numbers that are added to scores hardly move in a short run: Adam moves each by about the rate a step.
        evaluate: number of steps between evaluations on dev, of which the best is kept, beside the one after the last
            step; by default there is one after every epoch and at least every 3,500 steps.
        metric: name of the metric on dev that chooses the best weights, such as spearman; by default the task's score,
            the mean of its metrics (F1 of questions).
        checkpoint: number of steps between checkpoints to resume from; a shorter run that is killed begins anew.
        bf16: autocast to bfloat16; by default on a GPU only.
    """

    epochs: int
    length: int
    batch: int = 32
    warmup: float = 0.1
    weight_decay: float = 0.01
    clip: float = 1.0
    evaluate: int | None = None
    checkpoint: int = 3500
    bf16: bool | None = None
    position_rate: float = field(default=1.0, metadata=OMIT_DEFAULT)
    metric: str | None = field(default=None, metadata=OMIT_DEFAULT)

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("length", 8), ("batch", 1), ("checkpoint", 1)):
            at_least(name, getattr(self, name), least)
        if self.evaluate is not None:
            at_least("evaluate", self.evaluate, 1)
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup: expected a share of at least 0 and below 1, got {self.warmup}.")
        above_zero("position_rate", self.position_rate)
        if not self.clip > 0:
            raise ValueError(f"clip: expected above 0, got {self.clip}.")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay: expected at least 0, got {self.weight_decay}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Spans:
    """How the texts of questions are cut into windows, and how answers are searched.

    Args:
        overlap: number of tokens that neighbouring windows share.
        max_question: maximum number of tokens of a question; the rest is left out.
        max_answer: maximum number of tokens of an answer.
        count: number of best answers to keep of each question.
    """

    overlap: int = 128
    max_question: int = 64
    max_answer: int = 30
    count: int = 20

    def __post_init__(self) -> None:
        for name, least in (("overlap", 0), ("max_question", 1), ("max_answer", 1), ("count", 1)):
            at_least(name, getattr(self, name), least)


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    """All settings of a sweep. Equal configurations give equal results.

    The name of the task, and the texts in `data`, are looked up and parsed once, here.
    """

    task: str
    start: Start
    data: Data
    grid: Grid
    protocol: Protocol
    spans: Spans = field(default_factory=Spans)

    def __post_init__(self) -> None:
        given = {
            "data": self.training,
            "dev": self.development,
            "transfer": self.transferring,
            "predict": self.predicting,
        }
        for name, references in given.items():
            for reference in references:
                self._check_reference(name, reference)
        self._check_languages()
        if self.protocol.metric not in (None, *self.task_spec.metrics):
            raise ValueError(
                f"metric: expected one of {', '.join(self.task_spec.metrics)}, which {self.task} has, "
                f"got {self.protocol.metric!r}."
            )

    def _check_reference(self, name: str, reference: TaskData) -> None:
        task, other = self.task_spec, reference.task
        if (other.kind, other.labels) != (task.kind, task.labels):
            raise ValueError(
                f"{name}: expected data sets like {task.name} ({task.kind} {' '.join(task.labels)}), "
                f"got {other.name} ({other.kind} {' '.join(other.labels)})."
            )
        if not reference.parts:
            advice = f" Name one, as in {other.name}@{next(iter(other.splits))}=SOURCE."
            raise ValueError(
                f"{name}: expected a split of {other.name} ({', '.join(other.splits)}), got {reference.split!r}."
                f"{_trained_on(other) if name == 'data' and reference.split == 'train' else advice}"
            )

    def _check_languages(self) -> None:
        """Raise if no data set has any of the languages.

        A language need not be in all data sets, because studies name the same languages for all tasks.
        """
        several = [
            each.task
            for each in (*self.transferring, *self.predicting)
            if not each.languages and len(each.task.languages) > 1
        ]
        if self.data.languages and not any(task.has_language(each) for each in self.data.languages for task in several):
            known = "; ".join(f"{task.name}: {', '.join(task.languages)}" for task in several)
            raise ValueError(
                f"languages: expected some of what is transferred to or predicted in several languages "
                f"({known or 'nothing is'}), got {', '.join(self.data.languages)}. Leave them out, or add "
                f"--transfer or --predict."
            )

    @cached_property
    def task_spec(self) -> TaskSpec:
        """Return the task that is trained."""
        return find_task(self.task)

    @property
    def has_baselines(self) -> bool:
        """Return whether simple classifiers can be scored on the task; they cannot answer questions."""
        return self.task_spec.kind != "spans"

    @cached_property
    def training(self) -> list[TaskData]:
        """Return the data to train on."""
        if not self.data.train and not self.task_spec.make:
            wanted = "a corpus to make it from" if self.task_spec.from_text else f"a folder with {self.task}, or hub"
            raise ValueError(f"data: expected {wanted}, got nothing.")
        return [TaskData.parse(text, task=self.task_spec, split="train") for text in self.data.train or (self.task,)]

    @cached_property
    def development(self) -> list[TaskData]:
        """Return the data to evaluate on during training."""
        if self.data.dev:
            return [TaskData.parse(text, task=self.task_spec, split="dev") for text in self.data.dev]
        own = [reference.source for reference in self.training if reference.task.name == self.task]
        if not own:
            raise ValueError(
                f"dev: expected [NAME[@SPLIT]=]SOURCE to choose checkpoints on, got nothing, and none of the training "
                f"data is {self.task}. Name the folder with its dev split."
            )
        if Path(own[0]).is_file() and not self.task_spec.from_text:
            raise ValueError(
                f"dev: expected [NAME[@SPLIT]=]SOURCE to choose checkpoints on, got nothing beside the training data, "
                f"which is one file ({own[0]}): it would be evaluated on itself. Pass --dev with another."
            )
        return [TaskData(self.task_spec, "dev", own[0])]

    @cached_property
    def transferring(self) -> list[TaskData]:
        """Return the data to evaluate the best weights on after training."""
        parsed = [TaskData.parse(text, task=self.task_spec, split="") for text in self.data.transfer]
        return [each if each.split else replace(each, split=_last_split(each.task)) for each in parsed]

    @cached_property
    def predicting(self) -> list[TaskData]:
        """Return the data to write predictions for."""
        return [TaskData.parse(text, task=self.task_spec, split="test") for text in self.data.predict]

    def resolved(self, device: str) -> FinetuneConfig:
        """Return the configuration with the defaults of a kind of device filled in."""
        bf16 = device == "cuda" if self.protocol.bf16 is None else self.protocol.bf16
        return replace(self, protocol=replace(self.protocol, bf16=bf16))

    @property
    def default_folder(self) -> str:
        """Return the folder of a sweep for which none is named; it ends with a hash of all settings."""
        task = self.task.replace(":", "-")
        return f"runs/finetune-{task}-{Path(self.start.model).name}-{config_hash(settings(self))}"


def _trained_on(task: TaskSpec) -> str:
    """Return advice on what to train on for a task without a training split; "" if no data set is like it."""
    alike = [
        each.name
        for each in TASKS.values()
        if (each.kind, each.labels) == (task.kind, task.labels) and each.parts("train") and not each.make
    ]
    return f" Train on {' or '.join(alike)}, named before its source: {alike[0]}=SOURCE." if alike else ""


def _last_split(task: TaskSpec) -> str:
    """Return the split that papers report: test, or dev where there is no public test."""
    return "test" if task.parts("test") else "dev"
