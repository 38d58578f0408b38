"""A model with its loss as one module, so that a compiled module returns a number and not all scores."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel

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

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    @property
    def layers(self) -> nn.ModuleList:  # type: ignore[override]
        if not isinstance(self.model, EncoderForMaskedLM):
            raise NotImplementedError(
                f"fsdp: expected one of headway's encoders, got a {type(self.model).__name__}. Leave --fsdp out."
            )
        return self.model.encoder.layers

    def count(self, batch: Batch) -> Tensor:
        return (batch["labels"] != IGNORED).sum()

    def forward(self, batch: Batch, count: Tensor) -> Tensor:
        loss, logits = self._predict(batch, count)
        if self.training:
            return loss
        named = (logits.argmax(-1) == batch["labels"]).sum()  # IGNORED is no word
        return torch.stack([loss.double(), named.double(), self.count(batch).double()])

    def _predict(self, batch: Batch, count: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss, and the scores of words at the masked places."""
        if isinstance(self.model, EncoderForMaskedLM):
            output = self.model(**batch, num_items_in_batch=count)
            return output.loss, output.logits
        ids, labels = batch["input_ids"], batch["labels"]
        if "documents" in batch:
            raise NotImplementedError(
                f"packed: expected one of headway's encoders, got a {type(self.model).__name__}, which would let "
                f"packed texts attend to one another. Leave text.packed out."
            )
        keep = None  # where nothing is padding
        if "lengths" in batch:
            keep = (torch.arange(ids.shape[1], device=ids.device) < batch["lengths"][:, None]).long()
        logits = self.model(input_ids=ids, attention_mask=keep).logits.flatten(0, 1)[batch["masked_positions"]]
        total = cross_entropy(logits.float(), labels, ignore_index=IGNORED, reduction="sum")
        return total / count, logits
