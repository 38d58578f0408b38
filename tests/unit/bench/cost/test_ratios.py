"""Ratios: paired within rounds, so that what slows a whole round does not count."""

import pytest

from headway.bench.cost.ratios import Ratio, ratio, spread


def test_a_slow_round_changes_nothing():
    baseline = [1.0, 10.0, 1.0, 2.0, 1.0]  # the machine was busy in the second and fourth round
    assert ratio([1.5 * t for t in baseline], baseline) == Ratio(median=1.5, low=1.5, high=1.5)


def test_median_and_interval_by_hand():
    own = [1.1, 1.4, 1.0, 1.3, 1.2, 1.5]
    found = ratio(own, [1.0] * 6)
    assert found.median == pytest.approx(1.25)
    assert (found.low, found.high) == (1.1, 1.4)  # ranks 1 and 4 of 0..5


def test_one_round_is_its_own_interval():
    assert ratio([3.0], [2.0]) == Ratio(median=1.5, low=1.5, high=1.5)


def test_rounds_must_be_the_same():
    with pytest.raises(ValueError):
        ratio([1.0, 2.0], [1.0])


def test_spread_of_values():
    assert spread([5.0, 1.0, 2.0, 4.0, 3.0]) == Ratio(median=3.0, low=1.0, high=4.0)
