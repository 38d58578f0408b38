"""TISA's kernels: planted ones are found again, and every number says what it should."""

from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose

from headway.pretrained.analysis.tisa_fit import fit_tisa
from headway.pretrained.analysis.tisa_search import Point, Search
from headway.pretrained.analysis.toeplitz import Diagonals, diagonals


def curve(kernels, offsets, constant=0.0):
    """Wennberg and Henter (2021), Eq. (5), as written."""
    return np.array([constant + sum(a * np.exp(-abs(b) * (k - c) ** 2) for a, b, c in kernels) for k in offsets])


def profile_of(curves, length, causal=False):
    """Diagonals of exactly Toeplitz matrices."""
    offsets = np.arange(-(length - 1), 1 if causal else length)
    values = np.stack([one(offsets) for one in curves])
    return Diagonals(offsets, length - np.abs(offsets), values, np.zeros_like(values))


def planted(count, length, seed):
    """Kernels as heads have them: some tokens wide or narrow, near the query or some way off."""
    draw = np.random.default_rng(seed)
    widths = np.exp(draw.uniform(np.log(0.7), np.log(length / 6), count))
    centers = draw.laplace(0.0, length / 12, count)
    amplitudes = draw.choice([-1.0, 1.0], count) * draw.uniform(0.5, 4.0, count)
    return [(a, 1 / (2 * w * w), c) for a, w, c in zip(amplitudes, widths, centers, strict=True)]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("count", [1, 3, 5])
def test_planted_kernels_are_found_again(count, seed):
    kernels = planted(count, 128, seed)
    profile = profile_of([lambda k: curve(kernels, k, constant=-2.5)], 128)
    fit = fit_tisa(profile, kernels=[count])[0][count]
    assert fit.r2_profile > 0.999
    assert fit.r2_matrix > 0.999
    assert_allclose(fit(profile.offsets), profile.mean[0], atol=0.25 * profile.mean[0].std())


@pytest.mark.parametrize(("a", "b", "c"), [(3.0, 0.5, -1.0), (-2.0, 0.01, 12.0), (1.5, 0.002, 0.0), (0.4, 1.0, 1.0)])
def test_one_kernel_has_the_parameters_that_were_planted(a, b, c):
    fit = fit_tisa(profile_of([lambda k: curve([(a, b, c)], k, constant=7.0)], 100), kernels=[1])[0][1]
    assert_allclose(
        [fit.amplitude[0], fit.sharpness[0], fit.center[0], fit.constant], [a, b, c, 7.0], rtol=1e-2, atol=1e-2
    )


@pytest.mark.parametrize("causal", [False, True])
def test_too_few_positions_for_so_many_kernels_are_told(causal):
    """As many kernels as can be fitted are; one more is refused, by us."""
    profile = profile_of([lambda k: curve([(1.0, 0.5, 0.0)], k)], 5, causal=causal)
    most = len(profile.offsets) - 2
    assert fit_tisa(profile, kernels=[most])[0][most].r2_profile > 0.99
    said = rf"kernels: expected at least {most + 3} offsets to fit {most + 1} kernels to, got {most + 2}\. Fit fewer"
    with pytest.raises(ValueError, match=said):
        fit_tisa(profile, kernels=[1, most + 1])


def test_the_sign_of_offsets_is_key_minus_query():
    """A head that looks at the previous token has its kernel at -1."""
    matrix = np.zeros((1, 40, 40))
    matrix[0, np.arange(1, 40), np.arange(39)] = 4.0
    fit = fit_tisa(diagonals(matrix), kernels=[1])[0][1]
    assert abs(fit.center[0] + 1.0) < 0.2
    assert fit.amplitude[0] > 1.0


def test_more_kernels_explain_no_less():
    noise = np.random.default_rng(1).normal(size=(4, 127)).cumsum(axis=1)
    offsets = np.arange(-63, 64)
    profile = Diagonals(offsets, 64 - np.abs(offsets), noise, np.zeros_like(noise))
    for fits in fit_tisa(profile, kernels=(1, 2, 3, 5)):
        r2 = [fits[count].r2_matrix for count in (1, 2, 3, 5)]
        assert all(more >= less - 1e-6 for less, more in pairwise(r2))
        assert 0.0 <= r2[0] <= r2[-1] <= 1.0


def test_r2_of_the_matrix_is_that_of_the_fitted_toeplitz_matrix():
    matrix = np.random.default_rng(2).normal(size=(2, 30, 30))
    matrix += curve(planted(3, 30, 0), (np.arange(30)[None, :] - np.arange(30)[:, None]).ravel()).reshape(30, 30)
    profile = diagonals(matrix)
    for head, fits in enumerate(fit_tisa(profile, kernels=(1, 3))):
        for fit in fits.values():
            fitted = fit((np.arange(30)[None, :] - np.arange(30)[:, None]).ravel()).reshape(30, 30)
            around = matrix[head] - matrix[head].mean()
            assert_allclose(fit.r2_matrix, 1 - ((matrix[head] - fitted) ** 2).sum() / (around**2).sum(), rtol=1e-9)
            profile_around = profile.mean[head] - profile.mean[head].mean()
            error = fit(profile.offsets) - profile.mean[head]
            assert_allclose(fit.r2_profile, 1 - (error**2).sum() / (profile_around**2).sum(), rtol=1e-9)
            assert fit.r2_matrix <= profile.r2[head]


def test_two_calls_give_the_same():
    profile = profile_of([lambda k: np.sin(k / 5.0) + 0.01 * k], 60)
    one, two = (fit_tisa(profile, kernels=[5], seed=3)[0][5] for _ in range(2))
    assert_allclose(one.amplitude, two.amplitude, rtol=0)
    assert one.r2_matrix == two.r2_matrix


def test_further_searches_never_do_worse():
    profile = profile_of([lambda k: np.sin(k / 7.0) * np.exp(-np.abs(k) / 30)], 60)
    costs = [fit_tisa(profile, kernels=[3], starts=starts)[0][3].r2_matrix for starts in (1, 4)]
    assert costs[1] >= costs[0] - 1e-4  # equal but for the ridge


def test_amplitudes_stay_in_the_size_of_the_profile():
    """A parabola is the limit of two huge, opposite kernels; the ridge keeps them small."""
    fit = fit_tisa(profile_of([lambda k: 1e-3 * k**2.0], 100), kernels=[5])[0][5]
    assert np.abs(fit.amplitude).max() < 100 * (1e-3 * np.arange(-99, 100) ** 2).std()
    assert fit.r2_profile > 0.99


def test_causal_profiles_have_offsets_to_the_left_alone():
    kernels = [(2.0, 0.1, -3.0), (-1.0, 0.001, -20.0)]
    fit = fit_tisa(profile_of([lambda k: curve(kernels, k)], 100, causal=True), kernels=[2])[0][2]
    assert fit.r2_profile > 0.999


def test_a_constant_profile_needs_no_kernel():
    fit = fit_tisa(profile_of([lambda k: np.full(len(k), 3.0)], 20), kernels=[1, 3])[0][3]
    assert_allclose(fit(np.arange(-19, 20)), 3.0, atol=1e-9)
    assert fit.r2_profile == fit.r2_matrix == 1.0


def test_long_profiles_are_pooled_far_from_the_query_and_judged_whole():
    kernels = [(3.0, 0.3, -1.0), (1.0, 1e-4, 30.0), (2.0, 1 / (2 * 600.0**2), -1500.0)]
    profile = profile_of([lambda k: curve(kernels, k)], 4096)
    fit = fit_tisa(profile, kernels=[3])[0][3]
    assert fit.r2_profile > 0.999
    assert len(Search(profile.offsets, profile.count).weight) < 2500 < len(profile.offsets)


def test_up_to_512_every_offset_counts_alone():
    offsets = np.arange(-511, 512)
    search = Search(offsets, 512 - np.abs(offsets))
    assert_allclose(search.weight**2, (512 - np.abs(offsets)) / 512**2, rtol=1e-12)


@pytest.mark.parametrize("kernels", [1, 3])
def test_the_jacobian_is_that_of_the_projected_residual(kernels):
    """Kaufman's approximation leaves out a term orthogonal to it: the gradient of the cost, J^T r, is exact."""
    offsets = np.arange(-30, 31)
    search = Search(offsets, 31 - np.abs(offsets))
    draw = np.random.default_rng(0)
    target = draw.normal(size=61)
    parameters = np.concatenate([draw.uniform(-5.0, -1.0, kernels), draw.uniform(-10.0, 10.0, kernels)])
    point = Point(search, target, parameters)
    for index in range(2 * kernels):
        step = np.zeros(2 * kernels)
        step[index] = 1e-5
        up, down = (Point(search, target, parameters + sign * step).residual for sign in (1, -1))
        slope = (up @ up - down @ down) / 2 / 2e-5
        assert_allclose(point.jacobian()[:, index] @ point.residual, slope, rtol=1e-5, atol=1e-9)


def test_bad_numbers_are_refused():
    profile = profile_of([lambda k: k * 1.0], 10)
    with pytest.raises(ValueError, match="kernels: expected"):
        fit_tisa(profile, kernels=[])
    with pytest.raises(ValueError, match="kernels: expected"):
        fit_tisa(profile, kernels=[0])
    with pytest.raises(ValueError, match="starts: expected"):
        fit_tisa(profile, starts=0)
    with pytest.raises(ValueError, match="seed: expected a whole number of at least 0, got -1"):
        fit_tisa(profile, kernels=[1], seed=-1)
