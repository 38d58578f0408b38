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

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headway.bench.data.language.language import require_int
from headway.bench.data.mlm.masking import IGNORED, Masking
from headway.bench.data.mlm.order import RowOrder
from headway.bench.data.mlm.shards import PADDING, Shards
from headway.bench.data.text.sampling import ALPHA

EVALUATION = (1 << 64) - 1  # in place of a step, which never gets there
MULTIPLE = 8


class MlmBatches:
    """Training batches without end: rows in a shuffled order, masked anew in each step.

    `batch(step, rank, world)` is the rank's part of the step's batch. The parts of all ranks together are the same
    whatever the world size; so are the micro-batches of gradient accumulation, taken as ranks of a larger world.

    Args:
        shards: where rows come from.
        batch_size: rows of all ranks together.
        seed: chooses order and masks.
        mask_probability: the share of tokens to predict.
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
        """On average over languages as they are drawn, without padding."""
        own = self.shards.tokens_per_row
        return sum(share * own[language] for language, share in self.order.shares.items())

    def batch(self, step: int, rank: int = 0, world: int = 1) -> dict[str, Tensor]:
        """One rank's part of the step's batch."""
        require_int("step", step, 0)
        first, size = _part(self.batch_size, rank, world)
        places = np.arange(first, first + size, dtype=np.int64) + step * self.batch_size
        tokens = self.shards.batch(self.order[places])
        masked, positions, labels = self._masking(tokens, key=(self.seed, step), first=first)
        return _tensors(self.shards, masked, positions, labels, static=self.static, dense=self.dense)


class EvaluationBatches:
    """Every row once, or evenly spaced ones, in order, masked the same way always, whatever the batch size.

    The last batch is filled up with rows whose labels are all -100.

    Args:
        shards: where rows come from, as a rule Shards(folder, "validation").
        batch_size: rows of all ranks together.
        rows: how many to take at most.
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
        """One rank's part of batch 0, 1, ..., len - 1."""
        require_int("number", number, 0, len(self) - 1)
        first, size = _part(self.batch_size, rank, world)
        first += number * self.batch_size
        places = np.arange(first, first + size)
        tokens = self.shards.batch(places % self.rows * len(self.shards) // self.rows)
        masked, positions, labels = self._masking(tokens, key=(self.seed, EVALUATION), first=first)
        labels[places >= self.rows] = IGNORED
        return _tensors(self.shards, masked, positions, labels, static=self.static, dense=self.dense)


def _masking(shards: Shards, probability: float) -> Masking:
    return Masking(
        length=shards.max_length,
        probability=probability,
        vocab_size=shards.vocab_size,
        special_ids=shards.special_ids,
        mask_id=shards.specials["mask"],
    )


def _part(batch_size: int, rank: int, world: int) -> tuple[int, int]:
    """The first row of a rank's part of a batch, and how many there are."""
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
