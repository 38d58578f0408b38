"""What a claim is: who says it, which numbers they print, and the comparisons of ours that decide it."""

from __future__ import annotations

from dataclasses import dataclass

from headway.bench.claims.measures import MEASURES, Measure
from headway.bench.claims.settings import Choice

DIET = "Chen et al. 2021b (DIET)"
SCALAR = "Chen et al. 2021a"
SHAW = "Shaw et al. 2018"
TISA = "Wennberg and Henter 2021 (TISA)"
KINDS = ("above", "at least", "alike")


@dataclass(frozen=True, kw_only=True, slots=True)
class Contrast:
    """One comparison.

    Args:
        better: the side that the claim favours.
        than: the other side, or a number.
        kind: above (better by `margin` or more), at least (not worse by more than `margin`), or alike (within
            `margin` either way).
        margin: the least difference that matters, in the measure's units, in percent for relative ones.
        measure, than_measure: names of `MEASURES`; the second is the first unless given.
        higher: whether more favours the claim; the measure's own direction unless given.
    """

    better: Choice
    than: Choice | float
    measure: str
    kind: str = "above"
    margin: float = 0.0
    than_measure: str | None = None
    higher: bool | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {self.kind!r}.")
        for name in filter(None, (self.measure, self.than_measure)):
            if name not in MEASURES:
                raise ValueError(f"measure: expected one of {', '.join(MEASURES)}, got {name!r}.")
        if not self.margin >= 0 or (self.kind != "above" and not self.margin > 0):
            raise ValueError(f"margin: expected at least 0, above 0 for {self.kind!r}, got {self.margin}.")

    @property
    def by(self) -> Measure:
        return MEASURES[self.measure]

    @property
    def favours_more(self) -> bool:
        return self.by.higher if self.higher is None else self.higher

    @property
    def words(self) -> str:
        other = f"{self.than:g}" if isinstance(self.than, float) else self.than.words
        if self.than_measure is not None:
            return f"{self.better.words}: {self.by.words} against {MEASURES[self.than_measure].words}"
        return f"{self.better.words} against {other}: {self.by.words}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A sentence of a paper.

    Args:
        key: its name in `headway claims KEY`.
        where: section, table or figure.
        numbers: the paper's, as printed there.
        scale: what the paper measured them on.
        contrasts: all must hold.
        stand_in: decide, and the ledger says so, while there is no result for any of `contrasts`.
        note: how it is made testable, where that is our doing.
    """

    key: str
    says: str
    paper: str
    where: str
    numbers: str
    scale: str
    contrasts: tuple[Contrast, ...]
    stand_in: tuple[Contrast, ...] = ()
    note: str = ""


def against(
    sides: tuple[Choice, ...],
    than: Choice | float,
    measure: str,
    *,
    kind: str = "above",
    margin: float = 0.0,
    higher: bool | None = None,
) -> tuple[Contrast, ...]:
    """Each side against one other."""
    return tuple(
        Contrast(better=side, than=than, measure=measure, kind=kind, margin=margin, higher=higher) for side in sides
    )
