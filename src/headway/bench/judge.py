"""One rule leads from repeated numbers to the verdict on a claim, in `headway claims` and in every study.

Difference. A comparison has pairs of numbers: both sides with the same seed (or round, or head). In the ledger each
number is a mean over the tasks or corpora that both sides have, and a seed that was not run on all of these is left
out; in a study it is one column, and of several rows on one side the median. The difference is the mean over pairs.

Interval. The unit is a trained model, and half the width of the interval is t s sqrt(2 / n), as in docs/league.md: n
models a side were trained, s is the deviation of models of one encoding that differ in their seed, pooled over
encodings, and t is Student's quantile for its degrees of freedom. Means of several tasks have the s of each, as far
as it is known. Seeds of fine-tuning, heads and layers are no models. Where s has fewer than four degrees of freedom,
fine-tuned models are not judged, because what another pretraining would give is not known; of other models a noise
band takes the place of the interval, the widest of three: what is stated for the measure, what seeds of one encoding
differ by, and the paired bootstrap over test sentences. Rounds of timing alternate between both sides, so that their
interval is Student's of the paired differences, from three rounds on; so is that of heads of one model, widened by
what is stated for two models.

Comparisons. In the ledger the intervals of all comparisons by one measure hold together with 95 % (Bonferroni).

Studies. Where a plan has claims of its own, they are judged within the study: Student's 95 % interval over pairs,
widened by the most that two pretrainings of one encoding differ by, or the noise band; not corrected. They say what
this study shows, and the ledger what holds beyond it.

Verdict. A claim that one side is *above* the other is supported if the whole interval is on its side of 0 and the
difference is at least the margin, and contradicted if the same holds for the other side. A claim that one side is *at
least* as good is supported if the whole interval is above -margin, contradicted if it is below. A claim that both are
*alike* is supported if the interval lies within the margin either way, contradicted if it lies outside. In all other
cases the effect is not seen. A claim with several comparisons gets the worst of their verdicts: contradicted, not seen,
not tested, not testable, supported.

Not testable. Scores of a model whose pretraining has hardly begun to learn (a loss above 5 nats, about what the
frequencies of words alone give) say nothing of its encoding; a comparison with one is shown and does not count. The
same holds in the ledger where both sides have parameters of positions that were trained at different rates, unless each
chose its rate from one grid: a side that was never given another rate may be behind for that alone.

In the ledger, numbers are compared only if their configurations differ in nothing but the encoding; of several such
groups the largest counts. Beside scores of fine-tuning stands the loss of pretraining, judged by the same rule, and the
claim gets the worse verdict of the two; where there are no scores, the loss is a stand-in, and the ledger says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from headway.bench.statistics import pooled_half_width, student_half_width

KINDS = ("above", "at least", "alike")
WORST_FIRST = ("contradicted", "not seen", "not tested", "not testable", "supported")
LEAST_PAIRS = 3
LEAST_DEGREES = 4  # of freedom; a deviation with fewer is itself hardly known
# How far two runs that differ only in their seed may lie apart, stated before there were results: a loss in nats, a
# score or BLEU in points, times in percent.
STATED_NOISE = {"loss": 0.05, "score": 1.0, "bleu": 0.5, "time": 2.0}
PLATEAU = 5.0  # loss of pretraining, in nats, above which a model has hardly begun to learn
STATED_BAND = "noise band that we state"
SEEDS_BAND = "noise band: the most that seeds of one encoding differ by"
BOOTSTRAP = "95 % paired bootstrap over test sentences"


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """A difference with its interval and the verdict that follows.

    Args:
        difference: the first side minus the second, mean over pairs.
        half_width: of the interval, or of the noise band in its place; infinite where neither is known.
        measured: whether it is an interval, not a noise band.
        basis: where the half width comes from, in words.
    """

    verdict: str
    difference: float
    half_width: float
    measured: bool
    basis: str

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return the ends of the interval; None where there is a noise band."""
        return (self.difference - self.half_width, self.difference + self.half_width) if self.measured else None

    @property
    def has_band(self) -> bool:
        """Return whether a noise band takes the place of an interval."""
        return not self.measured and not math.isinf(self.half_width)

    def write(self, digits: int, unit: str = "") -> str:
        """Write +0.571 [+0.521, +0.621], or the noise band where there is no interval."""
        middle = f"{_rounded(self.difference, digits)}{unit}"
        if self.interval is not None:
            return f"{middle} [{', '.join(_rounded(end, digits) for end in self.interval)}]"
        if math.isinf(self.half_width):
            return f"{middle} (no interval)"
        return f"{middle} (noise ±{self.half_width:,.{digits}f})" if self.half_width else middle


def judge(
    kind: str,
    differences: Sequence[float],
    margin: float,
    *,
    more_is_better: bool = True,
    unit: str = "seed",
    bands: Mapping[str, float],
    between_pretrainings: float = 0.0,
    between_models: float = 0.0,
    pooled: tuple[float, int] | None = None,
    models: int = 1,
    tuned: bool = False,
    comparisons: int = 1,
    digits: int = 1,
) -> Judgement:
    """Judge a comparison by its differences, one for each pair.

    Args:
        kind: above, at least or alike.
        margin: the least difference that matters, in the same units.
        more_is_better: whether a positive difference favours the claim.
        unit: what a pair is: seed, round, head or row.
        bands: half widths of noise bands, by their names above; the widest counts where there are few pairs.
        between_pretrainings: what two pretrainings of one encoding differ by, by which an interval is widened.
        between_models: what is stated that two models differ by, by which an interval over heads of one is widened.
        pooled: deviation of models that differ in their seed alone, and its degrees of freedom.
        models: number of models that were trained with each side.
        tuned: whether the numbers are of fine-tuned models, whose pretrainings are the models that count.
        comparisons: number of comparisons whose intervals hold together with 95 %.
        digits: of the number that `basis` names.
    """
    difference, number = fmean(differences), len(differences)
    measured, many = True, f"{number} {unit}{'s' if number > 1 else ''}"
    if pooled is not None and pooled[1] >= LEAST_DEGREES:
        half = pooled_half_width(pooled, models, comparisons=comparisons)
        basis = (
            f"95 % interval from {models} model{'s' if models > 1 else ''} a side and the deviation of seeds, "
            f"{pooled[0]:.{digits + 1}f} with {pooled[1]} degrees of freedom{_together(comparisons)}"
        )
    elif tuned:
        half, measured = math.inf, False
        basis = f"{many} of {models} pretraining{'s' if models > 1 else ''} a side; what another gives is not known"
    elif number >= LEAST_PAIRS:
        half = student_half_width(differences, comparisons=comparisons)
        half = math.hypot(half, between_pretrainings, between_models)
        basis = f"95 % interval over {many}"
        if between_pretrainings:
            basis += f", widened by what pretrainings of one encoding differ by (±{between_pretrainings:.{digits}f})"
        if between_models:
            basis += f" of one model, widened by what is stated for two models (±{between_models:.{digits}f})"
        basis += _together(comparisons)
    else:
        name = max(bands, key=lambda each: bands[each])
        half, measured = bands[name], bands[name] == bands.get(BOOTSTRAP) != 0
        basis = f"{many}{'' if measured else ', no interval'}; {name}" if half else "exact"
    verdict = apply_rule(kind, difference if more_is_better else -difference, half, margin)
    return Judgement(verdict=verdict, difference=difference, half_width=half, measured=measured, basis=basis)


def _together(comparisons: int) -> str:
    return f"; one of {comparisons} that hold together" if comparisons > 1 else ""


def apply_rule(kind: str, gain: float, half_width: float, margin: float) -> str:
    """Apply the rule of this file to one difference.

    Args:
        kind: above, at least or alike.
        gain: the difference, positive if it favours the claim.
        half_width: of its interval.
    """
    low, high = gain - half_width, gain + half_width
    if kind == "above":
        supported, contradicted = low > 0 and gain >= margin, high < 0 and -gain >= margin
    elif kind == "at least":
        supported, contradicted = low > -margin, high < -margin
    else:
        supported, contradicted = low > -margin and high < margin, low > margin or high < -margin
    return "supported" if supported else "contradicted" if contradicted else "not seen"


def judge_rows(
    claim: Mapping[str, Any], column: Mapping[str, Any], values: Mapping[str, Mapping[str, float]]
) -> dict[str, Any]:
    """Judge a claim about rows of a study's table; return the judgement and both sides' means, as JSON holds them.

    Args:
        claim: better and than, names of rows; a claim without `than` compares with the column's chance. A negative
            margin asks for at least as good, less that much.
        column: the column of the table that decides.
        values: of every row in that column, by seed.
    """
    kind = "alike" if not claim["than"] else "at least" if claim["margin"] < 0 else "above"
    better = _median_by_seed(claim["better"], values)
    than = _median_by_seed(claim["than"], values) if claim["than"] else dict.fromkeys(better, column["chance"])
    pairs = [(value, than[seed]) for seed, value in better.items() if than.get(seed) is not None]
    if not pairs:
        return {"verdict": "not tested", "found": None, "compared": None, "difference": None, "basis": "", "said": ""}
    judgement = judge(
        kind,
        [a - b for a, b in pairs],
        abs(claim["margin"]),
        more_is_better=column["higher"],
        unit="round" if column["source"] == "cost" else "seed",
        bands={STATED_BAND: _stated_noise(column), SEEDS_BAND: max(map(_range, values.values()), default=0.0)},
        between_pretrainings=max(_range_of_pretrainings(values[row]) for row in (*claim["better"], *claim["than"])),
        digits=column["digits"],
    )
    found, compared = (fmean(side) for side in zip(*pairs, strict=True))
    digits = column["digits"]
    return {
        "verdict": judgement.verdict,
        "found": found,
        "compared": compared,
        "difference": judgement.difference,
        "basis": judgement.basis,
        "said": f"{found:.{digits}f} – {compared:.{digits}f} = {judgement.write(digits)}",
    }


def _median_by_seed(rows: Sequence[str], values: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the median over rows for each seed that all of them have."""
    first, *rest = (values[row] for row in rows)
    return {
        seed: median([value, *(each[seed] for each in rest)])
        for seed, value in first.items()
        if all(seed in each for each in rest)
    }


def _stated_noise(column: Mapping[str, Any]) -> float:
    """Return the noise that is stated for a column's kind of number, in its units; 0 for what is only counted."""
    scale: float = column["scale"]
    if column["source"] == "parameters":
        return 0.0
    if column["source"] == "cost":
        return STATED_NOISE["time"] / 100 * scale
    if column["source"] == "lengths" or "loss" in column["value"]:
        return STATED_NOISE["loss"] * scale
    if column["value"] == "bleu":
        return STATED_NOISE["bleu"] * scale
    return STATED_NOISE["score"] / 100 * scale  # the saved number is a share


def _range(values: Mapping[str, float]) -> float:
    return max(values.values()) - min(values.values()) if values else 0.0


def _range_of_pretrainings(values: Mapping[str, float]) -> float:
    """Return the most that means over fine-tuning differ by; seeds are PRETRAINING.FINETUNING where there are several.

    One pretrained model gives 0, and what another would have given stays unknown.
    """
    groups: dict[str, list[float]] = {}
    for seed, value in values.items():
        pretraining, dot, _ = seed.partition(".")
        groups.setdefault(pretraining if dot else "", []).append(value)
    means = [fmean(each) for each in groups.values()]
    return max(means) - min(means) if means else 0.0


def _rounded(value: float, digits: int) -> str:
    return f"{round(value, digits) + 0.0:+,.{digits}f}"  # adding 0.0 turns -0.0 into 0.0
