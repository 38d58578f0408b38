"""The ledger on a terminal."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from headway.bench.claims.ledger import CLAIMS
from headway.bench.claims.samples import Results, Sample
from headway.bench.claims.settings import Setting
from headway.bench.claims.show import print_table, scale_of
from headway.bench.claims.verdicts import judge_claim

SCALES = ("bert-small; GPU", "bert-small; 10 times the rate")


def printed(results, width):
    console = Console(file=io.StringIO(), width=width)
    print_table([judge_claim(claim, results) for claim in CLAIMS], ["a/file.json: [no] run"], console)
    return console.file.getvalue()


def losses(**by_encoding):
    return Results(
        samples=tuple(
            Sample(
                measure="loss",
                setting=Setting.of({"encoding": name}),
                value=value + seed / 100,
                unit=f"seed {seed}",
                source="results",
            )
            for name, value in by_encoding.items()
            for seed in range(3)
        )
    )  # fmt: skip


def test_eighty_columns_cut_nothing():
    text = printed(losses(**{"learned": 3.5, "learned+tisa": 3.25}), 80)
    lines = [line.strip("│┃ ") for line in text.splitlines()]
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "…" not in text
    header = " ".join(line.strip("┃ ").split("┃")[-1].strip() for line in text.splitlines() if "┃" in line)
    assert header == "the paper, and ours: better – than = difference [interval]"
    names = {line.split("│")[0].strip() for line in lines}
    assert {claim.key for claim in CLAIMS} <= names
    assert "supported" in names and "not tested" in names and "by a stand-in" in names
    assert "learned+tisa – learned: 3.260 – 3.510 = -0.250" in " ".join(line.split("│")[-1].strip() for line in lines)
    assert "not used: a/file.json: [no] run" in text


def test_what_comparisons_share_is_said_once():
    one, other = (replace(judge_claim(CLAIMS[0], Results()).findings[0], scale=scale) for scale in SCALES)
    entry = replace(judge_claim(CLAIMS[0], Results()), findings=(one, other))
    assert scale_of(entry) == "bert-small; GPU; 10 times the rate"
