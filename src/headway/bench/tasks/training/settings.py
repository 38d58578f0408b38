"""Settings that trainings share: steps, optimizer, intervals between logs and checkpoints, choice of a model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from torch import nn
from torch.optim import Optimizer

from headway.bench.tasks.training.optimizer import adamw, linear
from headway.encodings import EncodingChoice


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """What the steps of every training have.

    Args:
        steps: number of optimizer steps.
        clip: maximum norm of all gradients together; none for no bound.
        bf16: autocast to bfloat16; by default on a GPU only.
        compile: use torch.compile; by default on a GPU only.
    """

    steps: int
    clip: float | None = 1.0
    bf16: bool | None = None
    compile: bool | None = None

    def __post_init__(self) -> None:
        at_least("steps", self.steps, 1)
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip: expected above 0, got {self.clip}.")

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        raise NotImplementedError

    def optimizer(self, model: nn.Module) -> Optimizer:
        """Return an optimizer of the model's parameters; the learning rate is set at each step."""
        raise NotImplementedError

    def less_memory_hint(self) -> str:
        """Return a sentence that says how a step takes less memory."""
        raise NotImplementedError

    def resolved(self, device: str) -> Self:
        """Return the settings with the defaults of a kind of device filled in."""
        gpu = device == "cuda"
        bf16, compiled = (gpu if choice is None else choice for choice in (self.bf16, self.compile))
        return replace(self, bf16=bf16, compile=compiled)


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimisation(Steps):
    """AdamW with warm-up and linear decay.

    Args:
        batch: number of sequences in a step, over all processes.
        learning_rate: peak learning rate.
        accumulate: number of parts in which each process computes its share of a batch; more parts take less memory.
        warmup: share of the steps in which the learning rate rises.
        weight_decay: decoupled weight decay of AdamW; biases, norms and encodings have none.
        position_rate: factor of the learning rate for the parameters of encodings. A number that is added
            to scores must reach several units, and Adam moves it by at most the learning rate a step: in short runs
            tables of scalars (DIET-REL, REL-SCALAR, T5) stay too small with the papers' 1.
    """

    batch: int
    learning_rate: float
    accumulate: int = 1
    warmup: float = 0.025
    weight_decay: float = 0.01
    position_rate: float = 1.0

    def __post_init__(self) -> None:
        Steps.__post_init__(self)  # slots make a new class, which super() would not find
        for name in ("batch", "accumulate"):
            at_least(name, getattr(self, name), 1)
        self.parts(1)
        above_zero("learning_rate", self.learning_rate)
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup: expected a share of at least 0 and below 1, got {self.warmup}.")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay: expected at least 0, got {self.weight_decay}.")
        above_zero("position_rate", self.position_rate)

    def rate(self, step: int) -> float:
        return linear(step, steps=self.steps, warmup=self.warmup, peak=self.learning_rate)

    def optimizer(self, model: nn.Module) -> Optimizer:
        return adamw(model, weight_decay=self.weight_decay, position_rate=self.position_rate)

    def less_memory_hint(self) -> str:
        more = f"--set optimisation.accumulate={2 * self.accumulate}"
        return f"Compute it in more parts, with {more}; a run can be resumed with that."

    def parts(self, processes: int) -> int:
        """Return the number of equal parts in which a batch is computed, over all processes."""
        parts = processes * self.accumulate
        if self.batch % parts:
            raise ValueError(
                f"batch: expected a multiple of {parts} ({processes} processes x {self.accumulate} accumulated parts), "
                f"got {self.batch}."
            )
        return parts

    def own_parts(self, rank: int, processes: int) -> range:
        """Return the numbers of the parts that a process computes."""
        self.parts(processes)
        return range(rank * self.accumulate, (rank + 1) * self.accumulate)


@dataclass(frozen=True, kw_only=True, slots=True)
class Intervals:
    """Number of steps between logs, evaluations and checkpoints, which a run also writes at its end.

    Args:
        log: number of steps between lines of the log.
        evaluate: number of steps between evaluations.
        checkpoint: number of steps between checkpoints.
        keep: number of checkpoints to keep.
    """

    log: int = 100
    evaluate: int = 1000
    checkpoint: int = 1000
    keep: int = 2

    def __post_init__(self) -> None:
        for name in ("log", "evaluate", "checkpoint", "keep"):
            at_least(name, getattr(self, name), 1)


def check_changes(changes: Mapping[str, Any], chosen: Iterable[str], length: int) -> None:
    """Raise if changes of a model's configuration set what a run chooses otherwise, or leave no room for its text."""
    for name in chosen:
        if name in changes:
            raise ValueError(f"{name}: it is chosen by --{name}, not among the changes of the model (model.changes).")
    if "vocab_size" in changes:
        raise ValueError(
            f"vocab_size: it is that of the tokenizer, got {changes['vocab_size']!r} among the changes of the model. "
            f"Give the size of a tokenizer to train by --set text.vocab_size."
        )
    room = changes.get("max_position_embeddings", length)
    if isinstance(room, int) and room < length:
        raise ValueError(
            f"max_position_embeddings: {room} positions are too few for texts of {length} tokens. Give at least "
            f"{length}, or shorten the texts."
        )


def at_least(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}.")


def above_zero(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name}: expected a finite number above 0, got {value}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelChoice:
    """A preset with an encoding; `EncoderChoice` and `TranslatorChoice` say of which kind of model.

    Args:
        preset: name of a preset, which sets the sizes of the model.
        encoding: NAME[:OPTION=VALUE,...], such as diet-abs:rank=64,sharing=layer; headway list has the names.
        changes: other settings of the model's configuration, in place of the preset's.
    """

    preset: str = "tiny"
    encoding: str
    changes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.config()

    @property
    def choice(self) -> EncodingChoice:
        """Return the encoding with all its options."""
        return EncodingChoice.parse(self.encoding)

    def config(self, *, length: int = 1, **rest: Any) -> Any:
        """Make the model's configuration, with room for `length` positions."""
        raise NotImplementedError

    def _settings(
        self, presets: Mapping[str, Mapping[str, Any]], length: int, rest: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Collect what replaces the preset's settings."""
        check_changes(self.changes, ("encoding",), length)
        longest = max(length, {**presets.get(self.preset, {}), **self.changes}.get("max_position_embeddings", 1))
        return {"encoding": self.encoding, **self.changes, "max_position_embeddings": longest, **rest}
