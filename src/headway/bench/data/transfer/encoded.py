"""Tokenised texts in flat arrays, and batches of sequences of similar length, so that little is padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.bench.data.transfer.spec import Example

CHUNK = 1000  # number of texts given to a tokenizer at a time
POOL = 50  # batches that are sorted by length together
PAD_TO = 16  # lengths are multiples of this: tensor cores need it, and few shapes need few kernels


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """Sequences of tokens in one array.

    Args:
        tokens, segments: of all sequences, (T,).
        bounds: (N + 1,) start of each sequence, and the end of the last.
        labels: (N,) classes or scores, or (N, 2) first and last token of an answer.
        pad: padding token.
        cut: number of texts or pairs that were truncated.
    """

    tokens: NDArray[np.int32]
    segments: NDArray[np.uint8]
    bounds: NDArray[np.int64]
    labels: NDArray[Any]
    pad: int
    cut: int = 0

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.bounds)


class Resident:
    """Sequences that are kept on a device, where batches are gathered, so that no step waits for a copy."""

    def __init__(self, encoded: Encoded, device: torch.device) -> None:
        self.device, self.pad = device, encoded.pad
        self._host_lengths = encoded.lengths
        self.tokens, self.segments, self.starts, self.lengths, self.labels = (
            torch.from_numpy(values).to(device)
            for values in (encoded.tokens, encoded.segments, encoded.bounds[:-1], encoded.lengths, encoded.labels)
        )

    def width(self, chosen: NDArray[np.int64]) -> int:
        """Return the number of tokens in a row of a batch, padding included."""
        return -(-int(self._host_lengths[chosen].max()) // PAD_TO) * PAD_TO

    def numbers(self, chosen: NDArray[np.int64]) -> Tensor:
        """Copy indices to the device without waiting."""
        numbers = torch.from_numpy(chosen)
        return numbers.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else numbers

    def batch(self, chosen: Tensor, width: int) -> dict[str, Tensor]:
        """Return input_ids and token_type_ids (B, width), lengths (B,), and labels of the chosen sequences (B,)."""
        lengths = self.lengths[chosen]
        place = torch.arange(width, device=self.device)
        inside = place < lengths[:, None]
        at = (self.starts[chosen][:, None] + place).masked_fill(~inside, 0)
        return {
            "input_ids": self.tokens[at].long().masked_fill(~inside, self.pad),
            "token_type_ids": self.segments[at].long().masked_fill(~inside, 0),
            "lengths": lengths,
            "labels": self.labels[chosen],
        }


def encode(tokenizer: Any, examples: Sequence[Example], *, length: int) -> Encoded:
    """Tokenise texts and pairs, with special tokens; the longer text of a pair is truncated first.

    Classes become int64 labels, -1 = none; scores float32, NaN = none.
    """
    parts = []
    for start in range(0, len(examples), CHUNK):
        some = examples[start : start + CHUNK]
        texts: list[Any] = [[each.first for each in some]]
        if some[0].second is not None:
            texts.append([each.second for each in some])
        parts.append(tokenizer(*texts, truncation=True, max_length=length, return_token_type_ids=True))
    number = any(isinstance(each.label, float) for each in examples)
    return flat(
        [row for part in parts for row in part["input_ids"]],
        [row for part in parts for row in part["token_type_ids"]],
        labels=_labels(examples, number=number),
        pad=tokenizer.pad_token_id,
        cut=sum(bool(row.overflowing) for part in parts for row in part.encodings or ()),
    )


def flat(
    tokens: list[list[int]], segments: list[list[int]], *, labels: NDArray[Any], pad: int, cut: int = 0
) -> Encoded:
    """Join sequences into flat arrays."""
    bounds = np.zeros(len(tokens) + 1, np.int64)
    np.cumsum([len(row) for row in tokens], out=bounds[1:])
    return Encoded(
        tokens=np.fromiter((token for row in tokens for token in row), np.int32, bounds[-1]),
        segments=np.fromiter((segment for row in segments for segment in row), np.uint8, bounds[-1]),
        bounds=bounds,
        labels=labels,
        pad=pad,
        cut=cut,
    )


class TrainingBatches:
    """The sequences in the batch of each step, a pure function of (seed, step).

    In each epoch all sequences are shuffled; those of `POOL` batches at a time are sorted by length and cut into
    batches, which are shuffled again. Sequences beyond a whole number of batches are left out, others in every epoch.
    """

    def __init__(self, lengths: NDArray[np.int64], *, batch: int, seed: int) -> None:
        self.lengths, self.seed = lengths, seed
        self.batch = min(batch, len(lengths))
        self.per_epoch = len(lengths) // self.batch
        self._epoch = (-1, np.empty((0, 0), np.int64))

    def __getitem__(self, step: int) -> NDArray[np.int64]:
        epoch, number = divmod(step, self.per_epoch)
        if self._epoch[0] != epoch:
            self._epoch = (epoch, self._order(epoch))
        chosen: NDArray[np.int64] = self._epoch[1][number]
        return chosen

    def _order(self, epoch: int) -> NDArray[np.int64]:  # (batches, batch)
        rng = np.random.default_rng([self.seed, epoch])
        order = rng.permutation(len(self.lengths))[: self.per_epoch * self.batch]
        pools = [
            pool[np.argsort(self.lengths[pool], kind="stable")]
            for pool in np.split(order, range(POOL * self.batch, len(order), POOL * self.batch))
        ]
        batches = np.concatenate(pools).reshape(self.per_epoch, self.batch)
        shuffled: NDArray[np.int64] = batches[rng.permutation(self.per_epoch)]
        return shuffled


def evaluation_batches(lengths: NDArray[np.int64], *, tokens: int) -> Iterator[NDArray[np.int64]]:
    """Yield batches of all sequences, longest first, of at most that many tokens with padding."""
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        count = max(1, tokens // int(lengths[order[start]]))
        yield order[start : start + count]
        start += count


def _labels(examples: Sequence[Example], *, number: bool) -> NDArray[Any]:
    if number:
        return np.array([np.nan if each.label is None else each.label for each in examples], np.float32)
    return np.array([-1 if each.label is None else each.label for each in examples], np.int64)
