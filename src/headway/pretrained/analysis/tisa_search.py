"""The search behind `fit_tisa`: kernels are added one by one, a few too many, and removed again.

After each step all are improved together. Searches from random kernels alone end far from the best fit much more often.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from headway.pretrained.analysis.matrices import Array

EXTRA = 2  # kernels beyond those asked for, added first and removed again
CHOICES = 40  # a search that is not the first draws each kernel from as many of the best
RIDGE = 1e-6  # on amplitudes in units of the profile's spread: without it, nearly equal kernels grow without bound
SHARPEST = 8.0  # of |b|: a kernel that is e^-8 one token away from its center
TOLERANCE = 1e-5  # relative, of cost and of parameters, at which a descent ends
EVALUATIONS = 60  # of one descent
EXACT, POOL = 512, 256  # offsets up to EXACT count one by one; beyond, about |k| / POOL together


@dataclass(frozen=True, eq=False)
class Candidate:
    """Kernels of a standardised profile."""

    log_sharpness: Array  # (S,)
    center: Array  # (S,)
    linear: Array  # (S + 1,): amplitudes, then the constant
    cost: float
    residual: Array  # (N,), weighted


class Search:
    """The offsets, their weights, and a grid of kernels, shared by all heads."""

    def __init__(self, offsets: Array, count: Array) -> None:
        distance = np.maximum(np.abs(offsets), EXACT) / EXACT
        steps = np.floor(np.log(distance) / np.log1p(1 / POOL))
        key = np.sign(offsets) * (np.minimum(np.abs(offsets), EXACT) + steps)
        self._pool = np.unique(key, return_inverse=True)[1]  # which of the N pools each offset is in
        self._entries = count
        self._count = np.bincount(self._pool, count)  # (N,)
        self._offsets = self._pooled(offsets.astype(np.float64))
        self.weight = np.sqrt(self._count / self._count.sum())  # (N,)
        self.reach = reach = float(np.abs(offsets).max())
        self.log_range = (float(-np.log(2 * (2 * reach) ** 2)), float(np.log(SHARPEST)))
        widths = np.geomspace(0.4, max(reach / 2, 1.0), 20)
        far = np.geomspace(5.0, max(reach, 6.0), 16)
        centers = np.unique(np.round(np.concatenate([np.arange(-4.0, 5.0), far, -far])))
        centers = centers[(centers >= offsets.min()) & (centers <= offsets.max())]
        self._grid = np.array([(-np.log(2 * width**2), center) for width in widths for center in centers])
        self._dictionary = self.bells(*self._grid.T)[0]  # (G, N)
        self._squares = (self._dictionary**2).sum(axis=1)

    def bells(self, log_sharpness: Array, center: Array) -> tuple[Array, Array, Array]:
        """Return weighted kernels, (S, N), their sharpness, (S,), and their distances, (S, N)."""
        sharpness = np.exp(np.clip(log_sharpness, *self.log_range))
        distance = self._offsets - np.clip(center, -self.reach, self.reach)[:, None]
        return np.exp(-sharpness[:, None] * distance**2) * self.weight, sharpness, distance

    def standardise(self, profile: Array) -> tuple[Array, float, float]:
        """Pool and weight the profile, less its mean and in units of its spread; return mean and spread too."""
        profile = self._pooled(profile)
        mean = float(np.average(profile, weights=self._count))
        spread = float(np.sqrt(np.average((profile - mean) ** 2, weights=self._count)))
        return (profile - mean) / (spread or 1.0) * self.weight, mean, spread

    def run(self, target: Array, kernels: int, draw: np.random.Generator | None) -> dict[int, Candidate]:
        """Find the best fit with 1, 2, ... kernels for a standardised profile.

        Without `draw`, each kernel added is the one of the grid that promises most.
        """
        found = self._grow(target, kernels + EXTRA, draw)
        last = found[kernels + EXTRA]
        for count in range(kernels + EXTRA - 1, 0, -1):
            last = self._descend(target, self._without_least(target, last))
            if last.cost < found[count].cost:
                found[count] = last
        return found

    def _grow(self, target: Array, kernels: int, draw: np.random.Generator | None) -> dict[int, Candidate]:
        log_sharpness = center = np.zeros(0)
        residual = target
        found = {}
        for count in range(1, kernels + 1):
            best = np.argsort(self._gain(log_sharpness, center, residual))[-CHOICES:]
            chosen = self._grid[best[-1] if draw is None else draw.choice(best)]
            start = np.concatenate([log_sharpness, chosen[:1], center, chosen[1:]])
            found[count] = self._descend(target, start)
            log_sharpness, center, residual = found[count].log_sharpness, found[count].center, found[count].residual
        return found

    def _without_least(self, target: Array, candidate: Candidate) -> Array:
        """Remove the kernel that is missed least, and return the parameters of the others."""
        kernels = np.arange(len(candidate.center))
        left = [
            Point(self, target, np.concatenate([candidate.log_sharpness[stay], candidate.center[stay]]))
            for stay in (kernels != leaving for leaving in kernels)
        ]
        return min(left, key=lambda point: float(point.residual @ point.residual)).parameters

    def _pooled(self, values: Array) -> Array:
        """Return the mean over each pool, weighted by the entries of the diagonals."""
        mean: Array = np.bincount(self._pool, values * self._entries) / self._count
        return mean

    def _gain(self, log_sharpness: Array, center: Array, residual: Array) -> Array:  # (G,)
        """Return how much of the residual each kernel of the grid would explain beside those that are there."""
        there = np.concatenate([self.weight[None], self.bells(log_sharpness, center)[0]])
        basis, _ = np.linalg.qr(there.T)
        shared = self._dictionary @ basis
        along = self._dictionary @ residual - shared @ (basis.T @ residual)
        squares = self._squares - (shared**2).sum(axis=1)
        new = squares > 1e-6 * self._squares  # the others are there already
        gain: Array = along**2 / np.where(new, squares, np.inf)
        return gain

    def _descend(self, target: Array, start: Array) -> Candidate:
        """Improve all kernels together by Levenberg-Marquardt."""
        last = [Point(self, target, start)]

        def at(parameters: Array) -> Point:  # residual and Jacobian are asked for one after the other
            if not np.array_equal(last[0].parameters, parameters):
                last[0] = Point(self, target, parameters)
            return last[0]

        found = least_squares(
            lambda parameters: at(parameters).residual,
            start,
            jac=lambda parameters: at(parameters).jacobian(),
            method="lm",
            max_nfev=EVALUATIONS,
            ftol=TOLERANCE,
            xtol=TOLERANCE,
        )
        best = at(found.x)
        return Candidate(
            log_sharpness=np.clip(best.log_sharpness, *self.log_range),
            center=np.clip(best.center, -self.reach, self.reach),
            linear=best.linear,
            cost=float(2 * found.cost),
            residual=-best.residual[: len(target)],
        )


class Point:
    """One point of a descent: the amplitudes that are best there, what they leave, and how that changes.

    Amplitudes and constant are linear and eliminated (variable projection); the Jacobian is Kaufman's (1975).
    """

    def __init__(self, search: Search, target: Array, parameters: Array) -> None:
        self.search = search
        self.parameters = parameters.copy()  # (2 S,): log |b|, then c
        self.count = len(parameters) // 2
        self.log_sharpness, self.center = self.parameters[: self.count], self.parameters[self.count :]
        self.bells, self.sharpness, self.distance = search.bells(self.log_sharpness, self.center)
        self.design = np.concatenate([self.bells, search.weight[None]])  # (S + 1, N)
        ridge = np.append(np.full(self.count, RIDGE), 0.0)
        self.inverse = np.linalg.inv(self.design @ self.design.T + np.diag(ridge))
        self.linear = self.inverse @ (self.design @ target)
        self.residual = np.append(self.linear @ self.design - target, np.sqrt(RIDGE) * self.linear[: self.count])

    def jacobian(self) -> Array:  # (N + S, 2 S)
        """Return the change of the residual, less what amplitudes make good; 0 where a parameter is at its limit."""
        low, high = self.search.log_range
        slope = self.linear[: self.count] * self.sharpness
        free = (self.log_sharpness > low) & (self.log_sharpness < high)
        inside = np.abs(self.center) < self.search.reach
        by_sharpness = (-slope * free)[:, None] * self.distance**2 * self.bells
        by_center = (2 * slope * inside)[:, None] * self.distance * self.bells
        change = np.concatenate([by_sharpness, by_center])  # (2 S, N)
        made_good = self.inverse @ (self.design @ change.T)  # (S + 1, 2 S)
        rest = change.T - self.design.T @ made_good
        return np.concatenate([rest, -np.sqrt(RIDGE) * made_good[: self.count]])
