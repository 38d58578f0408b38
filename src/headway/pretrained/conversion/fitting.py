"""Setting an encoding's parameters: fitted to what positions did in a model, or so that its bias is zero."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.encodings import T5, Alibi, DietAbs, DietRel, Encoding, Tisa, t5_buckets
from headway.pretrained.analysis import Diagonals, diagonals, fit_tisa
from headway.pretrained.analysis.matrices import Product
from headway.pretrained.conversion.position_factors import PositionFactors

OUTERMOST = 0.1  # share of the offsets at either end that is averaged: so few pairs have them that one alone is chance


@torch.no_grad()
def fit(encoding: Encoding, factors: Sequence[PositionFactors]) -> None:
    """Set the parameters of TISA, DIET-REL, DIET-ABS or T5 so that its bias is nearest to F_P, in least squares.

    Layers or heads that share parameters share the fit to their mean. ALiBi's slopes are fixed and stay.
    """
    for kind, fitter in FITTERS.items():
        if isinstance(encoding, kind):
            fitter(encoding, factors)


@torch.no_grad()
def zero(encoding: Encoding) -> None:
    """Set the parameters so that the bias is 0 and can learn: of a product, one factor alone is 0."""
    parameter: dict[type[Encoding], str] = {Tisa: "amplitude", DietRel: "values", DietAbs: "left", T5: "table"}
    for kind, name in parameter.items():
        if isinstance(encoding, kind) and getattr(encoding, name) is not None:
            getattr(encoding, name).zero_()


def profiles(encoding: Encoding, factors: Sequence[PositionFactors]) -> list[Diagonals]:
    """Average F_P's diagonals over each set of layers that shares parameters, and over heads where they share."""
    each = [diagonals(Product(part.left.numpy(), part.right.numpy())) for part in factors]
    sets = []
    for number in range(encoding.layer_sets):
        of_set = [found for layer, found in enumerate(each) if encoding.layer_set(layer) == number]
        mean = np.mean([found.mean for found in of_set], axis=0)
        variance = np.mean([found.variance for found in of_set], axis=0)
        if encoding.head_sets == 1:
            mean, variance = mean.mean(0, keepdims=True), variance.mean(0, keepdims=True)
        sets.append(Diagonals(of_set[0].offsets, of_set[0].count, mean, variance))
    return sets


def _fit_tisa(encoding: Tisa, factors: Sequence[PositionFactors]) -> None:
    """Fit kernels to the profiles by least squares; the constant of the fit vanishes in the softmax."""
    if not encoding.kernels:
        return
    for number, profile in enumerate(profiles(encoding, factors)):
        for head, found in enumerate(fit_tisa(profile, kernels=(encoding.kernels,))):
            best = found[encoding.kernels]
            for name in ("amplitude", "sharpness", "center"):
                getattr(encoding, name)[number, head].copy_(torch.from_numpy(getattr(best, name)))


def _fit_diet_rel(encoding: DietRel, factors: Sequence[PositionFactors]) -> None:
    """Set the values to the profile itself; beyond the model's positions its outermost values continue."""
    for number, profile in enumerate(profiles(encoding, factors)):
        encoding.values[number].copy_(torch.from_numpy(extend_profile(profile, encoding.dims.max_length)))


def _fit_t5(encoding: T5, factors: Sequence[PositionFactors]) -> None:
    """Set each bucket to the mean of its entries; a bucket without any has the mean of all."""
    for number, profile in enumerate(profiles(encoding, factors)):
        bucket = t5_buckets(
            torch.from_numpy(profile.offsets),
            buckets=encoding.buckets,
            max_distance=encoding.max_distance,
            bidirectional=encoding.bidirectional,
        ).numpy()
        level = np.average(profile.mean, axis=-1, weights=profile.count)
        for n in range(encoding.buckets):
            inside = bucket == n
            mean = (
                np.average(profile.mean[:, inside], axis=-1, weights=profile.count[inside]) if inside.any() else level
            )
            encoding.table[number, :, n] = torch.from_numpy(mean)


def _fit_diet_abs(encoding: DietAbs, factors: Sequence[PositionFactors]) -> None:
    """Set the factors by a singular value decomposition, truncated to the rank.

    A rank that F_P does not need is left free to learn: 0 on the left, what was drawn on the right. Positions that the
    model did not have continue the profile of offsets.
    """
    more = encoding.dims.max_length > factors[0].left.shape[1]
    for number in range(encoding.layer_sets):
        of_set = [part for layer, part in enumerate(factors) if encoding.layer_set(layer) == number]
        left = torch.cat([part.left for part in of_set], -1) / len(of_set)  # (H, L, R * layers): the mean of products
        right = torch.cat([part.right for part in of_set], -1)
        if encoding.head_sets == 1:
            left, right = (torch.cat(list(part), -1)[None] for part in (left / len(left), right))
        for head in range(encoding.head_sets):
            if more:
                u, v = _extend_factors(left[head], right[head], encoding.dims.max_length, encoding.rank)
            else:
                u, v = _truncate(left[head], right[head], encoding.rank)
            rows, rank = u.shape
            encoding.left[number, head].zero_()
            encoding.left[number, head, :rows, :rank] = u.to(encoding.left)
            encoding.right[number, head, :rows, :rank] = v.to(encoding.right)


def extend_profile(profile: Diagonals, length: int) -> Any:  # (H, 2 * length - 1)
    """Cut the profile to offsets from -(length - 1) to length - 1, or continue it by the mean of its outermost ones."""
    reach = int(profile.offsets[-1])
    ends = np.abs(profile.offsets) > (1 - OUTERMOST) * reach
    mean = profile.mean.copy()
    for side in (ends & (profile.offsets < 0), ends & (profile.offsets > 0)):
        if side.any():
            mean[:, side] = np.average(mean[:, side], axis=-1, weights=profile.count[side])[:, None]
    offsets = np.arange(-(length - 1), length)
    return mean[:, np.clip(offsets, -reach, reach) + reach]


def _truncate(left: Tensor, right: Tensor, rank: int) -> tuple[Tensor, Tensor]:  # (L, R) both, to (L, rank) or less
    """Find the best factors of left right^T of a rank, without making the matrix."""
    q_left, r_left = torch.linalg.qr(left)
    q_right, r_right = torch.linalg.qr(right)
    u, s, vh = torch.linalg.svd(r_left @ r_right.T)
    root = s[:rank].sqrt()
    return q_left @ u[:, :rank] * root, q_right @ vh[:rank].T * root


def _extend_factors(left: Tensor, right: Tensor, length: int, rank: int) -> tuple[Tensor, Tensor]:
    """Find factors of a longer matrix, which beyond left right^T is the Toeplitz matrix of its profile."""
    known = left.shape[0]
    profile = diagonals(Product(left[None].numpy(), right[None].numpy()))
    curve = torch.from_numpy(extend_profile(profile, length)[0])
    offset = torch.arange(length)[None, :] - torch.arange(length)[:, None]
    matrix = curve[offset + length - 1]
    matrix[:known, :known] = left @ right.T
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of the projections that find the largest singular vectors
        u, s, v = torch.svd_lowrank(matrix, q=min(length, rank + 16), niter=4)
    root = s[:rank].sqrt()
    return u[:, :rank] * root, v[:, :rank] * root


FITTERS: dict[type[Encoding], Callable[[Any, Sequence[PositionFactors]], None]] = {
    Tisa: _fit_tisa,
    DietRel: _fit_diet_rel,
    DietAbs: _fit_diet_abs,
    T5: _fit_t5,
    Alibi: lambda encoding, factors: None,
}
