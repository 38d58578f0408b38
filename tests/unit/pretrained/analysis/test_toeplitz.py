"""Toeplitz fit and R^2 against plain loops, and against what theory says of random matrices."""

import tracemalloc

import numpy as np
import pytest
from numpy.testing import assert_allclose

from headway.pretrained.analysis import matrices as tiles
from headway.pretrained.analysis.matrices import Product, Whole
from headway.pretrained.analysis.toeplitz import diagonals, toeplitz_fit, toeplitz_r2, windowed_r2, without_first


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def by_hand(matrix, causal=False):
    """Mean and variance of each diagonal, and R^2, by loops."""
    n = len(matrix)
    along = {k: [] for k in range(-(n - 1), 1 if causal else n)}
    for i in range(n):
        for j in range(n):
            if j - i in along:
                along[j - i].append(matrix[i, j])
    everything = [value for values in along.values() for value in values]
    grand = sum(everything) / len(everything)
    total = sum((value - grand) ** 2 for value in everything)
    left = sum((value - sum(values) / len(values)) ** 2 for values in along.values() for value in values)
    mean = [sum(values) / len(values) for values in along.values()]
    variance = [sum((v - sum(values) / len(values)) ** 2 for v in values) / len(values) for values in along.values()]
    return mean, variance, 1 - left / total


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("tile", [1, 30, 1 << 20])  # from one row at a time to everything at once
@pytest.mark.parametrize("n", [3, 7, 16])
def test_diagonals_are_those_of_loops(monkeypatch, n, tile, causal):
    monkeypatch.setattr(tiles, "TILE_ENTRIES", tile)
    matrices = random(2, n, n) + 3.0
    found = diagonals(matrices, causal=causal)
    assert found.offsets.tolist() == list(range(-(n - 1), 1 if causal else n))
    for h in range(2):
        mean, variance, r2 = by_hand(matrices[h], causal)
        assert_allclose(found.mean[h], mean, rtol=1e-12, atol=1e-13)
        assert_allclose(found.variance[h], variance, rtol=1e-9, atol=1e-13)
        assert_allclose(found.r2[h], r2, rtol=1e-10)


def test_the_offset_is_key_minus_query():
    matrix = np.zeros((6, 6))
    matrix[2, 3] = 5.0  # query 2, key 3: the next token
    found = diagonals(matrix)
    assert found.offsets[found.mean[0].argmax()] == 1


def test_an_exactly_toeplitz_matrix_has_r2_1_and_is_its_own_fit():
    values = random(2 * 50 - 1)
    matrix = values[np.arange(50)[None, :] - np.arange(50)[:, None] + 49]
    assert_allclose(toeplitz_r2(matrix), 1.0, rtol=1e-12)
    assert_allclose(toeplitz_fit(matrix), matrix, rtol=1e-12)
    assert_allclose(diagonals(matrix).mean[0], values, rtol=1e-12)


def test_toeplitz_far_from_zero_is_still_1():
    """Variances are taken around the mean, so that a large constant does not drown them."""
    values = random(2 * 50 - 1)
    matrix = values[np.arange(50)[None, :] - np.arange(50)[:, None] + 49] + 1e6
    assert_allclose(toeplitz_r2(matrix), 1.0, rtol=1e-9)


def test_a_constant_matrix_is_toeplitz():
    assert toeplitz_r2(np.zeros((5, 5))) == 1.0
    assert toeplitz_r2(np.full((5, 5), 7.3)) == 1.0


def test_random_matrices_have_the_r2_that_theory_says():
    """Independent normal entries: R^2 is Beta distributed with mean (2 n - 2) / (n^2 - 1) = 2 / (n + 1)."""
    n = 24
    r2 = diagonals(random(2000, n, n)).r2
    assert_allclose(r2.mean(), 2 / (n + 1), rtol=0.02)


def test_products_of_a_random_table_are_nearly_toeplitz():
    """They are near a multiple of the identity; an untrained table begins there, and docs/results.md says so."""
    positions, width = 128, 512
    table = np.random.default_rng(0).normal(size=(positions, width))
    assert abs(toeplitz_r2(table @ table.T) - 1 / (1 + positions / width)) < 0.01


def test_the_fit_is_the_best_there_is():
    matrix = random(9, 9)
    best = ((matrix - toeplitz_fit(matrix)) ** 2).sum()
    values = np.array([toeplitz_fit(matrix)[max(0, -k), max(0, k)] for k in range(-8, 9)])
    for seed in range(20):
        other = (values + 0.1 * random(17, seed=seed))[np.arange(9)[None, :] - np.arange(9)[:, None] + 8]
        assert ((matrix - other) ** 2).sum() > best


@pytest.mark.parametrize("causal", [False, True])
def test_without_the_first_position(causal):
    matrices = random(3, 12, 12)
    matrices[:, 0] += 20.0
    found = without_first(diagonals(matrices, causal=causal), Whole(matrices))
    expected = diagonals(matrices[:, 1:, 1:], causal=causal)
    assert found.offsets.tolist() == expected.offsets.tolist()
    assert found.count.tolist() == expected.count.tolist()
    assert_allclose(found.mean, expected.mean, rtol=1e-10, atol=1e-12)
    assert_allclose(found.variance, expected.variance, rtol=1e-8, atol=1e-11)
    assert_allclose(found.r2, expected.r2, rtol=1e-9)


def test_windows_are_parts_along_the_diagonal():
    matrices = random(2, 20, 20)
    found = windowed_r2(matrices, size=8, stride=5)
    assert found.starts.tolist() == [0, 5, 10]
    for h in range(2):
        for w, start in enumerate(found.starts):
            assert_allclose(found.r2[h, w], by_hand(matrices[h, start : start + 8, start : start + 8])[2], rtol=1e-9)


def test_a_window_longer_than_the_matrix_is_the_matrix():
    matrices = random(1, 6, 6)
    found = windowed_r2(matrices, size=128)
    assert found.starts.tolist() == [0]
    assert_allclose(found.r2[:, 0], diagonals(matrices).r2)


def test_factors_give_what_their_product_gives():
    left, right = random(2, 15, 4), random(2, 15, 4, seed=1)
    found, expected = diagonals(Product(left, right)), diagonals(left @ right.transpose(0, 2, 1))
    assert_allclose(found.r2, expected.r2, rtol=1e-10)
    assert_allclose(found.mean, expected.mean, rtol=1e-10, atol=1e-12)


def test_a_long_product_is_never_held_whole():
    n = 4096
    factors = random(1, n, 4)
    tracemalloc.start()
    r2 = diagonals(Product(factors, factors)).r2
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 0.0 < r2[0] < 1.0
    assert peak < 0.75 * n * n * 8


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4), (1, 2, 4, 4)])
def test_what_is_not_square_is_refused(shape):
    with pytest.raises(ValueError, match=r"expected \(L, L\) or \(H, L, L\)"):
        diagonals(np.zeros(shape))


def test_a_window_of_one_position_is_refused():
    with pytest.raises(ValueError, match="size: expected"):
        windowed_r2(np.zeros((4, 4)), size=1)
