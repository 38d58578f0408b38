"""All claims, their verdicts from a folder of results, and the ledger as JSON."""

from __future__ import annotations

import difflib
from collections import Counter
from pathlib import Path
from typing import Any

from headway.bench.claims import diet, scalar, shaw, tisa
from headway.bench.claims.claim import Claim
from headway.bench.claims.readers import read_results
from headway.bench.claims.samples import Results
from headway.bench.claims.verdicts import Entry, Finding, judge_claim

CLAIMS: tuple[Claim, ...] = (*diet.CLAIMS, *scalar.CLAIMS, *shaw.CLAIMS, *tisa.CLAIMS)


def ledger(folder: Path) -> tuple[list[Entry], Results]:
    """Judge every claim by the results in a folder; return the entries and the results."""
    results = read_results(folder)
    return judge_together(results), results


def judge_together(results: Results) -> list[Entry]:
    """Judge every claim, with intervals that hold together for all comparisons by one measure."""
    entries = [judge_claim(claim, results) for claim in CLAIMS]
    compared = {found.contrast for each in entries for found in each.findings if found.judgement is not None}
    number = Counter(contrast.measure for contrast in compared)
    return [judge_claim(claim, results, number) for claim in CLAIMS]


def find_entry(key: str, entries: list[Entry]) -> Entry:
    """Return the entry with a key; raise, listing all keys, if there is none."""
    for each in entries:
        if each.claim.key == key:
            return each
    near = difflib.get_close_matches(key, [each.claim.key for each in entries], n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"claim: expected one of {', '.join(each.claim.key for each in entries)}, got {key!r}.{hint}")


def to_json(entries: list[Entry], results: Results) -> dict[str, Any]:
    """Return everything that the tables show, and the numbers behind it."""
    return {"claims": [_entry_json(each) for each in entries], "notes": list(results.notes)}


def _entry_json(each: Entry) -> dict[str, Any]:
    claim = each.claim
    return {
        **{name: getattr(claim, name) for name in ("key", "says", "paper", "where", "numbers", "note")},
        "paper_scale": claim.scale,
        "verdict": each.verdict,
        "stand_in": each.stood_in,
        "comparisons": [_finding_json(finding) for finding in each.findings],
        "missing": list(each.missing),
    }


def _finding_json(finding: Finding) -> dict[str, Any]:
    contrast, judgement = finding.contrast, finding.judgement
    interval = None if judgement is None or judgement.interval is None else list(judgement.interval)
    return {
        "compares": contrast.words,
        "kind": contrast.kind,
        "margin": contrast.margin,
        "verdict": finding.verdict,
        "better": finding.better,
        "than": finding.than,
        "difference": None if judgement is None else judgement.difference,
        "in_percent": contrast.by.relative,
        "interval": interval,
        "noise_band": None if judgement is None or not judgement.has_band else judgement.half_width,
        "losses": None if finding.losses is None else list(finding.losses),
        "untestable": finding.untestable,
        "basis": "" if judgement is None else judgement.basis,
        "pairs": [{"unit": unit, "better": better, "than": than} for unit, better, than in finding.pairs],
        "over": list(finding.blocks),
        "scale": finding.scale,
        "sources": list(finding.sources),
    }
