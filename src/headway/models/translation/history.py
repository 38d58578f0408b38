"""Which words the hypotheses chose, and from which hypothesis each went on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class History:
    """tokens[t, b, r] is the word that hypothesis r chose at step t, parents[t, b, r] the hypothesis it extended."""

    tokens: Tensor  # (steps, B, K)
    parents: Tensor  # (steps, B, K)

    @classmethod
    def empty(cls, steps: int, batch: int, paths: int, device: torch.device) -> History:
        zeros = torch.zeros(steps, batch, paths, dtype=torch.long, device=device)
        return cls(zeros, zeros.clone())

    def write(self, position: Tensor, tokens: Tensor, parents: Tensor) -> None:
        self.tokens.index_copy_(0, position, tokens[None])
        self.parents.index_copy_(0, position, parents[None])

    def of_sources(self, sources: Tensor) -> History:
        return History(self.tokens.index_select(1, sources), self.parents.index_select(1, sources))

    def traced(self, sources: list[int], rows: list[list[int]], lengths: list[list[int]]) -> list[list[list[int]]]:
        """The first `lengths` words of hypotheses of some sources, numbered `rows` after the last of these steps."""
        tokens, parents = self.tokens.cpu().numpy(), self.parents.cpu().numpy()
        source, row, length = np.array(sources)[:, None], np.array(rows), np.array(lengths)
        words = np.zeros((*row.shape, int(length.max(initial=0))), dtype=np.int64)
        for step in range(words.shape[-1] - 1, -1, -1):
            words[..., step] = tokens[step, source, row]
            row = np.where(step < length, parents[step, source, row], row)
        return [
            [chosen[:end].tolist() for chosen, end in zip(of_source, ends, strict=True)]
            for of_source, ends in zip(words, lengths, strict=True)
        ]
