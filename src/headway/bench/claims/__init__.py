"""The ledger of the four papers' claims: what the committed results say about each, and a verdict by one rule."""

from headway.bench.claims.claim import Claim, Contrast
from headway.bench.claims.ledger import CLAIMS, ledger, to_json
from headway.bench.claims.readers import read_results
from headway.bench.claims.samples import Results, Sample
from headway.bench.claims.settings import Choice, Setting
from headway.bench.claims.verdicts import Entry, Finding, judge_claim

__all__ = [
    "CLAIMS",
    "Choice",
    "Claim",
    "Contrast",
    "Entry",
    "Finding",
    "Results",
    "Sample",
    "Setting",
    "judge_claim",
    "ledger",
    "read_results",
    "to_json",
]
