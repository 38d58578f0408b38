"""Masked-language-model loss of rows of tokens, the same words masked for every model."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.pretrained.conversion.measured import evaluating
from headway.pretrained.conversion.samples import check_known

MASKED = (
    0.15  # share of words (Devlin et al. 2019, Sec. 3.1); all of them become [MASK], so that nothing is drawn twice
)
IGNORED = -100
BATCH_TOKENS = 4096


def predicts_words(model: Any) -> bool:
    """Whether a model has a head that names masked words."""
    return type(model).__name__.endswith("ForMaskedLM")


def masked(
    rows: Tensor, tokenizer: Any, seed: int, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:  # (N, L), all: inputs and labels
    """Rows with words masked, at least one in each, and the words at these places, -100 elsewhere.

    Of padding, where `mask` is 0, nothing is masked, whichever token fills it.
    """
    if tokenizer.mask_token_id is None:
        raise ValueError(
            "tokenizer: expected one with a mask token, got none. Loss on masked words cannot be measured."
        )
    draw = torch.rand(rows.shape, generator=torch.Generator().manual_seed(seed))
    special = torch.isin(rows, torch.tensor(tokenizer.all_special_ids))
    if mask is not None:
        special = special | (mask == 0)
    draw = draw.masked_fill(special, 2.0)
    chosen = (draw < MASKED) | ((draw == draw.min(1, keepdim=True).values) & ~special)
    if not chosen.any():
        raise ValueError("texts: expected words that the tokenizer knows, got none. Give text in the model's language.")
    return rows.masked_fill(chosen, tokenizer.mask_token_id), rows.masked_fill(~chosen, IGNORED)


@torch.no_grad()
def masked_loss(model: Any, rows: Tensor, labels: Tensor, mask: Tensor | None = None) -> float:  # (N, L), all
    """Mean cross-entropy of the masked words, in nats."""
    check_known(rows, model)
    total, count = 0.0, 0
    size = max(1, BATCH_TOKENS // rows.shape[1])
    with evaluating(model):
        for start in range(0, len(rows), size):
            part = labels[start : start + size]
            seen = None if mask is None else mask[start : start + size].to(model.device)
            logits = model(input_ids=rows[start : start + size].to(model.device), attention_mask=seen).logits
            chosen = part != IGNORED
            total += float(
                F.cross_entropy(logits[chosen.to(model.device)].float().cpu(), part[chosen], reduction="sum")
            )
            count += int(chosen.sum())
    return total / count
