"""One number of a committed result, with all that decides what it may be compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from headway.bench.claims.settings import Setting


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """A number.

    Args:
        measure: a name of `headway.bench.claims.measures.MEASURES`.
        unit: what is repeated, and paired where two are compared: a seed, a round, a head.
        block: what is averaged over, where several are there for both sides: a task, a corpus, a length.
        group: all of the configuration but the encoding and the seed. Numbers of other groups are never compared.
        rate: times the learning rate, for the encoding's parameters; None where it has none.
        recipe: the same as `group`, without where it was found: numbers of one encoding and one recipe differ by their
            seeds alone, though they may be of two studies. Empty: the group says it all.
        merit: of the run that it is of, the higher the better; chooses among rates, so that what is compared does not.
            What was fine-tuned from one pretrained model has one merit.
        segments: of fine-tuned pairs; None where there are no pairs.
        size: tokens of training, to prefer the larger of two groups.
        scale: what it was measured on, in words.
        source: the file.
    """

    measure: str
    setting: Setting
    value: float
    unit: str
    block: str = ""
    group: str = ""
    recipe: str = ""
    rate: float | None = None
    merit: float = 0.0
    segments: str | None = None
    size: float = 0.0
    scale: str = ""
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """All that a folder of results holds.

    Args:
        errors: of a difference between two numbers of one test set, by their sources and the block: half the width of
            its 95 % interval.
        notes: what was found and cannot be used, and why.
    """

    samples: tuple[Sample, ...] = ()
    errors: Mapping[tuple[str, str, str], float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
