"""The league, against its design as docs/league.md states it."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import mean

from headway.bench.statistics import least_difference, pooled_deviation, simultaneous_intervals
from headway.encodings import EncodingChoice
from headway.storage import read_json

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "league.md").read_text(encoding="utf-8")
ARMS = dict(re.findall(r"^\| ([^|`]+?) \| `([^`]+)` \|$", PAGE, flags=re.MULTILINE))
COMPARISONS, SEEDS = len(ARMS) - 1, 4


def test_every_arm_of_the_design_can_be_built_and_has_segments_at_the_input():
    assert len(ARMS) == 14
    for text in ARMS.values():
        assert EncodingChoice.parse(text).segments == "input"


def test_what_could_be_seen_follows_from_the_deviation_of_seeds_in_the_earlier_study():
    results = read_json(ROOT / "results" / "studies" / "encodings" / "results.json")
    at = [column["name"] for column in results["columns"]].index("Loss")
    seeds = [list(cell["values"].values()) for cell in results["cells"][at].values()]
    deviation, degrees = pooled_deviation(seeds)
    assert f"deviated by {deviation:.3f} nats ({degrees} degrees of freedom" in PAGE
    pooled = (COMPARISONS + 1) * (SEEDS - 1)
    assert f"{pooled} degrees of freedom the half width" in PAGE
    assert f"a true difference\nof {least_difference(deviation, pooled, SEEDS, COMPARISONS):.3f} nats" in PAGE
    half = simultaneous_intervals(
        {str(arm): _with_deviation(deviation) for arm in range(COMPARISONS)}, _with_deviation(deviation)
    )["0"].half_width
    assert f"is then {half:.3f} nats" in PAGE


def _with_deviation(deviation: float) -> list[float]:
    values = [-1.0, -1.0, 1.0, 1.0]
    assert mean(values) == 0.0
    return [value * deviation * 0.75**0.5 for value in values]
