"""Measures of a position table on tables whose answers are known."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from headway.encodings import encoding
from headway.pretrained.analysis.position_table import (
    cosine_distribution,
    cosine_matrix,
    find_seam,
    gram,
    measure_table,
)
from headway.pretrained.analysis.toeplitz import toeplitz_r2


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def sinusoids(length, width=32):
    enc = encoding("sinusoidal", num_layers=1, num_heads=1, head_dim=width, max_length=length)
    return enc.embed(torch.zeros(1, length, width, dtype=torch.float64))[0].numpy()


def smooth(length, width=48, seed=0):
    """Neighbours alike, as in trained tables."""
    return sinusoids(length, width) + 0.2 * random(length, width, seed=seed)


def test_gram_is_every_inner_product():
    table = random(7, 5)
    matrix = gram(table).tile(0, 7, 0, 7)[0]
    for i in range(7):
        for j in range(7):
            assert_allclose(matrix[i, j], sum(table[i, e] * table[j, e] for e in range(5)), rtol=1e-12)


def test_sinusoids_are_exactly_toeplitz():
    """sin a sin b + cos a cos b = cos(a - b): the inner product depends on the offset alone."""
    found = measure_table(sinusoids(100))
    assert_allclose([found.r2, found.r2_without_first], 1.0, rtol=1e-10)
    assert_allclose(found.windows.r2, 1.0, rtol=1e-10)
    assert_allclose(found.norms, 4.0, rtol=1e-12)  # sqrt(32 / 2)
    assert found.seam.start is None


def test_random_tables_have_the_r2_that_theory_says():
    """Off the diagonal entries have variance d; on it they are near d: about n d^2 of n d^2 + n^2 d, plus 2 / n."""
    n, d = 256, 64
    found = measure_table(random(n, d))
    assert_allclose(found.r2, d / (d + n) + 2 / n * n / (d + n), rtol=0.1)
    assert_allclose(found.r2_off_diagonal, 2 / n, rtol=0.3)  # the means of 2n - 4 diagonals of n^2 entries
    assert found.seam.start is None


def test_the_main_diagonal_is_left_out():
    """What is left of P is compared with its diagonals' means one by one."""
    found, n = measure_table(table := random(9, 4)), 9
    matrix = (table @ table.T)[1:, 1:]
    offsets = np.subtract.outer(np.arange(n - 1), np.arange(n - 1))
    kept = offsets != 0
    means = {offset: matrix[offsets == offset].mean() for offset in np.unique(offsets[kept])}
    left = sum((matrix[offsets == offset] - mean).var() * (offsets == offset).sum() for offset, mean in means.items())
    assert_allclose(found.r2_off_diagonal, 1 - left / (matrix[kept].var() * kept.sum()), rtol=1e-9)


def test_position_0_apart_is_told():
    table = sinusoids(64)
    table[0] = 9.0 * random(32)
    found = measure_table(table)
    assert found.r2 < 0.5
    assert_allclose(found.r2_without_first, 1.0, rtol=1e-6)
    assert_allclose(found.r2_without_first, toeplitz_r2(table[1:] @ table[1:].T), rtol=1e-9)


def test_windows_see_where_a_table_is_toeplitz():
    table = sinusoids(256)
    table[128:] = 4 * random(128, 32) / 32**0.5
    found = measure_table(table, window=64)
    inside = {start: r2 for start, r2 in zip(found.windows.starts.tolist(), found.windows.r2[0], strict=True)}
    assert_allclose([inside[0], inside[32], inside[64]], 1.0, rtol=1e-9)
    assert max(inside[128], inside[160], inside[192]) < 0.5


@pytest.mark.parametrize("untrained", [60, 128, 200])
def test_positions_that_were_never_trained_begin_at_the_seam(untrained):
    table = smooth(256)
    table[untrained:] = 0.02 * random(256 - untrained, 48, seed=5)
    seam = find_seam(table)
    assert seam.start is not None
    assert abs(seam.start - untrained) <= 2
    assert seam.jump.shape == (256,)


def test_a_step_of_the_norm_is_a_seam_too():
    table = smooth(256, seed=2)
    table[128:] *= 1.5
    assert abs(find_seam(table).start - 128) <= 2


@pytest.mark.parametrize("seed", range(5))
def test_a_table_of_one_kind_has_no_seam(seed):
    assert find_seam(smooth(256, seed=seed)).start is None
    assert find_seam(random(256, 32, seed=seed)).start is None


def test_a_norm_that_grows_slowly_is_no_seam():
    assert find_seam(smooth(256) * np.linspace(1.0, 2.0, 256)[:, None]).start is None


def test_a_short_table_has_no_seam():
    seam = find_seam(smooth(20))
    assert seam.start is None
    assert not seam.jump.any()


def test_cosines_of_all_pairs():
    table = random(30, 6)
    table[4] = 0.0  # cosine 0 with every other, not NaN
    found = cosine_distribution(table, bins=10)
    pairs = []
    for i in range(30):
        for j in range(i + 1, 30):
            norms = np.sqrt(table[i] @ table[i]) * np.sqrt(table[j] @ table[j])
            pairs.append(table[i] @ table[j] / norms if norms else 0.0)
    assert found.counts.tolist() == np.histogram(pairs, bins=found.edges)[0].tolist()
    assert_allclose([found.mean, found.std], [np.mean(pairs), np.std(pairs)], rtol=1e-10)
    matrix = cosine_matrix(table)
    assert_allclose(matrix[np.triu_indices(30, 1)], pairs, rtol=1e-10, atol=1e-14)


def test_equal_vectors_have_cosine_1():
    """Chen et al. (2021b), Fig. 5: what a table that holds nothing looks like."""
    found = cosine_distribution(np.ones((9, 4)))
    assert found.counts[-1] == 36 == found.counts.sum()
    assert_allclose([found.mean, found.std], [1.0, 0.0], atol=1e-7)


def test_neighbours_are_positions_side_by_side():
    table = random(8, 5)
    assert_allclose(measure_table(table).neighbours, np.diag(cosine_matrix(table), 1), rtol=1e-12)


@pytest.mark.parametrize("shape", [(2, 4), (8,), (1, 8, 4)])
def test_what_is_no_table_is_refused(shape):
    with pytest.raises(ValueError, match=r"table: expected \(L, E\)"):
        measure_table(np.zeros(shape))
