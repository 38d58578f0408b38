"""Judge every comparison of a claim by the rule of `headway.bench.judge`, and the claim by the worst of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from headway.bench.claims.claim import Claim, Contrast
from headway.bench.claims.pairing import Missing, Paired, find_pairs
from headway.bench.claims.samples import Results
from headway.bench.judge import BOOTSTRAP, PLATEAU, SEEDS_BAND, STATED_BAND, WORST_FIRST, Judgement, judge


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """The result of one comparison.

    Args:
        judgement: None where there are no results, and `verdict` is "not tested".
        better, than: means of both sides.
        pairs: unit, better side, other side.
        losses: of pretraining, of both sides, where models were fine-tuned.
        untestable: why the numbers cannot decide; then the verdict is "not testable".
        missing: commands that would produce the results it lacks.
    """

    contrast: Contrast
    judgement: Judgement | None = None
    better: float | None = None
    than: float | None = None
    pairs: tuple[tuple[str, float, float], ...] = ()
    losses: tuple[float, float] | None = None
    untestable: str = ""
    blocks: tuple[str, ...] = ()
    scale: str = ""
    sources: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    why_missing: str = ""

    @property
    def verdict(self) -> str:
        if self.judgement is None:
            return "not tested"
        return "not testable" if self.untestable else self.judgement.verdict


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
        """List the commands that would produce the missing results."""
        findings = (*self.findings, *self.unmeasured)
        return tuple(dict.fromkeys(command for finding in findings for command in finding.missing))


def judge_claim(claim: Claim, results: Results, comparisons: Mapping[str, int] | None = None) -> Entry:
    """Judge all comparisons of a claim, and the loss of pretraining beside them or, without results, in their place.

    Args:
        comparisons: number of comparisons by each measure, whose intervals hold together; 1 unless given.
    """
    number = comparisons or {}
    findings, others = (
        tuple(judge_contrast(contrast, results, number.get(contrast.measure, 1)) for contrast in contrasts)
        for contrasts in (claim.contrasts, claim.stand_in)
    )
    others = tuple(finding for finding in others if finding.judgement is not None)
    unmeasured: tuple[Finding, ...] = ()
    if others and all(finding.judgement is None for finding in findings):
        findings, unmeasured = others, findings
    else:
        findings += others
    worst = min((finding.verdict for finding in findings), key=WORST_FIRST.index)
    return Entry(claim=claim, verdict=worst, findings=findings, stood_in=bool(unmeasured), unmeasured=unmeasured)


def judge_contrast(contrast: Contrast, results: Results, comparisons: int = 1) -> Finding:
    """Judge one comparison, whose interval holds together with those of `comparisons` in all."""
    found = find_pairs(contrast, results)
    if isinstance(found, Missing):
        return Finding(contrast=contrast, missing=found.commands, why_missing=found.why)
    bands = {STATED_BAND: contrast.by.noise, SEEDS_BAND: found.between_seeds, BOOTSTRAP: found.bootstrap}
    judgement = judge(
        contrast.kind,
        [difference for *_, difference in found.pairs],
        contrast.margin,
        more_is_better=contrast.favours_more,
        unit=found.repeated,
        bands=bands,
        pooled=found.deviation,
        models=found.models,
        tuned=contrast.by.tuned,
        comparisons=comparisons,
        between_models=contrast.by.noise if found.repeated == "head" else 0.0,
        digits=contrast.by.digits,
    )
    return Finding(
        contrast=contrast,
        judgement=judgement,
        better=fmean(better for _, better, _, _ in found.pairs),
        than=fmean(than for _, _, than, _ in found.pairs),
        pairs=tuple((unit, better, than) for unit, better, than, _ in found.pairs),
        losses=found.losses,
        untestable=_why_untestable(contrast, found),
        blocks=found.blocks,
        scale=found.scale,
        sources=found.sources,
    )


def _why_untestable(contrast: Contrast, found: Paired) -> str:
    """Say which side's pretraining has hardly begun to learn, or was not given a rate as the other was.

    Its scores then say nothing of the encoding. A model without positions is what its encoding makes it, however high
    its loss.
    """
    for side, loss in zip(contrast.sides, found.losses or (), strict=False):
        if side is not None and side.encoding.names != ("none",) and loss > PLATEAU:
            return f"{side} had not left the plateau of pretraining (loss {loss:.2f}, above {PLATEAU:g})"
    if found.rates is not None:
        return "positions at {:g} and {:g} times the rate, which were not chosen from one grid".format(*found.rates)
    return ""
