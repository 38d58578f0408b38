"""The configuration of a comparison: encodings, models, lengths, and how they are timed."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Self

import torch

from headway.bench.cost.contestant import Contestant
from headway.encodings import SEGMENTS
from headway.models import PRESETS

MODES = ("training", "inference")
# The rows of Table 1 of Chen et al. (2021b), and other encodings that cost little.
ENCODINGS = ("none", "learned", "shaw", "tupe-rel", "t5", "tisa", "diet-abs", "diet-rel")


@dataclass(frozen=True, kw_only=True, slots=True)
class CostConfig:
    """One comparison. Settings that are None depend on the machine; `resolved` fills them in.

    Args:
        encodings: rows of the table, such as diet-abs:rank=64,sharing=layer; transformers is BertForMaskedLM of that
            library, with options of `TheirSettings`. The baseline is added where missing.
        models: presets of models; by default bert-base on a GPU, tiny on a CPU.
        lengths: numbers of tokens of a sequence.
        batch: number of sequences in a step; by default as many as have 32,768 tokens on a GPU, 1,024 on a CPU.
        modes: what is timed: training, inference, or both.
        baseline: row over which ratios are given.
        device: device to measure on: auto, cpu, cuda or cuda:N.
        bf16: autocast to bfloat16; by default on a GPU only.
        compile: use torch.compile; by default on a GPU only.
        graphs: replay steps as CUDA graphs, as our training does, so that the host's launches take no time; by default
            on a GPU only.
        dropout: probability of dropout of hidden states and of attention weights, in training.
        segments: place where segments enter (none, input or per-head), for rows that do not say.
        rounds: number of times that each row is timed; in a round every row takes its turn.
        minutes: time after which no further round begins; rows that are not ready by then are left out.
        together: number of rows that are prepared (on a GPU mostly: compiled) at the same time.
        seed: seed of weights and words.
    """

    encodings: tuple[str, ...] = ENCODINGS
    models: tuple[str, ...] | None = None
    lengths: tuple[int, ...] = (128,)
    batch: int | None = None
    modes: tuple[str, ...] = MODES
    baseline: str = "none"
    device: str = "auto"
    bf16: bool | None = None
    compile: bool | None = None
    graphs: bool | None = None
    dropout: float = 0.1
    segments: str = "input"
    rounds: int = 7
    minutes: float | None = None
    together: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for text in (*self.encodings, self.baseline):
            Contestant(text).check()
        for name, least in (("rounds", 1), ("batch", 1), ("together", 1)):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < least):
                raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}.")
        if not self.lengths or any(not isinstance(length, int) or length < 2 for length in self.lengths):
            raise ValueError(f"lengths: expected whole numbers of at least 2, got {self.lengths!r}.")
        for model in self.models or ():
            if model not in PRESETS:
                raise ValueError(f"models: expected some of {', '.join(PRESETS)}, got {model!r}.")
        if not self.modes or not set(self.modes) <= set(MODES):
            raise ValueError(f"modes: expected some of {', '.join(MODES)}, got {self.modes!r}.")
        if self.segments not in SEGMENTS:
            raise ValueError(f"segments: expected one of {', '.join(SEGMENTS)}, got {self.segments!r}.")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ValueError(f"device: expected auto, cpu, cuda or cuda:N, got {self.device!r}.")
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout: expected a probability of at least 0 and below 1, got {self.dropout}.")
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise ValueError(f"minutes: expected more than 0, got {self.minutes}. Leave it out for no limit.")
        for name in ("models", "lengths", "modes"):
            value = getattr(self, name)
            if value is not None and len(set(value)) < len(value):
                raise ValueError(f"{name}: each value may be given once, got {value!r}.")

    @property
    def rows(self) -> tuple[str, ...]:
        """Return the encodings, each once, with the baseline among them."""
        return tuple(
            dict.fromkeys(self.encodings if self.baseline in self.encodings else (self.baseline, *self.encodings))
        )

    def resolved(self, cores: int) -> Self:
        """Return the configuration with every None filled in, for this machine with that many cores."""
        device = self.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        gpu = device != "cpu"
        if gpu and not torch.cuda.is_available():
            raise ValueError(f"device: {self.device!r} needs a GPU, and torch finds none. Use cpu.")
        if self.graphs and not gpu:
            raise ValueError("graphs: a CPU has no CUDA graphs. Leave the option out.")
        return replace(
            self,
            encodings=self.rows,
            device=device,
            models=self.models or (("bert-base",) if gpu else ("tiny",)),
            bf16=gpu if self.bf16 is None else self.bf16,
            compile=gpu if self.compile is None else self.compile,
            graphs=gpu if self.graphs is None else self.graphs,
            together=self.together or (max(1, cores // 2) if gpu else 1),
        )

    def batch_of(self, length: int) -> int:
        """Return the number of sequences in a step at a length."""
        tokens = 1_024 if self.device == "cpu" else 32_768
        return self.batch or max(1, tokens // length)
