"""Batches for masked-language-model training and evaluation, each a function of a seed and a number.

A batch is a dict of torch tensors, int64:

    input_ids         (B, L)  masked tokens
    attention_mask    (B, L)  1 for tokens, 0 for padding; where rows are not packed
    documents         (B, L)  which of the row's texts a token is in, -1 for padding; where rows are packed
    masked_positions  (N,)    of predicted tokens, row * L + column
    labels            (N,)    what stood there, -100 in places that are not used

N is B times the most predictions a row of L tokens can have, so all batches have the same shapes. With
`static=False`, L is cut to the longest row (to a multiple of 8) and unused places are left out. With `dense=True`,
labels are (B, L), -100 where nothing is predicted, and there are no masked_positions.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headway.bench.data.language.language import require_int
from headway.bench.data.mlm.order import RowOrder
from headway.bench.data.mlm.shards import PADDING, Shards
from headway.bench.data.text.sampling import ALPHA

EVALUATION = (1 << 64) - 1  # takes the place of a step in random keys; no training has so many steps
MULTIPLE = 8
MASKED, RANDOM = 0.8, 0.1  # the remaining tenth stays as it is
IGNORED = -100  # label of tokens that are not predicted, as in torch and transformers
NEVER = np.iinfo(np.uint64).max


class MlmBatches:
    """An endless sequence of training batches: rows in a shuffled order, masked anew in each step.

    `batch(step, rank, world)` is the rank's part of the step's batch. The parts of all ranks together are the same
    whatever the world size; so are the micro-batches of gradient accumulation, taken as ranks of a larger world.

    Args:
        shards: the rows.
        batch_size: number of rows of all ranks together.
        seed: seed of order and masks.
        mask_probability: share of tokens to predict.
        smoothing: how evenly languages are drawn, see `headway.bench.data.text.sampling`; of no effect with one.
        static: whether all batches have the same shapes.
        dense: whether labels are (B, L).
    """

    def __init__(
        self,
        shards: Shards,
        batch_size: int,
        *,
        seed: int = 0,
        mask_probability: float = 0.15,
        smoothing: float = ALPHA,
        static: bool = True,
        dense: bool = False,
    ) -> None:
        require_int("batch_size", batch_size, 1)
        require_int("seed", seed, 0, (1 << 64) - 1)
        self.shards, self.batch_size, self.seed, self.static, self.dense = shards, batch_size, seed, static, dense
        self.order = RowOrder(shards.languages, seed=seed, smoothing=smoothing)
        self._masking = _masking(shards, mask_probability)

    @property
    def steps_per_epoch(self) -> float:
        return len(self.shards) / self.batch_size

    @property
    def tokens_per_row(self) -> float:
        """Return the mean number of tokens in a row, without padding, over languages as they are drawn."""
        own = self.shards.tokens_per_row
        return sum(share * own[language] for language, share in self.order.shares.items())

    def batch(self, step: int, rank: int = 0, world: int = 1) -> dict[str, Tensor]:
        """Return one rank's part of the step's batch."""
        require_int("step", step, 0)
        first, size = _part(self.batch_size, rank, world)
        places = np.arange(first, first + size, dtype=np.int64) + step * self.batch_size
        tokens = self.shards.batch(self.order[places])
        masked, positions, labels = self._masking(tokens, key=(self.seed, step), first=first)
        return _tensors(self.shards, masked, positions, labels, static=self.static, dense=self.dense)


class EvaluationBatches:
    """Evaluation batches: every row once, or evenly spaced rows, masked the same way whatever the batch size.

    The last batch is filled up with rows whose labels are all -100.

    Args:
        shards: the rows, as a rule Shards(folder, "validation").
        batch_size: number of rows of all ranks together.
        rows: maximum number of rows to take.
        seed, mask_probability, static, dense: as in `MlmBatches`.
    """

    def __init__(
        self,
        shards: Shards,
        batch_size: int,
        *,
        rows: int | None = None,
        seed: int = 0,
        mask_probability: float = 0.15,
        static: bool = True,
        dense: bool = False,
    ) -> None:
        require_int("batch_size", batch_size, 1)
        require_int("seed", seed, 0, (1 << 64) - 1)
        if rows is not None:
            require_int("rows", rows, 1)
        self.shards, self.batch_size, self.seed, self.static, self.dense = shards, batch_size, seed, static, dense
        self.rows = min(len(shards), rows or len(shards))
        self._masking = _masking(shards, mask_probability)

    def __len__(self) -> int:
        return -(-self.rows // self.batch_size)

    def batch(self, number: int, rank: int = 0, world: int = 1) -> dict[str, Tensor]:
        """Return one rank's part of batch 0, 1, ..., len - 1."""
        require_int("number", number, 0, len(self) - 1)
        first, size = _part(self.batch_size, rank, world)
        first += number * self.batch_size
        places = np.arange(first, first + size)
        tokens = self.shards.batch(places % self.rows * len(self.shards) // self.rows)
        masked, positions, labels = self._masking(tokens, key=(self.seed, EVALUATION), first=first)
        labels[places >= self.rows] = IGNORED
        return _tensors(self.shards, masked, positions, labels, static=self.static, dense=self.dense)


def _masking(shards: Shards, probability: float) -> WordMasking:
    return WordMasking(
        length=shards.max_length,
        probability=probability,
        vocab_size=shards.vocab_size,
        special_ids=shards.special_ids,
        mask_id=shards.specials["mask"],
    )


def _part(batch_size: int, rank: int, world: int) -> tuple[int, int]:
    """Return the first row of a rank's part of a batch, and the number of its rows."""
    require_int("world", world, 1)
    require_int("rank", rank, 0, world - 1)
    if batch_size % world:
        raise ValueError(
            f"batch_size: expected a multiple of the world size {world}, got {batch_size}. "
            f"Take {batch_size // world * world or world} or {(batch_size // world + 1) * world}."
        )
    return rank * (batch_size // world), batch_size // world


def _tensors(
    shards: Shards,
    masked: npt.NDArray[np.int64],  # (B, L)
    positions: npt.NDArray[np.int64],  # (B, K)
    labels: npt.NDArray[np.int64],  # (B, K)
    *,
    static: bool,
    dense: bool,
) -> dict[str, Tensor]:
    filled = masked != shards.specials["pad"]
    if not static:
        longest = int(filled.sum(axis=1).max())
        length = min(-(-longest // MULTIPLE) * MULTIPLE, shards.max_length)
        masked, filled = masked[:, :length].copy(), filled[:, :length]
    arrays = {"input_ids": masked}
    if shards.packed:
        texts = np.cumsum(masked == shards.specials["cls"], axis=1) - 1
        arrays["documents"] = np.where(filled, texts, PADDING)
    else:
        arrays["attention_mask"] = filled.astype(np.int64)
    flat = positions + np.arange(len(masked))[:, None] * masked.shape[1]
    if dense:
        everywhere = np.full(masked.shape, IGNORED)
        used = labels != IGNORED
        everywhere.flat[flat[used]] = labels[used]
        arrays["labels"] = everywhere
    else:
        used = np.ones(labels.shape, dtype=bool) if static else labels != IGNORED
        arrays |= {"masked_positions": flat[used], "labels": labels[used]}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


class WordMasking:
    """Chooses a share of each row's tokens; 80 % become [MASK], 10 % another token at random, 10 % stay.

    In a row with m tokens that are not special, exactly round(probability * m) are chosen, at least one. So no row has
    more than `predictions` of them, which depends on the length alone: shapes are the same for every batch.

    Paper:    Devlin et al. (2019), "BERT", Sec. 3.1, Task #1, and Appendix A.1
    Departs:  special tokens are neither chosen nor drawn in place of others

    Args:
        length: length of rows, padding included.
        probability: share of tokens to predict, 0.15 in the paper.
        vocab_size: number of tokens in the vocabulary.
        special_ids: ids that are not part of a text.
        mask_id: id of [MASK].
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
        """Return masked tokens, (B, length), and positions and labels of the chosen ones, (B, predictions).

        Where a row has fewer, positions are 0 and labels -100. The mask of row r depends on the key and first + r, not
        on the other rows of the batch.
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
        """Draw 64-bit words for the choice of positions, of actions and of tokens, each (rows, ...)."""
        stream = np.random.Philox(key=np.array(key, dtype=np.uint64))
        stream.advance(first * self._blocks)
        words = stream.random_raw(rows * self._blocks * 4).reshape(rows, -1)
        ends = [self.length, self.length + self.predictions, self.length + 2 * self.predictions]
        return np.split(words, ends, axis=1)[:3]
