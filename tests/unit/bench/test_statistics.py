"""Statistics, against scipy and against counting by hand."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest
from scipy.stats import binomtest, sem, t, ttest_ind, wilcoxon

from headway.bench.statistics import (
    Spread,
    Summary,
    compare,
    holm,
    least_difference,
    pairs_needed,
    pooled_deviation,
    ratio,
    share_interval,
    sign_flip,
    simultaneous_intervals,
    spread,
    student_half_width,
)


def by_counting(differences):
    """The share of all sign patterns whose mean is as far from zero."""
    values = np.array(differences)
    means = [abs((values * signs).mean()) for signs in product((1, -1), repeat=len(values))]
    return np.mean([mean >= abs(values.mean()) - 1e-12 for mean in means])


@pytest.mark.parametrize(
    "differences", [[1.0, 2.0, 3.0], [0.4, -0.1, 0.3, 0.2, 0.5], [1.0, -1.0], [3.0] * 6, [0.0, 0.0, 1.0]]
)
def test_the_test_counts_every_exchange_of_pairs(differences):
    assert sign_flip(differences) == pytest.approx(by_counting(differences))


def test_it_agrees_with_wilcoxon_where_all_differences_have_one_sign():
    differences = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    assert sign_flip(differences) == pytest.approx(wilcoxon(differences, method="exact").pvalue)


def test_one_pair_or_no_difference_says_nothing():
    assert sign_flip([5.0]) == 1.0
    assert sign_flip([0.0, 0.0, 0.0]) == 1.0


def test_holm_on_a_worked_example():
    """0.01 x 4, 0.02 x 3, 0.03 x 2 and 0.04 x 1, never falling."""
    assert holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize("tests", [1, 2, 5, 11])
def test_so_many_pairs_suffice_and_one_less_does_not(tests):
    needed = pairs_needed(tests)
    smallest = [min(holm([sign_flip([1.0] * pairs)] + [1.0] * (tests - 1))) for pairs in (needed, needed - 1)]
    assert smallest[0] <= 0.05 < smallest[1]


def seeds(*values):
    return {str(seed): value for seed, value in enumerate(values)}


def test_three_seeds_never_claim_anything():
    found = compare({"a": seeds(90.0, 91.0, 92.0)}, seeds(10.0, 11.0, 12.0))["a"]
    assert found.verdict == "too few seeds"
    assert (found.pairs, found.needed) == (3, 6)
    assert found.difference == 80.0


def test_many_seeds_claim_what_is_there():
    rng = np.random.default_rng(0)
    base = rng.normal(size=10)
    rows = {
        "above": seeds(*(base + 2)),
        "below": seeds(*(base - 2)),
        "same": seeds(*(base + rng.normal(size=10) * 0.1)),
    }
    verdicts = {name: found.verdict for name, found in compare(rows, seeds(*base)).items()}
    assert verdicts == {"above": "above", "below": "below", "same": "not told apart"}


def test_pairs_are_of_the_same_seed():
    found = compare({"a": {"0": 5.0, "7": 1.0}}, {"0": 3.0, "1": 100.0})["a"]
    assert (found.pairs, found.difference) == (1, 2.0)
    assert compare({"a": {"2": 1.0}}, {"0": 3.0})["a"].verdict == "too few seeds"


def test_summaries():
    assert Summary.of([3.0, 1.0, 2.0]) == Summary(median=2.0, mean=2.0, low=1.0, high=3.0, deviation=1.0, runs=3)
    assert Summary.of([4.0]).deviation is None


def test_a_slow_round_changes_no_ratio():
    baseline = [1.0, 10.0, 1.0, 2.0, 1.0]  # the machine was busy in the second and fourth round
    assert ratio([1.5 * each for each in baseline], baseline) == Spread(median=1.5, low=1.5, high=1.5)


def test_ratios_need_the_same_rounds():
    with pytest.raises(ValueError):
        ratio([1.0, 2.0], [1.0])


def test_median_and_middle_three_fifths_by_hand():
    found = spread([1.1, 1.4, 1.0, 1.3, 1.2, 1.5])
    assert found.median == pytest.approx(1.25)
    assert (found.low, found.high) == (1.1, 1.4)  # ranks 1 and 4 of 0..5
    assert spread([5.0, 1.0, 2.0, 4.0, 3.0]) == Spread(median=3.0, low=1.0, high=4.0)
    assert spread([1.5]) == Spread(median=1.5, low=1.5, high=1.5)


def test_students_interval_is_scipys():
    values = [1.0, 2.0, 4.0, 3.5]
    low, high = t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=sem(values))
    assert student_half_width(values) == pytest.approx((high - low) / 2)


def test_one_row_has_the_interval_of_the_test_of_two_samples():
    row, baseline = [3.1, 3.3, 3.2, 3.15], [3.4, 3.35, 3.5]
    found = simultaneous_intervals({"row": row}, baseline)["row"]
    low, high = ttest_ind(row, baseline).confidence_interval(0.95)
    assert found.difference - found.half_width == pytest.approx(low)
    assert found.difference + found.half_width == pytest.approx(high)


def test_more_rows_widen_the_intervals_and_share_their_deviation():
    rows = {"a": [1.0, 1.2], "b": [2.0, 2.4, 2.2]}
    baseline = [0.0, 0.1]
    deviation, degrees = pooled_deviation([*rows.values(), baseline])
    assert degrees == 4
    assert deviation == pytest.approx(((0.02 + 0.08 + 0.005) / 4) ** 0.5)
    quantile = t.ppf(1 - 0.05 / 4, 4)
    found = simultaneous_intervals(rows, baseline)
    assert found["b"].half_width == pytest.approx(quantile * deviation * (1 / 3 + 1 / 2) ** 0.5)
    assert found["b"].difference == pytest.approx(2.2 - 0.05)
    with pytest.raises(ValueError, match="Add a seed"):
        simultaneous_intervals({"a": [1.0]}, [2.0])


def test_the_intervals_hold_together_and_the_least_difference_is_found_four_times_in_five():
    rng = random.Random(0)
    rows, seeds, times = 6, 4, 2000
    effect = least_difference(1.0, (rows + 1) * (seeds - 1), seeds, rows)
    covered = seen = 0
    for _ in range(times):
        groups = [[rng.gauss(0.0, 1.0) for _ in range(seeds)] for _ in range(rows + 1)]
        found = simultaneous_intervals({str(at): group for at, group in enumerate(groups[1:])}, groups[0])
        covered += all(abs(each.difference) < each.half_width for each in found.values())
        seen += found["0"].difference + effect > found["0"].half_width
    assert 0.94 < covered / times < 0.98  # Bonferroni is a bound, and rows share a baseline
    assert seen / times == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize(("right", "of"), [(0, 10), (7, 10), (10, 10), (650, 1000)])
def test_a_share_has_wilsons_interval(right, of):
    expected = binomtest(right, of).proportion_ci(0.95, method="wilson")
    assert share_interval(right, of) == pytest.approx((expected.low, expected.high), abs=1e-12)
