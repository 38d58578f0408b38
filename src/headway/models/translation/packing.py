"""Words without their padding: what words go through one by one, they go through as one matrix of a batch's words."""

from __future__ import annotations

import torch
from torch import Tensor

from headway.running import may_read


class Packing:
    """Where the words of a padded batch (B, L) are. Without lengths all places are words, and nothing is moved.

    On a CPU only: elsewhere the number of words is not known without waiting for the device, and a compiled graph wants
    shapes that stay.
    """

    def __init__(
        self,
        lengths: Tensor | None,  # (B,), words of each sequence, all padding after them
        length: int,  # L
    ) -> None:
        self.places: Tensor | None = None  # (N,), of the words among B * L
        if lengths is not None and may_read(lengths):
            words = torch.arange(length) < lengths[:, None]
            self.shape = words.shape
            self.places = words.flatten().nonzero()[:, 0]

    def packed(self, x: Tensor) -> Tensor:  # (B, L, E) to (N, E)
        return x if self.places is None else x.flatten(0, 1).index_select(0, self.places)

    def padded(self, x: Tensor) -> Tensor:  # (N, E) to (B, L, E), zeros at padding
        if self.places is None:
            return x
        zeros = x.new_zeros(self.shape.numel(), x.shape[-1])
        return zeros.index_copy_(0, self.places, x).view(*self.shape, x.shape[-1])
