"""What models are fed: random words, of which a fixed number in each sequence is masked and to be named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

MASKED = 0.15  # Devlin et al. (2019), Sec. 3.1
MASK, FIRST_WORD = 103, 999  # in BERT's vocabulary
IGNORED = -100

Feed = dict[str, Tensor]  # arguments of a model, by name


@dataclass(frozen=True, kw_only=True)
class Words:
    """Sequences of full length, without padding."""

    input_ids: Tensor  # (B, L)
    columns: Tensor  # (B, M) which are masked
    answers: Tensor  # (B, M) the words that stood there

    @classmethod
    def drawn(cls, batch: int, length: int, vocabulary: int, *, seed: int, device: str) -> Self:
        generator = torch.Generator().manual_seed(seed)
        words = torch.randint(FIRST_WORD, vocabulary, (batch, length), generator=generator)
        count = max(1, round(MASKED * length))
        columns = torch.rand(batch, length, generator=generator).argsort(1)[:, :count].sort(1).values
        answers = words.gather(1, columns)
        return cls(
            input_ids=words.scatter(1, columns, MASK).to(device),
            columns=columns.to(device),
            answers=answers.to(device),
        )

    def first(self, count: int) -> Self:
        """The first sequences."""
        return type(self)(input_ids=self.input_ids[:count], columns=self.columns[:count], answers=self.answers[:count])

    def seen(self, *, segments: bool) -> Feed:
        """What an encoder takes: the words and, where they are wanted, two segments of equal length."""
        if not segments:
            return {"input_ids": self.input_ids}
        second = torch.arange(self.input_ids.shape[1], device=self.input_ids.device) >= self.input_ids.shape[1] // 2
        return {"input_ids": self.input_ids, "token_type_ids": second.long().expand_as(self.input_ids).contiguous()}

    def at_masked_places(self) -> Feed:
        """Labels for our models, which name words at the masked places alone."""
        rows = torch.arange(len(self.columns), device=self.columns.device)[:, None]
        places = rows * self.input_ids.shape[1] + self.columns
        return {"masked_positions": places.flatten(), "labels": self.answers.flatten()}

    def at_all_places(self) -> Feed:
        """Labels for transformers' models, which name a word at every place and leave most out of the loss."""
        return {"labels": torch.full_like(self.input_ids, IGNORED).scatter(1, self.columns, self.answers)}
