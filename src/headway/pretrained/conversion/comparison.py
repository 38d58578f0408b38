"""How close a converted model is to its original: hidden states, scores, and the loss of masked words at any length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from headway.pretrained.analysis.matrices import Array
from headway.pretrained.conversion.converted import max_length_of
from headway.pretrained.conversion.position_factors import average_scores
from headway.pretrained.conversion.samples import IGNORED, MASKED, check_known, join_texts, mask_words, separate_texts
from headway.running import evaluation_mode

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ROWS = 32  # rows of text that are compared
BATCH = 8  # rows of a forward pass
BATCH_TOKENS = 4096  # tokens of a forward pass, where the loss is measured
TOKENS = 16384  # tokens that each length is measured on, as far as the text goes
PREDICTED = 2000  # words to predict, about: on a short text, masks are drawn several times


@dataclass(frozen=True, kw_only=True)
class Closeness:
    """Differences of the converted model's hidden states, scores and loss from the original's, on the same text."""

    relative_error: float  # of the last hidden states: |difference| / |original's|
    cosine: float  # between each token's last hidden states, averaged
    text_cosine: float  # between the means over each row: what sentence encoders compare
    score_errors: tuple[float, ...]  # of each layer's scores averaged over rows of text, less their mean over the keys
    loss_before: float | None  # of masked words, in nats; None without a head that predicts them
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
    """Run both models on the same rows of text and measure how far they differ.

    Args:
        texts: each is a row of its own, long ones are cut into several; at most 32 rows, spread over all.
        length: tokens of a row, or fewer where either model has fewer positions.
        seed: seed of the choice of words that are masked.
    """
    length = min(length, *(max_length_of(model) or length for model in (original, converted)))
    rows, mask = separate_texts(tokenizer, texts, length, ROWS)
    check_known(rows, original)
    before, after = _hidden_states(original, rows, mask), _hidden_states(converted, rows, mask)
    tokens = mask.sum(1, keepdim=True)
    losses: tuple[float | None, float | None] = (None, None)
    if predicts_words(original):
        inputs, labels = mask_words(rows, tokenizer, seed, mask)
        losses = masked_loss(original, inputs, labels, mask), masked_loss(converted, inputs, labels, mask)
    return Closeness(
        relative_error=float((after - before).norm() / before.norm()),
        cosine=float(torch.cosine_similarity(after, before, dim=-1).sum() / tokens.sum()),
        text_cosine=float(torch.cosine_similarity(after.sum(1) / tokens, before.sum(1) / tokens, dim=-1).mean()),
        score_errors=tuple(_score_errors(original, converted, join_texts(tokenizer, texts, length, ROWS))),
        loss_before=losses[0],
        loss_after=losses[1],
        rows=len(rows),
        length=rows.shape[1],
    )


@torch.no_grad()
def _hidden_states(model: Any, rows: Tensor, mask: Tensor) -> Tensor:  # (N, L, E), float64
    """Compute the last hidden states, set to 0 in the padding."""
    parts = []
    with evaluation_mode(model.base_model):
        for start in range(0, len(rows), BATCH):
            ids, seen = (part[start : start + BATCH].to(model.device) for part in (rows, mask))
            states = model.base_model(input_ids=ids, attention_mask=seen).last_hidden_state
            parts.append((states * seen[..., None]).double().cpu())
    return torch.cat(parts)


def _score_errors(original: Any, converted: Any, rows: Tensor) -> list[float]:
    errors = []
    for before, after in zip(average_scores(original, rows), average_scores(converted, rows), strict=True):
        want, got = (_less_mean_over_keys(scores.matrices()) for scores in (before, after))
        errors.append(float(np.linalg.norm(got - want) / np.linalg.norm(want)))
    return errors


def _less_mean_over_keys(scores: Array) -> Array:  # (H, L, L)
    """Subtract the mean over the keys, on which the softmax does not depend."""
    less: Array = scores - scores.mean(-1, keepdims=True)
    return less


def predicts_words(model: Any) -> bool:
    """Return whether a model has a head that predicts masked words."""
    return type(model).__name__.endswith("ForMaskedLM")


@torch.no_grad()
def masked_loss(model: Any, rows: Tensor, labels: Tensor, mask: Tensor | None = None) -> float:  # (N, L), all
    """Return the mean cross-entropy of the masked words, in nats."""
    check_known(rows, model)
    total, count = 0.0, 0
    size = max(1, BATCH_TOKENS // rows.shape[1])
    with evaluation_mode(model):
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


def loss_by_length(
    model: Any, tokenizer: Any, texts: Sequence[str], lengths: Sequence[int], *, seed: int = 0, tokens: int = TOKENS
) -> dict[int, float | None]:
    """Return the mean cross-entropy of masked words, in nats, in rows of each length.

    It is None for lengths that the model has no positions for. Rows are cut from the joined texts; longer rows have
    fewer beginnings, so that more of each word's context is seen.
    """
    if not predicts_words(model):
        raise ValueError(
            f"model: expected one with a head that predicts masked words (ForMaskedLM), got {type(model).__name__}."
        )
    if not lengths or min(lengths) < 3:
        raise ValueError(f"lengths: expected one or more lengths of at least 3, got {list(lengths)}.")
    limit = max_length_of(model)
    losses: dict[int, float | None] = {}
    for length in lengths:
        losses[length] = None
        if limit is None or length <= limit:
            rows = join_texts(tokenizer, texts, length, max(1, tokens // length))
            if rows.shape[1] < length:
                raise ValueError(
                    f"texts: they have {rows.shape[1]} tokens, too few for one row of length {length}. Give more text, "
                    f"or leave that length out."
                )
            draws = math.ceil(PREDICTED / (MASKED * rows.numel()))
            each = [masked_loss(model, *mask_words(rows, tokenizer, seed + n)) for n in range(draws)]
            losses[length] = sum(each) / draws
    return losses


def length_figure(losses: Mapping[str, Mapping[int, float | None]], *, positions: int | None = None) -> Figure:
    """Draw loss against length, one curve a model; `positions` marks how many the original has."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    for (name, curve), marker in zip(losses.items(), "os^Dv<>p", strict=False):
        known = {length: loss for length, loss in sorted(curve.items()) if loss is not None}
        axes.plot(list(known), list(known.values()), marker=marker, label=name)
    if positions is not None:
        axes.axvline(positions, color="0.5", linestyle="--", linewidth=1)
        axes.annotate(
            " positions of the original", (positions, 0.98), xycoords=("data", "axes fraction"), va="top", fontsize=8
        )
    ticks = sorted({length for curve in losses.values() for length in curve})
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("length of the text, tokens")
    axes.set_ylabel("loss of masked words, nats")
    axes.grid(alpha=0.3)
    axes.legend()
    return figure


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """Write a figure as PNG and SVG, and return both paths."""
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    for path in paths:
        figure.savefig(path, dpi=200)
    return paths
