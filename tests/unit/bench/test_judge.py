"""The rule that verdicts follow, and claims about rows of a study."""

from __future__ import annotations

import pytest

from headway.bench.judge import BOOTSTRAP, SEEDS_BAND, STATED_BAND, apply_rule, judge, judge_rows


@pytest.mark.parametrize(
    ("kind", "difference", "half_width", "expected"),
    [
        ("above", 1.0, 0.9, "supported"),
        ("above", 1.0, 1.1, "not seen"),  # the interval holds 0
        ("above", 0.4, 0.1, "not seen"),  # certain, but too small to matter
        ("above", -1.0, 0.9, "contradicted"),
        ("above", -0.4, 0.1, "not seen"),
        ("at least", -0.2, 0.2, "supported"),
        ("at least", -0.4, 0.2, "not seen"),
        ("at least", -1.0, 0.2, "contradicted"),
        ("at least", 3.0, 0.2, "supported"),
        ("alike", 0.2, 0.2, "supported"),
        ("alike", -0.2, 0.2, "supported"),
        ("alike", 0.4, 0.2, "not seen"),
        ("alike", 1.0, 0.2, "contradicted"),
        ("alike", -1.0, 0.2, "contradicted"),
    ],
)
def test_the_rule(kind, difference, half_width, expected):
    assert apply_rule(kind, difference, half_width, margin=0.5) == expected


def test_three_pairs_have_an_interval_and_two_a_band():
    bands = {STATED_BAND: 0.5, SEEDS_BAND: 0.7, BOOTSTRAP: 0.0}
    three = judge("above", [1.0, 2.0, 4.0], 0.0, bands=bands)
    # by hand: standard deviation 1.5275; t of 2 degrees of freedom 4.3027
    assert three.half_width == pytest.approx(4.30265 * 1.527525 / 3**0.5, rel=1e-5)
    assert three.interval == pytest.approx((7 / 3 - three.half_width, 7 / 3 + three.half_width))
    assert three.write(1) == "+2.3 [-1.5, +6.1]" and three.verdict == "not seen"
    two = judge("above", [1.0, 2.0], 0.0, bands=bands)
    assert (two.half_width, two.interval, two.verdict) == (0.7, None, "supported")
    assert two.write(2, " %") == "+1.50 % (noise ±0.70)" and "2 seeds, no interval; noise band: the most" in two.basis
    boot = judge("above", [1.0], 0.0, bands={**bands, BOOTSTRAP: 0.9})
    assert boot.measured and boot.interval == pytest.approx((0.1, 1.9))
    exact = judge("alike", [0.05], 0.1, bands=dict.fromkeys(bands, 0.0))
    assert (exact.basis, exact.write(2), exact.verdict) == ("exact", "+0.05", "supported")


def test_less_may_be_better():
    losses = [-0.5, -0.4, -0.6]
    assert judge("above", losses, 0.1, more_is_better=False, bands={STATED_BAND: 0.0}).verdict == "supported"
    assert judge("above", losses, 0.1, bands={STATED_BAND: 0.0}).verdict == "contradicted"


COLUMN = {"source": "finetune", "value": "score", "scale": 100.0, "digits": 1, "higher": True, "chance": 50.0}


def rows(better, than=(), margin=0.0, **values):
    return judge_rows(
        {"better": better, "than": than, "margin": margin},
        COLUMN,
        {row: {str(seed): value for seed, value in enumerate(each)} for row, each in values.items()},
    )


def test_rows_are_paired_by_seed_and_several_are_their_median():
    found = rows(("a", "b", "c"), ("d",), a=[60, 61, 62], b=[70, 71.5, 72], c=[90, 91, 92], d=[50, 51, 52, 99])
    assert (found["verdict"], found["found"], found["compared"]) == ("supported", pytest.approx(213.5 / 3), 51.0)
    assert found["difference"] == pytest.approx((20 + 20.5 + 20) / 3)
    assert rows(("a",), ("d",), a=[60, 61, 62], d=[50, 51, 52])["said"] == "61.0 – 51.0 = +10.0 [+10.0, +10.0]"


def test_a_row_without_numbers_leaves_a_claim_not_tested():
    found = rows(("a",), ("b",), a=[60, 61, 62], b=[])
    assert (found["verdict"], found["said"]) == ("not tested", "")


def test_without_another_row_a_claim_is_about_chance():
    assert rows(("a",), margin=5.0, a=[50, 51, 49])["verdict"] == "supported"
    assert rows(("a",), margin=5.0, a=[70, 71, 69])["verdict"] == "contradicted"


def test_a_negative_margin_asks_for_at_least_as_good():
    assert rows(("a",), ("b",), a=[60, 61, 62], b=[61, 62, 63])["verdict"] == "contradicted"
    assert rows(("a",), ("b",), -2.0, a=[60, 61, 62], b=[61, 62, 63])["verdict"] == "supported"


def test_one_seed_must_exceed_the_noise_that_is_stated():
    assert rows(("a",), ("b",), a=[60.9], b=[60.0])["verdict"] == "not seen"
    assert rows(("a",), ("b",), a=[61.1], b=[60.0])["verdict"] == "supported"


def test_pretrainings_that_differ_widen_the_interval():
    claim, scores = {"better": ["a"], "than": ["b"], "margin": 0.0}, [60.0, 60.1, 59.9]
    once = {"a": {f"{seed}": score for seed, score in enumerate(scores)}, "b": dict.fromkeys("012", 58.0)}
    assert judge_rows(claim, COLUMN, once)["verdict"] == "supported"
    twice = {
        "a": {f"{pretraining}.{seed}": score + 6 * pretraining for pretraining in (0, 1)
              for seed, score in enumerate(scores)},
        "b": {f"{pretraining}.{seed}": 58.0 for pretraining in (0, 1) for seed in range(3)},
    }  # fmt: skip
    found = judge_rows(claim, COLUMN, twice)
    assert found["verdict"] == "not seen" and "(±6.0)" in found["basis"]
