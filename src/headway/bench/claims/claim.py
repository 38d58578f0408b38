"""A claim of a paper: who makes it, the numbers printed for it, and the comparisons of ours that decide it."""

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
    """One comparison of two sides.

    Args:
        better: the side that the claim favours.
        than: the other side, or a number.
        kind: above (better by `margin` or more), at least (not worse by more than `margin`), or alike (within
            `margin` either way).
        margin: the least difference that matters, in the measure's units, or in percent for relative measures.
        measure, than_measure: names in `MEASURES`, of the two sides; the second is the first unless given.
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
    """A statement of a paper.

    Args:
        key: its name in `headway claims KEY`.
        where: section, table or figure.
        numbers: the paper's, as printed there.
        scale: what the paper measured them on.
        contrasts: the comparisons that must all hold.
        stand_in: comparisons that decide while there is no result for any of `contrasts`; the ledger says so.
        note: how we made the claim testable, where the paper does not say.
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
    """Compare each side with one other."""
    return tuple(
        Contrast(better=side, than=than, measure=measure, kind=kind, margin=margin, higher=higher) for side in sides
    )
