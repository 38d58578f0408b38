"""What is trained: the target's words, each after those before it and the source."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from headway.bench.tasks.training.objective import Batch, Objective
from headway.models.losses import IGNORED, cross_entropy
from headway.models.translation import TranslationModel


class NextWords(Objective):
    """Smoothed cross-entropy of the target; in evaluation that without smoothing, and how many words were named, of how
    many: (3,)."""

    def __init__(self, model: TranslationModel) -> None:
        super().__init__()
        self.model = model

    @property
    def layers(self) -> nn.ModuleList:  # type: ignore[override]
        return nn.ModuleList([*self.model.encoder.layers, *self.model.decoder.layers])

    def count(self, batch: Batch) -> Tensor:
        return (batch["labels"] != IGNORED).sum()

    def forward(self, batch: Batch, count: Tensor) -> Tensor:
        if self.training:
            smoothed: Tensor = self.model(**batch, num_items_in_batch=count, loss_only=True).loss
            return smoothed
        output = self.model(**batch)
        exact = cross_entropy(output.logits, batch["labels"], count=1)
        named = (output.logits.argmax(-1) == batch["labels"]).sum()  # no word has the label IGNORED
        return torch.stack([exact.double(), named.double(), self.count(batch).double()])


def dev_sums(
    objective: Callable[[Batch, Tensor], Tensor], batches: Iterable[Batch], device: torch.device
) -> Tensor:  # (3,)
    """What the objective gives in evaluation, summed over batches."""
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    one = torch.ones((), device=device)
    for batch in batches:
        sums += objective({name: value.to(device) for name, value in batch.items()}, one)
    return sums


def dev_numbers(sums: Tensor) -> dict[str, float]:
    """Loss per target word, without smoothing, and the share of words that are named, given those before them."""
    loss, named, words = sums.tolist()
    return {"evaluation_loss": loss / words, "word_accuracy": named / words}
