"""What a table of position embeddings holds: its inner products, its cosines, and where another pattern begins.

Wennberg and Henter (2021), Sec. 3.1, Figs. 1, 2 and 4, look at P = E_P E_P^T and its Toeplitz R^2; Chen et al. (2021b),
App. C, Fig. 5, at the distribution of cosines.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from headway.pretrained.analysis.matrices import Array, Product, bands
from headway.pretrained.analysis.toeplitz import Diagonals, Windows, diagonals, off_diagonal, windowed_r2, without_first

NEAR = 16  # positions compared on either side of a seam
LEAST_JUMP = 8.0  # times the usual difference, from which on a seam is named
LEAST_DIFFERENCE = 1e-3  # what "usual" is at least, of a cosine or of the logarithm of a norm


@dataclass(frozen=True, eq=False)
class Cosines:
    """Distribution of the cosine between all pairs of different positions."""

    edges: Array  # (bins + 1,), from -1 to 1
    counts: Array  # (bins,), pairs i < j
    mean: float
    std: float


@dataclass(frozen=True, eq=False)
class Seam:
    """Where a table changes to another kind of vectors: what undertrained last positions look like.

    `jump[p]` compares the NEAR positions before p with the NEAR from p on: the difference of their medians, of the
    vectors' log norms or of the cosines between neighbours, whichever is greater, in units of the median such
    difference over the table. Position 0, which belongs to [CLS], is left out. This measure is ours.
    """

    jump: Array  # (L,), 0 where either side is too short
    start: int | None  # the position of the greatest jump, if it is at least LEAST_JUMP


@dataclass(frozen=True, eq=False)
class TableMeasures:
    """E_P of one model."""

    norms: Array  # (L,), length of each vector
    neighbours: Array  # (L - 1,), cosine between positions p and p + 1
    gram: Diagonals  # of E_P E_P^T
    r2: float
    r2_without_first: float  # position 0 left out: it belongs to [CLS], and stands apart in many models
    r2_off_diagonal: float  # position 0 and each vector's product with itself left out: near 0 for a random table
    windows: Windows
    cosines: Cosines
    seam: Seam


def measure_table(table: Array, *, window: int = 128) -> TableMeasures:  # (L, E)
    """Measure a table of position embeddings."""
    if table.ndim != 2 or len(table) < 3:
        raise ValueError(f"table: expected (L, E) with at least 3 positions, got {table.shape}.")
    table = table.astype(np.float64)
    inner = gram(table)
    whole = diagonals(inner)
    rest = without_first(whole, inner)
    return TableMeasures(
        norms=np.linalg.norm(table, axis=1),
        neighbours=neighbour_cosines(table),
        gram=whole,
        r2=float(whole.r2[0]),
        r2_without_first=float(rest.r2[0]),
        r2_off_diagonal=float(off_diagonal(rest).r2[0]),
        windows=windowed_r2(inner, size=window),
        cosines=cosine_distribution(table),
        seam=find_seam(table),
    )


def gram(table: Array) -> Product:  # (L, E)
    """Return P = E_P E_P^T, made tile by tile."""
    return Product(table[None], table[None])


def cosine_matrix(table: Array) -> Array:  # (L, E) to (L, L)
    """Return the cosine between every pair of positions."""
    unit = _unit(table)
    return unit @ unit.T


def neighbour_cosines(table: Array) -> Array:  # (L, E) to (L - 1,)
    """Return the cosine between positions p and p + 1."""
    unit = _unit(table)
    cosines: Array = (unit[1:] * unit[:-1]).sum(axis=1)
    return cosines


def cosine_distribution(table: Array, *, bins: int = 200) -> Cosines:  # (L, E)
    """Make a histogram of the cosines of all pairs i < j, with mean and standard deviation."""
    counts = np.zeros(bins, dtype=np.int64)
    total = squares = 0.0
    for start, band in bands(gram(_unit(table))):
        for row, cosines in enumerate(band[0], start):
            pairs = cosines[row + 1 :]
            counts += np.histogram(np.clip(pairs, -1.0, 1.0), bins=bins, range=(-1.0, 1.0))[0]
            total, squares = total + pairs.sum(), squares + pairs @ pairs
    number = counts.sum()
    mean = total / number
    std = np.sqrt(max(squares / number - mean**2, 0.0))
    return Cosines(np.linspace(-1.0, 1.0, bins + 1), counts, float(mean), float(std))


def find_seam(table: Array) -> Seam:  # (L, E)
    """Compute the jump at every position, and find the greatest."""
    length = len(table)
    jump = np.zeros(length)
    if length - 1 >= 2 * NEAR + 1:
        norms = np.log(np.maximum(np.linalg.norm(table[1:], axis=1), np.finfo(np.float32).tiny))
        jumps = np.maximum(_jumps(norms[:-1]), _jumps(neighbour_cosines(table[1:])))
        jump[1 + NEAR : 1 + NEAR + len(jumps)] = jumps
    best = int(jump.argmax())
    return Seam(jump, best if jump[best] >= LEAST_JUMP else None)


def _jumps(series: Array) -> Array:  # (N,) to (N - 2 * NEAR + 1,), the first between entries NEAR - 1 and NEAR
    medians = np.median(sliding_window_view(series, NEAR), axis=-1)
    differences = np.abs(medians[NEAR:] - medians[:-NEAR])
    jumps: Array = differences / max(float(np.median(differences)), LEAST_DIFFERENCE)
    return jumps


def _unit(table: Array) -> Array:
    table = table.astype(np.float64)
    norm = np.linalg.norm(table, axis=1, keepdims=True)
    unit: Array = table / np.where(norm == 0.0, 1.0, norm)  # a vector of zeros has cosine 0 with every other
    return unit
