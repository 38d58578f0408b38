"""A claim of a paper: who makes it, the numbers printed for it, and the comparisons of ours that decide it."""

from __future__ import annotations

from dataclasses import dataclass

from headway.bench.claims.measures import MEASURES, Measure
from headway.bench.claims.settings import Setting
from headway.bench.judge import KINDS

DIET = "Chen et al. 2021b (DIET)"
SCALAR = "Chen et al. 2021a"
SHAW = "Shaw et al. 2018"
TISA = "Wennberg and Henter 2021 (TISA)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Contrast:
    """One comparison of two sides.

    Args:
        better: the encoding that the claim favours, as text: see `Setting.parse`.
        than: the other encoding, or a number.
        kind: above (better by `margin` or more), at least (not worse by more than `margin`), or alike (within
            `margin` either way).
        margin: the least difference that matters, in the measure's units, or in percent for relative measures.
        measure, than_measure: names in `MEASURES`, of the two sides; the second is the first unless given.
        attention: of the models of both sides, full or linformer.
        higher: whether more favours the claim; the measure's own direction unless given.
        length: tokens of the sequences that were timed; all lengths unless given.
    """

    better: str
    than: str | float
    measure: str
    kind: str = "above"
    margin: float = 0.0
    than_measure: str | None = None
    attention: str = "full"
    higher: bool | None = None
    length: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {self.kind!r}.")
        for name in filter(None, (self.measure, self.than_measure)):
            if name not in MEASURES:
                raise ValueError(f"measure: expected one of {', '.join(MEASURES)}, got {name!r}.")
        if not self.margin >= 0 or (self.kind != "above" and not self.margin > 0):
            raise ValueError(f"margin: expected at least 0, above 0 for {self.kind!r}, got {self.margin}.")
        _ = self.sides  # raises where an encoding is wrong

    @property
    def sides(self) -> tuple[Setting, Setting | None]:
        """Return both settings; the second is None where there is a number in its place."""
        better = Setting.parse(self.better, self.attention)
        return better, None if isinstance(self.than, float) else Setting.parse(self.than, self.attention)

    @property
    def by(self) -> Measure:
        return MEASURES[self.measure]

    @property
    def favours_more(self) -> bool:
        return self.by.higher if self.higher is None else self.higher

    @property
    def names(self) -> tuple[str, str]:
        """Name both sides; the second is empty where both are one encoding by two measures."""
        better, than = self.sides
        if self.than_measure is not None:
            return f"{better}, {self.measured}", ""
        return str(better), "the bound" if than is None else str(than)

    @property
    def measured(self) -> str:
        """Name the measure, and the length where costs of one length are compared."""
        return self.by.words + ("" if self.length is None else f" at n = {self.length}")

    @property
    def words(self) -> str:
        better, than = self.sides
        if self.than_measure is not None:
            return f"{better}: {self.measured} against {MEASURES[self.than_measure].words}"
        return f"{better} against {f'{self.than:g}' if than is None else than}: {self.measured}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A statement of a paper.

    Args:
        key: its name in `headway claims KEY`.
        where: section, table or figure.
        numbers: the paper's, as printed there.
        scale: what the paper measured them on.
        contrasts: the comparisons that must all hold.
        stand_in: comparisons by the loss of pretraining. They stand beside `contrasts`, or in their place while there
            is no result for any of these; the ledger says so.
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
    sides: tuple[str, ...],
    than: str | float,
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
