"""TISA's kernels fitted to the profiles of heads.

Wennberg and Henter (2021), Sec. 5 and App. C, start their models from a regression to the profiles of F_P. How the
regression was done is not in the text we have: the method is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from headway.pretrained.analysis.matrices import Array
from headway.pretrained.analysis.tisa_search import EXTRA, Candidate, Search
from headway.pretrained.analysis.toeplitz import Diagonals

STARTS = 2  # searches, of which the best is kept


@dataclass(frozen=True, eq=False)
class TisaFit:
    """constant + sum_s amplitude[s] exp(-sharpness[s] (k - center[s])^2), k = j - i (Eq. 5).

    The constant is no kernel: added to all scores, it vanishes in the softmax.
    """

    amplitude: Array  # (S,): a
    sharpness: Array  # (S,): |b|
    center: Array  # (S,): c
    constant: float
    r2_profile: float  # share of the profile's variance explained, every offset counting once
    r2_matrix: float  # share of the variance of the matrix itself explained; at most its Toeplitz R^2

    def __call__(self, offsets: Array) -> Array:
        """Return the curve at offsets j - i, the constant included."""
        return _curve(self.amplitude, self.sharpness, self.center, self.constant, offsets)


def fit_tisa(
    profiles: Diagonals, *, kernels: Sequence[int] = (1, 3, 5), starts: int = STARTS, seed: int = 0
) -> list[dict[int, TisaFit]]:
    """Fit each number of kernels to the profile of each head.

    Least squares on the matrix: an offset weighs as much as its diagonal has entries. Kernels are added one at a time,
    the one of a grid that explains most of what is left, up to some too many, and taken away again, the one missed
    least; after each step all are improved together by Levenberg-Marquardt. Searches after the first draw among the
    best of the grid, with `seed`.
    """
    if not kernels or min(kernels) < 1:
        raise ValueError(f"kernels: expected one or more numbers of kernels, each at least 1, got {list(kernels)}.")
    if starts < 1:
        raise ValueError(f"starts: expected at least 1, got {starts}.")
    if seed < 0:  # what numpy draws with
        raise ValueError(f"seed: expected a whole number of at least 0, got {seed}.")
    if len(profiles.offsets) < max(kernels) + EXTRA:
        raise ValueError(
            f"kernels: expected at least {max(kernels) + EXTRA} offsets to fit {max(kernels)} kernels to, got "
            f"{len(profiles.offsets)}. Fit fewer kernels, or give more positions."
        )
    search = Search(profiles.offsets, profiles.count)
    with threadpool_limits(1):  # the matrices are small: threads would wait for one another longer than they work
        return [_fit_head(search, profiles, head, kernels, starts, seed) for head in range(len(profiles.mean))]


def _fit_head(
    search: Search, profiles: Diagonals, head: int, kernels: Sequence[int], starts: int, seed: int
) -> dict[int, TisaFit]:
    target, mean, spread = search.standardise(profiles.mean[head])
    draw = np.random.default_rng([seed, head])
    runs = [search.run(target, max(kernels), draw if n else None) for n in range(starts)]
    best = {count: min((run[count] for run in runs), key=lambda found: found.cost) for count in kernels}
    return {count: _finish_fit(profiles, head, found, mean, spread) for count, found in best.items()}


def _finish_fit(profiles: Diagonals, head: int, found: Candidate, mean: float, spread: float) -> TisaFit:
    """Return a candidate in the profile's own units, with the shares of variance that it explains."""
    amplitude, constant = found.linear[:-1] * spread, float(found.linear[-1] * spread + mean)
    sharpness = np.exp(found.log_sharpness)
    profile = profiles.mean[head]
    error = _curve(amplitude, sharpness, found.center, constant, profiles.offsets) - profile
    within, between = float(profiles.within[head]), float(profiles.between[head])
    around = float(((profile - profile.mean()) ** 2).sum())
    left = within + float(error**2 @ profiles.count)
    return TisaFit(
        amplitude=amplitude,
        sharpness=sharpness,
        center=found.center,
        constant=constant,
        r2_profile=1.0 - float(error @ error) / around if around > 0.0 else 1.0,
        r2_matrix=1.0 - left / (within + between) if within + between > 0.0 else 1.0,
    )


def _curve(amplitude: Array, sharpness: Array, center: Array, constant: float, offsets: Array) -> Array:
    bells = np.exp(-sharpness[:, None] * (offsets - center[:, None]) ** 2)
    curve: Array = constant + amplitude @ bells
    return curve
