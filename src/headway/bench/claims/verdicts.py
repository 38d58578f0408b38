"""From committed numbers to a verdict, by one rule.

The difference of a comparison is the mean over its pairs: two numbers of the same seed (round, head), each the mean
over the tasks or corpora that both sides have; a seed not run on all of these is left out. With three pairs or more its
interval is Student's, at 95 %. With fewer there is none, and a noise band stands in: the widest of what the measure
states, what seeds of one encoding differ by in the committed results, and the paired bootstrap over test sentences
where there is one. Pairs that are seeds of fine-tuning say nothing of pretraining: where the two sides are from two
pretrained models, the interval is widened by the most that two pretrainings of one encoding differ by, on the tasks
where committed results have two.

A claim that one side is *above* the other is supported where the whole interval is on its side of 0 and the difference
is at least the margin, contradicted where the same holds of the other side. That it is *at least* as good: supported
where the whole interval is above -margin, contradicted where it is below. That they are *alike*: supported where the
interval is within ± margin, contradicted where it is outside. Everything else is not seen. A claim of several
comparisons is no better than its worst: contradicted, not seen, not tested, supported.

Numbers are compared only where all of the configuration is the same but the encoding; of several such groups the
largest counts. Where a claim is about a task that nothing was measured on, a stand-in (the loss of pretraining)
decides, and the ledger says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from headway.bench.claims.claim import Claim, Contrast
from headway.bench.claims.pairing import Missing, Paired, paired
from headway.bench.claims.samples import Results

WORST_FIRST = ("contradicted", "not seen", "not tested", "supported")
LEAST_PAIRS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What one comparison came to.

    Args:
        difference: of the better side from the other, in the measure's units or in percent.
        around: half the width of the interval, or of the noise band that stands in for it; None without results.
        measured: whether it is an interval.
        basis: what it is, in words.
        missing: what there is no result for, and the commands that would make it.
    """

    contrast: Contrast
    verdict: str
    better: float | None = None
    than: float | None = None
    difference: float | None = None
    around: float | None = None
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
        unmeasured: what it stood in for.
    """

    claim: Claim
    verdict: str
    findings: tuple[Finding, ...]
    stood_in: bool
    unmeasured: tuple[Finding, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """Commands that would answer what is open."""
        open_ = (*self.findings, *self.unmeasured)
        return tuple(dict.fromkeys(command for finding in open_ for command in finding.missing))


def judge(claim: Claim, results: Results) -> Entry:
    """The verdict on a claim."""
    findings = tuple(find(contrast, results) for contrast in claim.contrasts)
    unmeasured: tuple[Finding, ...] = ()
    if claim.stand_in and all(finding.better is None for finding in findings):
        others = tuple(find(contrast, results) for contrast in claim.stand_in)
        if any(finding.better is not None for finding in others):
            findings, unmeasured = others, findings
    worst = min((finding.verdict for finding in findings), key=WORST_FIRST.index)
    return Entry(claim=claim, verdict=worst, findings=findings, stood_in=bool(unmeasured), unmeasured=unmeasured)


def find(contrast: Contrast, results: Results) -> Finding:
    """The verdict on a comparison."""
    found = paired(contrast, results)
    if isinstance(found, Missing):
        return Finding(contrast=contrast, verdict="not tested", missing=found.commands)
    differences = [difference for *_, difference in found.pairs]
    difference = fmean(differences)
    half, measured, basis = half_width(contrast, found, differences)
    return Finding(
        contrast=contrast,
        verdict=verdict(contrast, difference, half),
        better=fmean(better for _, better, _, _ in found.pairs),
        than=fmean(than for _, _, than, _ in found.pairs),
        difference=difference,
        around=half,
        measured=measured,
        basis=basis,
        pairs=tuple((unit, better, than) for unit, better, than, _ in found.pairs),
        blocks=found.blocks,
        scale=found.scale,
        sources=found.sources,
    )


def half_width(contrast: Contrast, found: Paired, differences: Sequence[float]) -> tuple[float, bool, str]:
    """Half the interval's width, whether it is one, and what it is."""
    number = len(differences)
    kind = found.repeated
    if number >= LEAST_PAIRS:
        from scipy.special import stdtrit

        half = float(stdtrit(number - 1, 0.975)) * stdev(differences) / math.sqrt(number)
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


def verdict(contrast: Contrast, difference: float, around: float) -> str:
    """The rule of this file, on a difference and half the width of its interval."""
    gain = difference if contrast.favours_more else -difference
    low, high, margin = gain - around, gain + around, contrast.margin
    if contrast.kind == "above":
        supported, contradicted = low > 0 and gain >= margin, high < 0 and -gain >= margin
    elif contrast.kind == "at least":
        supported, contradicted = low > -margin, high < -margin
    else:
        supported, contradicted = low > -margin and high < margin, low > margin or high < -margin
    return "supported" if supported else "contradicted" if contradicted else "not seen"
