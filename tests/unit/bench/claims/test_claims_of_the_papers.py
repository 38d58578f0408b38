"""The ledger's claims against the papers: figures that are quoted stand in the cited tables."""

from __future__ import annotations

import pytest

from headway.bench.claims.claim import DIET, SCALAR
from headway.bench.claims.ledger import CLAIMS

# Chen et al. (2021b): Table 2, Avg; Table 3, Avg; Table 5, Avg; Table 9, Avg. Chen et al. (2021a): Tables 4 to 12.
GLUE = {
    DIET: {84.8, 85.2, 84.9, 82.0, 82.7, 85.0, 85.3},
    SCALAR: {84.8, 85.2, 85.0, 84.9},
}
XTREME = {
    DIET: {55.3, 58.2, 58.6, 57.5, 57.6, 58.0, 58.9, 48.2, 50.8, 55.4, 57.2, 54.7, 57.3, 56.3, 56.5, 56.8, 56.9, 57.9,
           58.3},
    SCALAR: {55.3, 58.0, 56.9, 58.2, 56.8, 56.5, 57.6, 55.4, 57.2, 54.7, 57.3, 56.7},
}  # fmt: skip
XNLI = {67.0, 67.4, 67.9, 68.0, 68.4, 68.6}
BLEU = {28.33, 31.82, 21.15, 29.23, 32.37, 21.47, 29.17, 31.81, 21.31, 29.22, 31.91, 21.71}  # 2021a, Table 6


def quoted(text: str) -> set[float]:
    """Numbers with a decimal point that a claim quotes."""
    words = text.replace(",", " ").replace(";", " ").replace("(", " ").replace(")", " ").split()
    return {float(word) for word in words if word.count(".") == 1 and word.replace(".", "").isdigit()}


@pytest.mark.parametrize("claim", [each for each in CLAIMS if each.paper in (DIET, SCALAR)], ids=lambda each: each.key)
def test_figures_are_the_papers(claim):
    numbers = quoted(claim.numbers)
    measures = {contrast.measure for contrast in claim.contrasts}
    if not measures <= {"glue", "xtreme", "xnli", "bleu"} or (claim.paper, measures) == (DIET, {"bleu"}):
        return
    allowed = {
        "glue": GLUE[claim.paper], "xtreme": XTREME[claim.paper], "xnli": XNLI, "bleu": BLEU
    }  # fmt: skip
    assert numbers and numbers <= set().union(*(allowed[measure] for measure in measures))


def test_a_claim_that_quotes_xtreme_is_judged_by_it():
    for claim in CLAIMS:
        if "XTREME" in claim.numbers:
            assert any(contrast.measure == "xtreme" for contrast in claim.contrasts), claim.key
        if "GLUE" in claim.numbers:
            assert any(contrast.measure == "glue" for contrast in claim.contrasts), claim.key


def test_the_papers_sentences_are_there():
    keys = {claim.key: claim for claim in CLAIMS}
    for key, where in (
        ("diet-abs-best-xtreme", "Table 3"),
        ("linformer-xtreme", "Table 3"),
        ("scalar-sharing", "Tables 8, 9"),
        ("scalar-rank", "Table 12"),
        ("rel-over-abs", "Tables 10, 11"),
        ("segments-xnli", "Tables 5, 11"),
        ("scalar-bleu", "Table 6"),
    ):
        assert where in keys[key].where
