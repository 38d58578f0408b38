"""Batches by approximate length within a token budget, each a function of a seed and a number.

Paper:    Shaw et al. (2018), Sec. 4.1: pairs batched by approximate length, at most 4096 source and 4096 target tokens;
          a step takes about 25,000 of each
Departs:  the paper distributes a step over 8 GPUs; here a step has a number of batches, which any number of processes
          compute

A batch is a dict of torch tensors, int64:

    input_ids          (B, Ls)  source tokens and the one that ends them, padded
    attention_mask     (B, Ls)  1 for tokens, 0 for padding
    decoder_input_ids  (B, Lt)  the token that begins, and target tokens
    labels             (B, Lt)  target tokens and the one that ends them, -100 for padding
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headway.bench.data.language.language import require_int
from headway.bench.data.mlm.batches import IGNORED
from headway.bench.data.mlm.order import mix_bits
from headway.bench.data.translation.pairs import EncodedPairs

MULTIPLE = 8
Integers = npt.NDArray[Any]


class TranslationBatches:
    """An endless sequence of training batches; each epoch has each pair once, in other batches and another order.

    `parts(step, rank, world)` are the batches of a step that a rank computes. All ranks together compute the same
    batches whatever the world size; ranks that would have fewer batches get batches without labels.

    Args:
        pairs: the pairs.
        tokens: maximum number of source tokens, and of target tokens, in a batch, including padding.
        step_tokens: approximate number of target tokens in a step, without padding; fixes the number of its batches.
        seed: seed of order and batches.
    """

    def __init__(self, pairs: EncodedPairs, *, tokens: int, step_tokens: int, seed: int) -> None:
        require_int("tokens", tokens, MULTIPLE)
        require_int("step_tokens", step_tokens, 1)
        self.pairs, self.seed = pairs, seed
        self._order, self._cuts, self._runs = cut_batches(pairs.lengths, tokens)
        self.batches = len(self._cuts) - 1
        source, target = (int(side) for side in pairs.lengths.sum(axis=1))
        self.per_step = max(1, round(step_tokens * self.batches / target))
        self.tokens_per_step = (source + target) * self.per_step / self.batches  # on average, without padding
        self._epoch, self._rows, self._turns = -1, self._order, np.arange(self.batches)

    @property
    def steps_per_epoch(self) -> float:
        return self.batches / self.per_step

    def parts(self, step: int, rank: int = 0, world: int = 1) -> list[dict[str, Tensor]]:
        """Return a rank's batches of a step."""
        require_int("step", step, 0)
        return [
            self.batch(step * self.per_step + number) if number < self.per_step else _tensors(self.pairs, [])
            for number in batches_of_rank(self.per_step, rank, world)
        ]

    def batch(self, place: int) -> dict[str, Tensor]:
        """Return the batch at a place of the endless sequence."""
        return _tensors(self.pairs, self.rows(place))

    def rows(self, place: int) -> Integers:
        """Return the indices of the pairs in that batch."""
        epoch, number = divmod(place, self.batches)
        if self._epoch != epoch:
            # Only pairs of the same widths change places, so that the bounds of batches stay valid.
            self._rows = self._order[
                np.lexsort((_random_keys(len(self.pairs), f"pairs {self.seed} {epoch}"), self._runs))
            ]
            self._turns = np.argsort(_random_keys(self.batches, f"batches {self.seed} {epoch}"), kind="stable")
            self._epoch = epoch
        which = int(self._turns[number])
        return self._rows[self._cuts[which] : self._cuts[which + 1]]


class DevBatches:
    """Evaluation batches: each pair once, always in the same batches."""

    def __init__(self, pairs: EncodedPairs, *, tokens: int) -> None:
        self.pairs = pairs
        self._order, self._cuts, _ = cut_batches(pairs.lengths, tokens)

    def parts(self, rank: int = 0, world: int = 1) -> list[dict[str, Tensor]]:
        """Return a rank's batches; each rank gets as many, and batches beyond the last have no labels."""
        count = len(self._cuts) - 1
        return [
            _tensors(self.pairs, self._order[self._cuts[number] : self._cuts[number + 1]] if number < count else [])
            for number in batches_of_rank(count, rank, world)
        ]


def batches_of_rank(count: int, rank: int, world: int) -> range:
    """Return a rank's share of the numbers 0 .. count - 1; so that all ranks get as many, some get one beyond."""
    return range(rank, -(-count // world) * world, world)


def cut_batches(lengths: Integers, tokens: int) -> tuple[Integers, list[int], Integers]:
    """Sort sequences by their padded widths and cut the order into batches within the budget.

    Args:
        lengths: (sides, sequences); the budget holds for each side.

    Returns the order, the bounds of the batches in it, and for each place in the order the number of its run of equal
    widths. The bounds depend on the widths alone, so that sequences of one run may change places.
    """
    widths = padded_widths(lengths)
    widest = int(widths.max())
    if widest > tokens:
        raise ValueError(
            f"tokens: expected at least {widest}, the padded length of the longest sequence, got {tokens}. "
            f"Raise --tokens, or lower data.rules.max_tokens."
        )
    order = np.lexsort((*widths[::-1], widths.max(axis=0)))
    in_order = widths[:, order]
    begins = np.flatnonzero(np.r_[True, (in_order[:, 1:] != in_order[:, :-1]).any(axis=0)])
    counts = np.diff(np.r_[begins, len(order)])
    cuts, rows, open_widths = [0], 0, np.zeros(len(lengths), np.int64)
    for run, left in zip(in_order[:, begins].T, counts.tolist(), strict=True):
        while left:
            wider = np.maximum(open_widths, run)
            room = int((tokens // wider).min()) - rows
            if room <= 0:
                cuts.append(cuts[-1] + rows)
                rows, open_widths = 0, np.zeros_like(open_widths)
                continue
            taken = min(room, left)
            rows, left, open_widths = rows + taken, left - taken, wider
    cuts.append(cuts[-1] + rows)
    return order, cuts, np.repeat(np.arange(len(begins)), counts)


def padded_widths(lengths: Integers) -> Integers:
    """Round lengths up to multiples of 8, above 64 of an eighth of the next power of two, for few shapes."""
    power = np.ceil(np.log2(np.maximum(lengths, 1))).astype(np.int64)
    step = np.maximum(MULTIPLE, 2 ** np.maximum(power - 3, 0))
    widths: Integers = -(-lengths // step) * step
    return widths


def _tensors(pairs: EncodedPairs, rows: Integers | list[int]) -> dict[str, Tensor]:
    """Return the batch of these pairs; without pairs, one sequence without labels."""
    sides = [pairs[int(row)] for row in rows] or [(np.empty(0, np.int64), np.empty(0, np.int64))]
    lengths = np.array([[len(source) + 1, len(target) + 1] for source, target in sides])
    source_width, target_width = padded_widths(lengths.max(axis=0)).tolist()
    input_ids = np.full((len(sides), source_width), pairs.pad, np.int64)
    decoder_input_ids = np.full((len(sides), target_width), pairs.pad, np.int64)
    labels = np.full((len(sides), target_width), IGNORED, np.int64)
    for row, (source, target) in enumerate(sides):
        input_ids[row, : len(source)], input_ids[row, len(source)] = source, pairs.eos
        decoder_input_ids[row, 0], decoder_input_ids[row, 1 : len(target) + 1] = pairs.bos, target
        if len(rows):
            labels[row, : len(target)], labels[row, len(target)] = target, pairs.eos
    arrays = {
        "input_ids": input_ids,
        "attention_mask": (np.arange(source_width) < lengths[:, :1]).astype(np.int64),
        "decoder_input_ids": decoder_input_ids,
        "labels": labels,
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _random_keys(count: int, name: str) -> Integers:
    """Return that many numbers, a function of the name on every platform and version of numpy."""
    key = np.uint64(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big"))
    return mix_bits(np.arange(count, dtype=np.uint64) ^ key)
