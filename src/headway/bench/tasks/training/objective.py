"""A model with its loss as one module, so that a compiled module returns a number and not all scores."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.models import EncoderForMaskedLM
from headway.models.losses import IGNORED

Batch = dict[str, Tensor]


class Objective(nn.Module):
    """A model with its loss, a sum over items divided by a count.

    The count is given, so that parts of a batch, in several processes, add up to the gradient of the whole batch.
    """

    layers: nn.ModuleList  # layers of the model, which FSDP shards one by one

    def count(self, batch: Batch) -> Tensor:
        """Return the number of items that the loss of a batch is a sum over."""
        raise NotImplementedError

    def forward(self, batch: Batch, count: Tensor) -> Tensor:
        """Return the sum of losses divided by `count` in training, else the numbers that an evaluation adds up."""
        raise NotImplementedError


class MaskedWords(Objective):
    """Cross-entropy of masked words; in evaluation (3,): its sum, the words predicted right, and all masked words."""

    def __init__(self, model: EncoderForMaskedLM) -> None:
        super().__init__()
        self.model = model

    @property
    def layers(self) -> nn.ModuleList:  # type: ignore[override]
        return self.model.encoder.layers

    def count(self, batch: Batch) -> Tensor:
        return (batch["labels"] != IGNORED).sum()

    def forward(self, batch: Batch, count: Tensor) -> Tensor:
        output = self.model(**batch, num_items_in_batch=count)
        loss: Tensor = output.loss
        if self.training:
            return loss
        named = (output.logits.argmax(-1) == batch["labels"]).sum()  # IGNORED is no word
        return torch.stack([loss.double(), named.double(), self.count(batch).double()])
