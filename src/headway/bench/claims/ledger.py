"""All claims, their verdicts from a folder of results, and the ledger as plain values."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from headway.bench.claims import diet, scalar, shaw, tisa
from headway.bench.claims.claim import Claim
from headway.bench.claims.readers import read_results
from headway.bench.claims.samples import Results
from headway.bench.claims.verdicts import Entry, Finding, judge

CLAIMS: tuple[Claim, ...] = (*diet.CLAIMS, *scalar.CLAIMS, *shaw.CLAIMS, *tisa.CLAIMS)


def ledger(folder: Path) -> tuple[list[Entry], Results]:
    """Every claim, judged by the results in a folder, and these."""
    results = read_results(folder)
    return [judge(claim, results) for claim in CLAIMS], results


def entry(key: str, entries: list[Entry]) -> Entry:
    """The one of a key; raises, and lists the keys, where there is none."""
    for each in entries:
        if each.claim.key == key:
            return each
    near = difflib.get_close_matches(key, [each.claim.key for each in entries], n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"claim: expected one of {', '.join(each.claim.key for each in entries)}, got {key!r}.{hint}")


def to_json(entries: list[Entry], results: Results) -> dict[str, Any]:
    """Everything that the tables show, and what they are made of."""
    return {"claims": [_entry(each) for each in entries], "notes": list(results.notes)}


def _entry(each: Entry) -> dict[str, Any]:
    claim = each.claim
    return {
        **{name: getattr(claim, name) for name in ("key", "says", "paper", "where", "numbers", "note")},
        "paper_scale": claim.scale,
        "verdict": each.verdict,
        "stand_in": each.stood_in,
        "comparisons": [_finding(finding) for finding in each.findings],
        "missing": list(each.missing),
    }


def _around(finding: Finding) -> dict[str, Any]:
    """An interval, or the noise band in its place."""
    if finding.around is None or finding.difference is None:
        return {"interval": None, "noise_band": None, "basis": finding.basis}
    ends = [finding.difference - finding.around, finding.difference + finding.around]
    return {
        "interval": ends if finding.measured else None,
        "noise_band": None if finding.measured else finding.around,
        "basis": finding.basis,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    contrast = finding.contrast
    return {
        "compares": contrast.words,
        "kind": contrast.kind,
        "margin": contrast.margin,
        "verdict": finding.verdict,
        "better": finding.better,
        "than": finding.than,
        "difference": finding.difference,
        "in_percent": contrast.by.relative,
        **_around(finding),
        "pairs": [{"unit": unit, "better": better, "than": than} for unit, better, than in finding.pairs],
        "over": list(finding.blocks),
        "scale": finding.scale,
        "sources": list(finding.sources),
    }
