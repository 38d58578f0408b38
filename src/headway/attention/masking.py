"""Who may attend to whom: causal order, key lengths, packed documents and a free boolean mask, in one value."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False, kw_only=True)
class Masking:
    """All reasons why query i of sequence b may not attend to key j; True = may attend.

    Causal order is aligned at the end, so that the last query sees every key (cached decoding): key j is seen by
    query i when j - i <= Lk - Lq.
    """

    q_len: int
    k_len: int
    causal: bool = False
    mask: Tensor | None = None  # (B|1, H|1, Lq|1, Lk) boolean
    lengths: Tensor | None = None  # (B,) keys at and beyond are padding
    q_documents: Tensor | None = None  # (B|1, Lq) ids of packed texts
    k_documents: Tensor | None = None  # (B|1, Lk)

    @property
    def empty(self) -> bool:
        """Whether every query sees every key."""
        return not self.causal and self.mask is None and self.lengths is None and self.q_documents is None

    @property
    def only_causal(self) -> bool:
        return self.causal and self.mask is None and self.lengths is None and self.q_documents is None

    def tensors(self) -> list[Tensor]:
        parts = (self.mask, self.lengths, self.q_documents, self.k_documents)
        return [part for part in parts if part is not None]

    def dense(self, device: torch.device) -> Tensor | None:
        """The whole mask, (B|1, H|1, Lq, Lk), or None where everything is allowed."""
        batch = max([1] + [t.shape[0] for t in self.tensors()])
        return self.tile(0, batch, 0, self.q_len, 0, self.k_len, device)

    def tile(
        self, b0: int, b1: int, i0: int, i1: int, j0: int, j1: int, device: torch.device
    ) -> Tensor | None:  # (B|1, H|1, i1 - i0, j1 - j0)
        """The mask of sequences b0..b1, queries i0..i1 and keys j0..j1."""
        i = torch.arange(i0, i1, device=device)[:, None]
        j = torch.arange(j0, j1, device=device)[None, :]
        allowed: Tensor | None = None
        if self.causal:
            allowed = (j - i <= self.k_len - self.q_len)[None, None]
        if self.lengths is not None:
            allowed = _both(allowed, (j < self.lengths[b0:b1, None, None])[:, None])
        if self.q_documents is not None and self.k_documents is not None:
            rows = _batch(self.q_documents, b0, b1)[:, i0:i1]
            columns = _batch(self.k_documents, b0, b1)[:, j0:j1]
            allowed = _both(allowed, (rows[:, :, None] == columns[:, None, :])[:, None])
        if self.mask is not None:
            rows = self.mask if self.mask.shape[2] == 1 else self.mask[:, :, i0:i1]
            allowed = _both(allowed, _batch(rows, b0, b1)[..., j0:j1])
        return allowed

    def of_any(self, device: torch.device) -> Tensor | None:  # (1, H|1, Lq, Lk), or None where everything is allowed
        """All keys that a query sees in some sequence, and maybe more: each reason is asked of the batch by itself, and
        documents are not asked."""
        lengths = None if self.lengths is None else self.lengths.max()[None]
        mask = None if self.mask is None else self.mask.any(0, keepdim=True)
        return replace(self, lengths=lengths, mask=mask, q_documents=None, k_documents=None).dense(device)

    def key_range(self, b0: int, b1: int, i0: int, i1: int) -> tuple[int, int]:
        """A range of keys outside which none of these queries sees anything; it may be empty."""
        start, stop = 0, self.k_len
        if self.causal:
            stop = min(stop, max(0, i1 - 1 + self.k_len - self.q_len + 1))
        if self.lengths is not None:
            stop = min(stop, int(self.lengths[b0:b1].max()))
        if self.q_documents is not None and self.k_documents is not None and start < stop:
            rows = _batch(self.q_documents, b0, b1)[:, i0:i1]
            columns = _batch(self.k_documents, b0, b1)[:, :stop]
            shared = torch.isin(columns.contiguous(), torch.unique(rows)).any(0).nonzero()
            if len(shared) == 0:
                return 0, 0
            start, stop = int(shared[0]), int(shared[-1]) + 1
        return start, max(start, stop)


def _batch(tensor: Tensor, b0: int, b1: int) -> Tensor:
    return tensor if tensor.shape[0] == 1 else tensor[b0:b1]


def _both(a: Tensor | None, b: Tensor) -> Tensor:
    return b if a is None else a & b
