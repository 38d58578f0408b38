"""The numbers of committed results, each with everything that decides what it may be compared with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headway.bench.claims.settings import Setting


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One number.

    Args:
        measure: a name in `headway.bench.claims.measures.MEASURES`.
        unit: what is repeated and paired: a seed, a round, a head.
        block: what is averaged over: a task, a corpus, a model and a length.
        length: tokens of the sequences that were timed; None for other numbers.
        group: the whole configuration except encoding and seed. Numbers of different groups are never compared.
        rate: factor on the learning rate of the encoding's parameters; None if it has none.
        rate_chosen: whether the rates were chosen from a grid that every encoding of the group was given.
        recipe: like `group`, but the same in all studies, so that numbers of one encoding and one recipe differ by
            their seeds alone. Empty where `group` is that already.
        merit: how well the run trained, higher is better. It chooses among rates, so that the compared number does not.
            Everything fine-tuned from one pretrained model has the same merit.
        segments: where segments entered in fine-tuning on pairs of texts; None for other numbers.
        size: tokens of training; of two groups the larger is preferred.
        scale: what it was measured on, in words.
        source: the file that it was read from.
    """

    measure: str
    setting: Setting
    value: float
    unit: str
    block: str = ""
    length: int | None = None
    group: str = ""
    recipe: str = ""
    rate: float | None = None
    rate_chosen: bool = False
    merit: float = 0.0
    segments: str | None = None
    size: float = 0.0
    scale: str = ""
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """Everything that was read from a folder of results.

    Args:
        errors: half the width of the 95 % interval of the difference between two systems on one test set; by the two
            systems and the block.
        notes: what was found but cannot be used, and why.
    """

    samples: tuple[Sample, ...] = ()
    errors: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in errors about what it lacks."""
    try:
        yield
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(
            f"{path}: expected what the project's command writes, got a file that lacks it "
            f"({type(error).__name__}: {error}). Write it again with that command, or remove it."
        ) from error
