"""Laws of the Toeplitz R^2."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from headway.pretrained.analysis.toeplitz import diagonals, toeplitz_fit, toeplitz_r2

matrices = st.tuples(st.integers(3, 12), st.integers(0, 10**6)).map(
    lambda drawn: np.random.default_rng(drawn[1]).normal(size=(drawn[0], drawn[0]))
)


@given(matrices)
def test_it_is_a_share(matrix):
    assert 0.0 <= toeplitz_r2(matrix) <= 1.0


@given(matrices, st.floats(-100.0, 100.0), st.floats(0.01, 100.0))
def test_neither_a_constant_nor_a_factor_changes_it(matrix, shift, factor):
    assert_allclose(toeplitz_r2(factor * matrix + shift), toeplitz_r2(matrix), rtol=1e-6, atol=1e-9)


@given(matrices)
def test_the_transposed_matrix_has_the_same_and_its_diagonals_the_other_way_round(matrix):
    assert_allclose(toeplitz_r2(matrix.T), toeplitz_r2(matrix), rtol=1e-9)
    assert_allclose(diagonals(matrix.T).mean[0], diagonals(matrix).mean[0][::-1], rtol=1e-9, atol=1e-12)


@given(matrices)
def test_the_fit_is_toeplitz_and_fitting_it_again_changes_nothing(matrix):
    fit = toeplitz_fit(matrix)
    assert_allclose(toeplitz_r2(fit), 1.0, rtol=1e-9)
    assert_allclose(toeplitz_fit(fit), fit, rtol=1e-9, atol=1e-12)


@given(matrices)
def test_fit_and_rest_share_the_variance(matrix):
    fit = toeplitz_fit(matrix)
    around = ((matrix - matrix.mean()) ** 2).sum()
    assert_allclose(((fit - matrix.mean()) ** 2).sum() / around, toeplitz_r2(matrix), rtol=1e-8)
    assert_allclose(1 - ((matrix - fit) ** 2).sum() / around, toeplitz_r2(matrix), rtol=1e-8, atol=1e-12)


@given(matrices, st.integers(0, 10**6))
def test_adding_a_toeplitz_matrix_leaves_what_is_not_explained(matrix, seed):
    n = len(matrix)
    values = np.random.default_rng(seed).normal(size=2 * n - 1)
    added = values[np.arange(n)[None, :] - np.arange(n)[:, None] + n - 1]
    assert_allclose(diagonals(matrix + added).within, diagonals(matrix).within, rtol=1e-7, atol=1e-10)
