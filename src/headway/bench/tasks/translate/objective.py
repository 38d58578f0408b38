"""The training objective: predict each word of the target from the source and the words before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from headway.bench.tasks.training.objective import Batch, Objective
from headway.models.losses import IGNORED, cross_entropy
from headway.models.translation import TranslationModel


class NextWords(Objective):
    """Cross-entropy with label smoothing; in evaluation (3,): the sum without smoothing, correct words, and words."""

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
        correct = (output.logits.argmax(-1) == batch["labels"]).sum()  # no word has the label IGNORED
        return torch.stack([exact.double(), correct.double(), self.count(batch).double()])


def dev_sums(
    objective: Callable[[Batch, Tensor], Tensor], batches: Iterable[Batch], device: torch.device
) -> Tensor:  # (3,)
    """Sum the objective over evaluation batches."""
    sums = torch.zeros(3, dtype=torch.float64, device=device)
    one = torch.ones((), device=device)
    for batch in batches:
        sums += objective({name: value.to(device) for name, value in batch.items()}, one)
    return sums


def dev_numbers(sums: Tensor) -> dict[str, float]:
    """Return the loss per target word, without smoothing, and the share of words that are predicted correctly."""
    loss, correct, words = sums.tolist()
    return {"evaluation_loss": loss / words, "word_accuracy": correct / words}
