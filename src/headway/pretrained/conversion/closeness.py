"""How close a converted model is to its original."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headway.pretrained.analysis.arrays import Array
from headway.pretrained.conversion.lengths import longest
from headway.pretrained.conversion.masked_loss import masked, masked_loss, predicts_words
from headway.pretrained.conversion.measured import average_scores, evaluating
from headway.pretrained.conversion.samples import check_known, rows_of_text, texts_by_themselves

ROWS = 32  # of text that is compared
BATCH = 8


@dataclass(frozen=True, kw_only=True)
class Closeness:
    """Differences of the converted model's hidden states, scores and loss from the original's, on the same text."""

    relative_error: float  # of the last hidden states: |difference| / |original's|
    cosine: float  # between each token's last hidden states, averaged
    text_cosine: float  # between the means over each row: what sentence encoders compare
    score_errors: tuple[float, ...]  # of each layer's scores averaged over rows of text, less their mean over the keys
    loss_before: float | None  # of masked words, in nats; None without a head that names them
    loss_after: float | None
    rows: int
    length: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(
    original: Any,
    converted: Any,
    tokenizer: Any,
    texts: Sequence[str],
    *,
    length: int = 128,
    seed: int = 0,
) -> Closeness:
    """Run both models on the same rows of text.

    Args:
        texts: each is read by itself, long ones in pieces; at most 32 pieces, spread over all.
        length: tokens of a piece, or fewer where either model has fewer positions.
        seed: of the words that are masked.
    """
    length = min(length, *(longest(model) or length for model in (original, converted)))
    rows, mask = texts_by_themselves(tokenizer, texts, length, ROWS)
    check_known(rows, original)
    before, after = _states(original, rows, mask), _states(converted, rows, mask)  # (N, L, E), 0 in the padding
    tokens = mask.sum(1, keepdim=True)
    losses: tuple[float | None, float | None] = (None, None)
    if predicts_words(original):
        inputs, labels = masked(rows, tokenizer, seed, mask)
        losses = masked_loss(original, inputs, labels, mask), masked_loss(converted, inputs, labels, mask)
    return Closeness(
        relative_error=float((after - before).norm() / before.norm()),
        cosine=float(torch.cosine_similarity(after, before, dim=-1).sum() / tokens.sum()),
        text_cosine=float(torch.cosine_similarity(after.sum(1) / tokens, before.sum(1) / tokens, dim=-1).mean()),
        score_errors=tuple(_score_errors(original, converted, rows_of_text(tokenizer, texts, length, ROWS))),
        loss_before=losses[0],
        loss_after=losses[1],
        rows=len(rows),
        length=rows.shape[1],
    )


@torch.no_grad()
def _states(model: Any, rows: Tensor, mask: Tensor) -> Tensor:  # (N, L, E), float64
    """Last hidden states, 0 in the padding."""
    parts = []
    with evaluating(model.base_model):
        for start in range(0, len(rows), BATCH):
            ids, seen = (part[start : start + BATCH].to(model.device) for part in (rows, mask))
            states = model.base_model(input_ids=ids, attention_mask=seen).last_hidden_state
            parts.append((states * seen[..., None]).double().cpu())
    return torch.cat(parts)


def _score_errors(original: Any, converted: Any, rows: Tensor) -> list[float]:
    errors = []
    for before, after in zip(average_scores(original, rows), average_scores(converted, rows), strict=True):
        want, got = (_centered(scores.matrices()) for scores in (before, after))
        errors.append(float(np.linalg.norm(got - want) / np.linalg.norm(want)))
    return errors


def _centered(scores: Array) -> Array:  # (H, L, L)
    """Less their mean over the keys, which the softmax does not see."""
    less: Array = scores - scores.mean(-1, keepdims=True)
    return less
