"""How far a matrix is Toeplitz: constant along each diagonal, so that it depends on the offset j - i alone.

Wennberg and Henter (2021), Sec. 3.1: R^2 is the share of the variance among a matrix's elements that the best-fitting
Toeplitz matrix explains. The best fit has the mean of each diagonal, so R^2 follows from two sums per diagonal, and
no matrix need be held.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headway.pretrained.analysis.matrices import Array, Blocks, Whole, Window, bands

CONSTANT = 1e-12  # a matrix whose entries vary by less than this share of their mean is constant, hence Toeplitz


@dataclass(frozen=True, eq=False)
class Diagonals:
    """Mean and variance of each diagonal of H matrices; the means are the best-fitting Toeplitz matrices."""

    offsets: Array  # (N,), j - i, least first
    count: Array  # (N,), entries on each diagonal
    mean: Array  # (H, N)
    variance: Array  # (H, N)

    @property
    def std(self) -> Array:  # (H, N)
        return np.sqrt(self.variance)

    @property
    def between(self) -> Array:  # (H,)
        """Sum of squares that the Toeplitz fit explains."""
        grand = np.average(self.mean, axis=-1, weights=self.count)
        explained: Array = ((self.mean - grand[:, None]) ** 2) @ self.count
        return explained

    @property
    def within(self) -> Array:  # (H,)
        """Sum of squares that it leaves."""
        return self.variance @ self.count

    @property
    def r2(self) -> Array:  # (H,)
        """Share of the variance explained by the best-fitting Toeplitz matrix; 1 for a constant matrix."""
        total = self.between + self.within
        grand = np.average(self.mean, axis=-1, weights=self.count)
        constant = total <= self.count.sum() * (CONSTANT * grand) ** 2
        return np.where(constant, 1.0, self.between / np.where(constant, 1.0, total))


def diagonals(matrices: Blocks | Array, *, causal: bool = False) -> Diagonals:
    """Compute mean and variance of each diagonal; with `causal` only of those with j <= i, the others being unused."""
    blocks = Whole(matrices) if isinstance(matrices, np.ndarray) else matrices
    length = blocks.length
    sums, squares = np.zeros((2, blocks.heads, 2 * length - 1))
    shift: Array | None = None  # near the mean, so that variances do not cancel
    for start, band in bands(blocks):
        if shift is None:
            shift = band.mean(axis=(1, 2))
        band -= shift[:, None, None]
        first = length - start - band.shape[1]  # where the band's least offset stands
        sums[:, first : first + length + band.shape[1] - 1] += sum_diagonals(band)
        squares[:, first : first + length + band.shape[1] - 1] += sum_diagonals(band * band)
    assert shift is not None
    kept = length if causal else 2 * length - 1
    offsets = np.arange(-(length - 1), length)[:kept]
    count = length - np.abs(offsets)
    mean = sums[:, :kept] / count
    variance = np.maximum(squares[:, :kept] / count - mean**2, 0.0)
    return Diagonals(offsets, count, mean + shift[:, None], variance)


def without_first(whole: Diagonals, matrices: Blocks) -> Diagonals:
    """Return the diagonals of the matrices without first row and column, from `whole`, the diagonals with them."""
    length = matrices.length
    row, column = matrices.tile(0, 1, 0, length)[:, 0], matrices.tile(0, length, 0, 1)[..., 0]
    removed = np.concatenate([column[:, :0:-1], row], axis=1)  # one entry of each diagonal
    kept = (whole.count > 1).nonzero()[0]
    removed, mean = removed[:, kept], whole.mean[:, kept]
    count = whole.count[kept] - 1
    new_mean = mean - (removed - mean) / count
    squares = whole.variance[:, kept] * (count + 1) - (removed - mean) * (removed - new_mean)
    return Diagonals(whole.offsets[kept], count, new_mean, np.maximum(squares / count, 0.0))


def off_diagonal(whole: Diagonals) -> Diagonals:
    """Leave out the main diagonal.

    The inner products of random vectors with themselves stand far above those with others, so that with the main
    diagonal the matrix of n random vectors of width D has an R^2 of about 1 / (1 + n / D). Without it, about 2 / n.
    """
    kept = whole.offsets != 0
    return Diagonals(whole.offsets[kept], whole.count[kept], whole.mean[:, kept], whole.variance[:, kept])


def toeplitz_r2(matrix: Array) -> Array:  # () of (L, L), (H,) of (H, L, L)
    """Return R^2 of the best-fitting Toeplitz matrix."""
    r2 = diagonals(matrix).r2
    return r2 if matrix.ndim == 3 else r2[0]


def toeplitz_fit(matrix: Array) -> Array:  # as matrix
    """Return the best-fitting Toeplitz matrix in the sense of least squares: each diagonal's mean."""
    length = matrix.shape[-1]
    offset = np.arange(length)[None, :] - np.arange(length)[:, None]
    fit = diagonals(matrix).mean[:, offset + length - 1]
    return fit if matrix.ndim == 3 else fit[0]


@dataclass(frozen=True, eq=False)
class Windows:
    """R^2 of square windows that slide along the main diagonal."""

    size: int
    starts: Array  # (W,), first position of each window
    r2: Array  # (H, W)


def windowed_r2(
    matrices: Blocks | Array, *, size: int = 128, stride: int | None = None, causal: bool = False
) -> Windows:
    """Compute R^2 of positions start..start + size, for starts every `stride` (half the size unless given)."""
    blocks = Whole(matrices) if isinstance(matrices, np.ndarray) else matrices
    if size < 2:
        raise ValueError(f"size: expected a window of at least 2 positions, got {size}.")
    size = min(size, blocks.length)
    starts = np.arange(0, blocks.length - size + 1, stride or max(1, size // 2))
    each = [diagonals(Window(blocks, start, start + size), causal=causal).r2 for start in starts.tolist()]
    return Windows(size, starts, np.stack(each, axis=-1))


def sum_diagonals(band: Array) -> Array:  # (H, rows, L) to (H, rows + L - 1)
    """Sum each diagonal of a band of rows, the least offset first.

    Rows are written, last row first, into an array that is `rows` wider; read with rows one step shorter, diagonals
    have become columns.
    """
    heads, rows, length = band.shape
    skewed = np.zeros((heads, rows, length + rows))
    skewed[..., :length] = band[:, ::-1]
    columns = skewed.reshape(heads, -1)[:, : rows * (length + rows - 1)].reshape(heads, rows, -1)
    sums: Array = columns.sum(axis=1)
    return sums
