"""What is trained: a model with its loss, so that what leaves a compiled module is a number and not all scores."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.models import EncoderForMaskedLM
from headway.models.losses import IGNORED

Batch = dict[str, Tensor]


class Objective(nn.Module):
    """A model with its loss, a sum over items divided by a count.

    The count is given, so that a batch in parts, over several processes, has the gradient of the whole.
    """

    layers: nn.ModuleList  # of the model; FSDP shards them one by one

    def count(self, batch: Batch) -> Tensor:
        """How many items the loss of a batch is a sum over."""
        raise NotImplementedError

    def forward(self, batch: Batch, count: Tensor) -> Tensor:
        """In training the sum of losses over `count`; else what an evaluation adds up."""
        raise NotImplementedError


class MaskedWords(Objective):
    """Cross-entropy of the masked words; in evaluation also how many of them were named, of how many: (3,)."""

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
        named = (output.logits.argmax(-1) == batch["labels"]).sum()  # no word has the label IGNORED
        return torch.stack([loss.double(), named.double(), self.count(batch).double()])
