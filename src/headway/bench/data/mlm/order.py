"""The order of rows in training: shuffled in each epoch, with smoothed shares of languages, and without state.

The row at any place of the endless stream is a function of the seed and the place, so that resuming needs no state
and no list of rows is kept.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

from headway.bench.data.text.sampling import quotas, smoothed_shares

ROUNDS = 4
BLOCK = 4096  # places that are computed together, because small arrays cost almost as much as large ones
Integers = npt.NDArray[Any]  # uint64, which wraps around


class RowOrder:
    """The rows at places 0, 1, 2, ... of the stream.

    An epoch is `rows` places. With one language each epoch has each row once. With several, an epoch draws from each
    language its smoothed share of the places; no row of a language comes a second time before all of them have come.

    Args:
        languages: for each language the ranges of its rows, (first, one past the last).
        seed: seed of the order.
        smoothing: exponent of the languages' sizes, see `headway.bench.data.text.sampling`.
    """

    def __init__(self, languages: dict[str, list[tuple[int, int]]], *, seed: int, smoothing: float) -> None:
        self._ranges = {name: np.array(ranges, dtype=np.int64) for name, ranges in languages.items()}
        self._sizes = {name: int((ranges[:, 1] - ranges[:, 0]).sum()) for name, ranges in self._ranges.items()}
        self.rows = sum(self._sizes.values())
        self.shares = smoothed_shares(self._sizes, smoothing)
        self._quotas = quotas(self.shares, self.rows)
        self._keys = {name: _key(f"rows {seed} {name}") for name in languages}
        self._epoch_key = _key(f"epochs {seed}")
        self._block: tuple[int, npt.NDArray[np.int64]] | None = None  # its first place, and the rows of two blocks

    def __getitem__(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the rows at these places."""
        places = np.asarray(places, dtype=np.int64)
        if not places.size:
            return self._rows(places)
        first = int(places.min()) // BLOCK * BLOCK
        if int(places.max()) >= first + 2 * BLOCK:
            return self._rows(places)
        if self._block is None or self._block[0] != first:
            self._block = first, self._rows(np.arange(first, first + 2 * BLOCK))
        return self._block[1][places - first]

    def _rows(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        places = np.asarray(places, dtype=np.uint64)
        epoch, place = places // np.uint64(self.rows), places % np.uint64(self.rows)
        slot = permute(place, self.rows, mix_bits(epoch + self._epoch_key))
        rows = np.empty(places.shape, dtype=np.int64)
        first = 0
        for name, quota in self._quotas.items():
            own = (slot >= first) & (slot < first + quota)
            turn = epoch[own] * np.uint64(quota) + slot[own] - np.uint64(first)  # earlier draws from the language
            rows[own] = self._row(name, turn)
            first += quota
        return rows

    def _row(self, language: str, turn: Integers) -> npt.NDArray[np.int64]:
        size = np.uint64(self._sizes[language])
        index = permute(turn % size, int(size), mix_bits(turn // size + self._keys[language])).astype(np.int64)
        ranges = self._ranges[language]
        ends = np.cumsum(ranges[:, 1] - ranges[:, 0])
        within = np.searchsorted(ends, index, side="right")
        rows: npt.NDArray[np.int64] = ranges[within, 1] - ends[within] + index
        return rows


def permute(index: Integers, size: int, key: Integers) -> Integers:
    """Apply a permutation of 0 .. size - 1, chosen by the key, to each index.

    A Feistel network on the next power of four, applied until it falls below `size`: the cycle-walking of Black and
    Rogaway (2002), "Ciphers with Arbitrary Finite Domains".
    """
    half = np.uint64(max(1, -(-(size - 1).bit_length() // 2)))
    low = (np.uint64(1) << half) - np.uint64(1)
    keys = [mix_bits(key + np.uint64(number)) for number in range(ROUNDS)]
    result = np.array(index, dtype=np.uint64)
    outside = np.ones(result.shape, dtype=bool)
    while outside.any():
        left, right = result[outside] >> half, result[outside] & low
        for each in keys:
            left, right = right, left ^ (mix_bits(right ^ each[outside]) & low)
        result[outside] = left << half | right
        outside = result >= size
    return result


def mix_bits(x: Integers) -> Integers:
    """Mix 64 bits, so that each depends on all bits of x (Steele, Lea and Flood, 2014, SplitMix)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    x = x ^ (x >> np.uint64(31))
    return x


def _key(name: str) -> Any:
    return np.uint64(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big"))
