"""How a training goes: its steps and their sizes, and how often it reports and saves."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimisation:
    """AdamW with warm-up and linear decay.

    Args:
        batch: sequences of a step, in all processes together.
        accumulate: parts in which each process computes its share of a batch; more parts, less memory.
        warmup: share of the steps in which the learning rate rises.
        clip: largest norm of all gradients together.
        bf16: autocast to bfloat16; None is on a GPU.
        compile: torch.compile; None is on a GPU.
    """

    steps: int
    batch: int
    learning_rate: float
    accumulate: int = 1
    warmup: float = 0.025
    weight_decay: float = 0.01
    clip: float = 1.0
    bf16: bool | None = None
    compile: bool | None = None

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "accumulate"):
            at_least(name, getattr(self, name), 1)
        self.parts(1)
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate: expected above 0, got {self.learning_rate}.")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup: expected a share of at least 0 and below 1, got {self.warmup}.")
        if not self.weight_decay >= 0:
            raise ValueError(f"weight_decay: expected at least 0, got {self.weight_decay}.")
        if not self.clip > 0:
            raise ValueError(f"clip: expected above 0, got {self.clip}.")

    def parts(self, processes: int) -> int:
        """In how many equal parts a batch is computed, over all processes."""
        parts = processes * self.accumulate
        if self.batch % parts:
            raise ValueError(
                f"batch: expected a multiple of {parts} ({processes} processes x {self.accumulate} accumulated parts), "
                f"got {self.batch}."
            )
        return parts

    def resolved(self, device: str) -> Optimisation:
        """The same, with what depends on the kind of device filled in."""
        gpu = device == "cuda"
        bf16, compiled = (gpu if choice is None else choice for choice in (self.bf16, self.compile))
        return replace(self, bf16=bf16, compile=compiled)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rhythm:
    """After how many steps a run logs, evaluates and saves (it does all three at the end), and what it keeps."""

    log: int = 100
    evaluate: int = 1000
    checkpoint: int = 1000
    keep: int = 2

    def __post_init__(self) -> None:
        for name in ("log", "evaluate", "checkpoint", "keep"):
            at_least(name, getattr(self, name), 1)


def at_least(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: expected a whole number of at least {least}, got {value!r}.")
