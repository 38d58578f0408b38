"""Masked-language-model masking: which tokens to predict, and what the model sees in their place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

MASKED, RANDOM = 0.8, 0.1  # the remaining tenth stays as it is
IGNORED = -100  # label of what is not predicted, as torch and transformers have it
NEVER = np.iinfo(np.uint64).max


class Masking:
    """Chooses a share of each row's tokens; 80 % become [MASK], 10 % another token at random, 10 % stay.

    Of a row with m tokens that are not special, exactly round(probability * m) are chosen, at least one. So no row has
    more than `predictions` of them, which depends on the length alone: shapes are the same for every batch.

    Paper:    Devlin et al. (2019), "BERT", Sec. 3.1, Task #1, and Appendix A.1
    Departs:  special tokens are neither chosen nor drawn in place of others

    Args:
        length: of rows, padding included.
        probability: 0.15 in the paper.
        vocab_size: how many tokens there are.
        special_ids: those that are no part of a text.
        mask_id: the id of [MASK].
    """

    def __init__(
        self, *, length: int, probability: float, vocab_size: int, special_ids: list[int], mask_id: int
    ) -> None:
        if not 0.0 < probability < 1.0:
            raise ValueError(f"mask_probability: expected a share between 0 and 1, got {probability}. Pass 0.15.")
        self.length, self.probability, self.mask_id = length, probability, mask_id
        self.predictions = max(1, math.floor(probability * (length - 2) + 0.5))  # [CLS] and [SEP] are in every row
        self._ordinary = np.ones(vocab_size, dtype=bool)
        self._ordinary[special_ids] = False
        self._drawn = np.flatnonzero(self._ordinary)
        words = length + 2 * self.predictions
        self._blocks = -(-words // 4)  # Philox makes four words at a time

    def __call__(
        self, tokens: npt.NDArray[np.int64], *, key: tuple[int, int], first: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Masked tokens, (B, length), and positions and labels of what was chosen, (B, predictions).

        Where a row has fewer, positions are 0 and labels -100. How row r is masked depends on the key and first + r,
        not on what other rows are in the batch.
        """
        select, act, draw = self._random(len(tokens), key, first)
        ordinary = self._ordinary[tokens]
        count = ordinary.sum(axis=1)
        chosen = np.minimum(np.maximum(np.floor(self.probability * count + 0.5), 1), count)[:, None]

        select[~ordinary] = NEVER
        positions = np.argpartition(select, self.predictions - 1, axis=1)[:, : self.predictions]
        ranked = np.argsort(np.take_along_axis(select, positions, axis=1), axis=1)
        positions = np.take_along_axis(positions, ranked, axis=1)
        used = np.arange(self.predictions) < chosen

        positions = np.where(used, positions, 0)
        originals = np.take_along_axis(tokens, positions, axis=1)
        chance = (act >> np.uint64(11)) * 2.0**-53  # 53 bits are exact as a float
        replaced = np.where(chance < MASKED, self.mask_id, originals)
        at_random = (chance >= MASKED) & (chance < MASKED + RANDOM)
        replaced = np.where(at_random, self._drawn[draw % np.uint64(len(self._drawn))], replaced)
        masked = tokens.copy()
        np.put_along_axis(masked, positions, np.where(used, replaced, tokens[:, :1]), axis=1)
        return masked, positions, np.where(used, originals, IGNORED)

    def _random(self, rows: int, key: tuple[int, int], first: int) -> list[npt.NDArray[Any]]:
        """Random words for choosing positions, for what to do there, and for tokens to draw: (rows, ...) each."""
        stream = np.random.Philox(key=np.array(key, dtype=np.uint64))
        stream.advance(first * self._blocks)
        words = stream.random_raw(rows * self._blocks * 4).reshape(rows, -1)
        ends = [self.length, self.length + self.predictions, self.length + 2 * self.predictions]
        return np.split(words, ends, axis=1)[:3]
