"""One rule leads from committed numbers to the verdict on a claim.

Difference. A comparison has pairs of numbers: both sides with the same seed (or round, or head), each number a mean
over the tasks or corpora that both sides have. A seed that was not run on all of these is left out. The difference is
the mean over pairs.

Interval. With three pairs or more it is Student's 95 % interval. With fewer, a noise band takes its place, the widest
of three: what the measure states, what seeds of one encoding differ by in the committed results, and the paired
bootstrap over test sentences where there is one. Seeds of fine-tuning say nothing about pretraining, so where the two
sides come from two pretrained models, the interval is widened by the most that two pretrainings of one encoding differ
by, on the tasks for which committed results have two.

Verdict. A claim that one side is *above* the other is supported if the whole interval is on its side of 0 and the
difference is at least the margin, and contradicted if the same holds for the other side. A claim that one side is *at
least* as good is supported if the whole interval is above -margin, contradicted if it is below. A claim that both are
*alike* is supported if the interval lies within the margin either way, contradicted if it lies outside. In all other
cases the effect is not seen. A claim with several comparisons gets the worst of their verdicts: contradicted, not seen,
not tested, supported.

Numbers are compared only if their configurations differ in nothing but the encoding; of several such groups the largest
counts. Where nothing was measured on the task of a claim, a stand-in (the loss of pretraining) decides, and the ledger
says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from headway.bench.claims.claim import Claim, Contrast
from headway.bench.claims.pairing import Missing, Paired, find_pairs
from headway.bench.claims.samples import Results
from headway.bench.statistics import student_half_width

WORST_FIRST = ("contradicted", "not seen", "not tested", "supported")
LEAST_PAIRS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The result of one comparison.

    Args:
        difference: better side minus the other, in the measure's units or in percent.
        half_width: of the interval, or of the noise band in its place; None without results.
        measured: whether it is an interval, not a noise band.
        basis: where the half width comes from, in words.
        missing: commands that would produce the results it lacks.
    """

    contrast: Contrast
    verdict: str
    better: float | None = None
    than: float | None = None
    difference: float | None = None
    half_width: float | None = None
    measured: bool = False
    basis: str = ""
    pairs: tuple[tuple[str, float, float], ...] = ()
    blocks: tuple[str, ...] = ()
    scale: str = ""
    sources: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A claim and its verdict.

    Args:
        stood_in: whether the stand-in decided.
        unmeasured: the comparisons in whose place it decided.
    """

    claim: Claim
    verdict: str
    findings: tuple[Finding, ...]
    stood_in: bool
    unmeasured: tuple[Finding, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """Commands that would produce the missing results."""
        findings = (*self.findings, *self.unmeasured)
        return tuple(dict.fromkeys(command for finding in findings for command in finding.missing))


def judge_claim(claim: Claim, results: Results) -> Entry:
    """Judge all comparisons of a claim, or its stand-in where none of them has results."""
    findings = tuple(judge_contrast(contrast, results) for contrast in claim.contrasts)
    unmeasured: tuple[Finding, ...] = ()
    if claim.stand_in and all(finding.better is None for finding in findings):
        others = tuple(judge_contrast(contrast, results) for contrast in claim.stand_in)
        if any(finding.better is not None for finding in others):
            findings, unmeasured = others, findings
    worst = min((finding.verdict for finding in findings), key=WORST_FIRST.index)
    return Entry(claim=claim, verdict=worst, findings=findings, stood_in=bool(unmeasured), unmeasured=unmeasured)


def judge_contrast(contrast: Contrast, results: Results) -> Finding:
    """Judge one comparison."""
    found = find_pairs(contrast, results)
    if isinstance(found, Missing):
        return Finding(contrast=contrast, verdict="not tested", missing=found.commands)
    differences = [difference for *_, difference in found.pairs]
    difference = fmean(differences)
    half, measured, basis = half_width_of(contrast, found, differences)
    gain = difference if contrast.favours_more else -difference
    return Finding(
        contrast=contrast,
        verdict=apply_rule(contrast.kind, gain, half, contrast.margin),
        better=fmean(better for _, better, _, _ in found.pairs),
        than=fmean(than for _, _, than, _ in found.pairs),
        difference=difference,
        half_width=half,
        measured=measured,
        basis=basis,
        pairs=tuple((unit, better, than) for unit, better, than, _ in found.pairs),
        blocks=found.blocks,
        scale=found.scale,
        sources=found.sources,
    )


def half_width_of(contrast: Contrast, found: Paired, differences: Sequence[float]) -> tuple[float, bool, str]:
    """Return half the width of the interval or noise band, whether it is an interval, and its basis in words."""
    number = len(differences)
    kind = found.repeated
    if number >= LEAST_PAIRS:
        half = student_half_width(differences)
        basis = f"95 % interval over {number} {kind}s"
        if found.between_pretrainings:
            by = f"{found.between_pretrainings:.{contrast.by.digits}f}"
            basis += f", widened by what pretrainings of one encoding differ by (±{by})"
        return math.hypot(half, found.between_pretrainings), True, basis
    bands = {
        "noise band that we state": contrast.by.noise,
        "noise band: the most that seeds of one encoding differ by": found.between_seeds,
        "95 % paired bootstrap over test sentences": found.bootstrap,
    }
    name = max(bands, key=lambda each: bands[each])
    if not bands[name]:
        return 0.0, False, "exact"
    boot = bands[name] == found.bootstrap
    many = f"{number} {kind}{'s' if number > 1 else ''}"
    return bands[name], boot, f"{many}{'' if boot else ', no interval'}; {name}"


def apply_rule(kind: str, gain: float, half_width: float, margin: float) -> str:
    """Apply the rule of this file to one difference.

    Args:
        kind: above, at least or alike; see `Contrast`.
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
