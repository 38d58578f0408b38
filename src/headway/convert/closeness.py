"""How close a converted model is to its original."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from headway.bias import Bias
from headway.convert.converted import Converted, encoding_of
from headway.convert.interface import ARGUMENT, Frame
from headway.convert.lengths import longest
from headway.convert.masked_loss import masked, masked_loss, predicts_words
from headway.convert.measured import average_projections, evaluating
from headway.convert.samples import rows_of_text, texts_by_themselves

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
    converted: Converted,
    tokenizer: Any,
    texts: Sequence[str],
    *,
    length: int = 128,
    seed: int = 0,
) -> Closeness:
    """Run both models on the same rows of text.

    Args:
        texts: each is read by itself, long ones in pieces; at most 32 pieces, spread over all.
        length: tokens of a piece, or fewer where the original has fewer positions.
        seed: of the words that are masked.
    """
    length = min(length, longest(original) or length)
    rows, mask = texts_by_themselves(tokenizer, texts, length, ROWS)
    before, after = _states(original, rows, mask), _states(converted, rows, mask)  # (N, L, E), 0 in the padding
    tokens = mask.sum(1, keepdim=True)
    losses: tuple[float | None, float | None] = (None, None)
    if predicts_words(original):
        inputs, labels = masked(rows, tokenizer, seed)
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


@dataclass
class Looking(Frame):
    """A forward pass that keeps each layer's average scores."""

    scores: list[Tensor] = field(default_factory=list)  # (H, L, L) each

    def bias(self, layer: int, q: Tensor, k: Tensor, scale: float) -> Bias | None:
        bias = super().bias(layer, q, k, scale)
        mean = _centered(q.double().mean(0).cpu(), k.double().mean(0).cpu(), scale)
        if bias is not None:
            added = bias.dense(q, k_len=k.shape[-2], scale=scale).double().mean(0).cpu()
            mean = mean + added - added.mean(-1, keepdim=True)
        self.scores.append(mean)
        return bias


def _score_errors(original: Any, converted: Converted, rows: Tensor) -> list[float]:
    base = converted.base_model
    looking = Looking(encoding=encoding_of(converted), meets_keys=converted.conversion.meets_keys)
    with evaluating(base), torch.no_grad():
        base(input_ids=rows.to(base.device), **{ARGUMENT: looking})
    errors = []
    for (q, k), mine in zip(average_projections(original, rows), looking.scores, strict=True):
        theirs = _centered(q, k, q.shape[-1] ** -0.5)
        errors.append(float((mine - theirs).norm() / theirs.norm()))
    return errors


def _centered(q: Tensor, k: Tensor, scale: float) -> Tensor:  # (H, L, D) both, to (H, L, L)
    """Scores less their mean over the keys, which the softmax does not see."""
    return scale * q @ (k - k.mean(1, keepdim=True)).transpose(-1, -2)
