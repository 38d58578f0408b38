"""Configuration of a pretraining run: a model, a text, and how to train."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from headway.bench.data.reading import source_kind
from headway.bench.data.text.sampling import ALPHA
from headway.bench.data.text.tokenizers import VOCAB_SIZES
from headway.bench.tasks.training.run_folder import flat
from headway.bench.tasks.training.settings import Intervals, ModelChoice, Optimisation, at_least
from headway.models import PRESETS, EncoderConfig, preset
from headway.storage import OMIT_DEFAULT, config_hash, settings

LANGUAGE = re.compile(r"([a-z]{2,3}(?:-[A-Za-z]+)?)=")  # of a corpus, LANGUAGE=SOURCE
# What a run may be resumed with other values of: none of them changes what is learned, beyond rounding and dropout.
FREE = ("intervals.log", "intervals.evaluate", "intervals.checkpoint", "intervals.keep", "optimisation.accumulate")


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderChoice(ModelChoice):
    """An encoder to pretrain.

    It has no segments unless its encoding says so: each sequence is one text, and fine-tuning adds them
    (Chen et al. 2021b, App. A).
    """

    encoding: str = "diet-rel"

    def __post_init__(self) -> None:
        choice = self.choice
        object.__setattr__(self, "encoding", str(replace(choice, segments=choice.segments or "none")))
        ModelChoice.__post_init__(self)  # slots make a new class, which super() would not find

    def config(self, *, length: int = 1, **rest: Any) -> EncoderConfig:
        """Make the encoder's configuration, with room for `length` positions.

        Linformer's projections get exactly `length` columns unless `changes` says otherwise: with more, which texts do
        not use, projected keys would begin smaller than keys are.
        """
        settings = self._settings(PRESETS, length, rest)
        if settings.get("attention") == "linformer" and "max_position_embeddings" not in self.changes and length > 1:
            settings["max_position_embeddings"] = length
        return preset(self.preset, **settings)


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """What is read, and how it is cut.

    Args:
        corpus: a text file, .jsonl, .parquet, hub:NAME or builtin, see `headway.bench.data.open_corpus`; with several
            languages, LANGUAGE=SOURCE.
        text_field: field of jsonl, parquet and Hub rows that holds the text.
        skip_bad_lines: leave out lines that cannot be read instead of stopping.
        tokenizer: folder or Hub name of a tokenizer; by default one is trained on the corpus.
        kind: kind of tokenizer to train; word for the built-in language and wordpiece for others unless given.
        vocab_size: vocabulary size of the tokenizer to train.
        data: folder data/ of an earlier run, in place of a corpus and a tokenizer.
        length: tokens of a row; with data, those of its rows.
        packed: fill each row with several texts, so that nothing is padded, instead of whole sentences of one document.
        validation: share of the documents that are kept for evaluation.
        evaluation_rows: maximum number of rows to evaluate on.
        mask_probability: share of the tokens that are predicted.
        smoothing: exponent of the languages' sizes by which they are drawn, for the tokenizer and for training: 1 is by
            size, 0 uniform. 0.7 is that of multilingual BERT, 0.5 that of Lample and Conneau (2019).
    """

    corpus: tuple[str, ...] = ("builtin",)
    text_field: str = "text"
    skip_bad_lines: bool = False
    tokenizer: str | None = None
    kind: str | None = None
    vocab_size: int | None = None
    data: str | None = None
    length: int = 128
    packed: bool = False
    validation: float = 0.01
    evaluation_rows: int = 2048
    mask_probability: float = 0.15
    smoothing: float = field(default=ALPHA, metadata=OMIT_DEFAULT)

    def __post_init__(self) -> None:
        if isinstance(self.corpus, str) or not self.corpus:
            raise ValueError(f"corpus: expected a tuple of at least one source, got {self.corpus!r}.")
        if self.kind is not None and self.kind not in VOCAB_SIZES:
            raise ValueError(f"kind: expected one of {', '.join(VOCAB_SIZES)}, got {self.kind!r}.")
        at_least("length", self.length, 3)
        at_least("evaluation_rows", self.evaluation_rows, 1)
        for name in ("validation", "mask_probability"):
            if not 0 < getattr(self, name) < 1:
                raise ValueError(f"{name}: expected between 0 and 1, got {getattr(self, name)}.")
        if not 0 <= self.smoothing <= 1:
            raise ValueError(f"smoothing: expected an exponent from 0 to 1, got {self.smoothing}.")

    @property
    def trained_kind(self) -> str:
        """Return the kind of tokenizer to train."""
        builtin = all(source_kind(without_language(source)) == "builtin" for source in self.corpus)
        return self.kind or ("word" if builtin else "wordpiece")


def without_language(source: str) -> str:
    """Return SOURCE of LANGUAGE=SOURCE, or a source without a language as it is."""
    return source[len(found[0]) :] if (found := LANGUAGE.match(source)) else source


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """A model to start from, in place of a new one.

    Args:
        model: folder, or name on the Hub, of a model to start from: one of headway's encoders, what headway convert
            made, or any model of transformers that predicts masked words. Its tokenizer and its positions are taken.
        encoding: the encoding of one of headway's encoders with other options and the same parameters, such as
            rope:scaling=yarn,factor=4; its own unless given.
        revision: branch, tag or commit of a model on the Hub.
    """

    model: str | None = None
    encoding: str | None = None
    revision: str | None = None

    def __post_init__(self) -> None:
        if self.model is None and (self.encoding or self.revision):
            raise ValueError("start: expected a model to start from beside its encoding or revision, got none.")


@dataclass(frozen=True, kw_only=True, slots=True)
class PretrainConfig:
    """All settings of a pretraining run.

    Args:
        model: a new encoder; not used with a model to start from.
        seed: seed of weights, batches, masks and dropout.
    """

    model: EncoderChoice
    text: Text
    optimisation: Optimisation
    intervals: Intervals = field(default_factory=Intervals)
    start: Start = field(default_factory=Start, metadata=OMIT_DEFAULT)
    seed: int = 0

    def __post_init__(self) -> None:
        at_least("seed", self.seed, 0)
        if self.start.model is not None:
            if self.text.data is None and self.text.tokenizer is None:
                object.__setattr__(self, "text", replace(self.text, tokenizer=self.start.model))
            return
        self.model.config(length=self.text.length if self.text.data is None else 1)  # data has its own length

    def resolved(self, device: str) -> PretrainConfig:
        """Return the configuration with the defaults of a kind of device filled in."""
        return replace(self, optimisation=self.optimisation.resolved(device))

    @property
    def default_folder(self) -> str:
        """Return the folder of a run for which none is named; it ends with a hash of what changes the model."""
        matters = {name: value for name, value in flat(settings(self)).items() if name not in FREE}
        model = f"{self.model.preset}-{self.model.choice.name}"
        return f"runs/pretrain-{Path(self.start.model).name if self.start.model else model}-{config_hash(matters)}"
