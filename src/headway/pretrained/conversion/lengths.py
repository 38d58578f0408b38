"""Loss against the length of the text: what a model makes of texts longer than it was trained on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.encodings import Encoding
from headway.pretrained.conversion.converted import Converted
from headway.pretrained.conversion.masked_loss import MASKED, masked, masked_loss, predicts_words
from headway.pretrained.conversion.samples import rows_of_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOKENS = 16384  # that each length is measured on, as far as the text goes
PREDICTED = 2000  # words, about: of a short text, masks are drawn several times


def loss_by_length(
    model: Any, tokenizer: Any, texts: Sequence[str], lengths: Sequence[int], *, seed: int = 0, tokens: int = TOKENS
) -> dict[int, float | None]:
    """Mean cross-entropy of masked words, in nats, in rows of each length; None for lengths that a model has no
    positions for.

    Rows are cut from the texts, joined. Longer rows hold fewer beginnings, so that more of each word's context is seen.
    """
    if not predicts_words(model):
        raise ValueError(
            f"model: expected one with a head that names masked words (ForMaskedLM), got {type(model).__name__}."
        )
    if not lengths or min(lengths) < 3:
        raise ValueError(f"lengths: expected one or more lengths of at least 3, got {list(lengths)}.")
    limit = longest(model)
    losses: dict[int, float | None] = {}
    for length in lengths:
        losses[length] = None
        if limit is None or length <= limit:
            rows = rows_of_text(tokenizer, texts, length, max(1, tokens // length))
            if rows.shape[1] < length:
                raise ValueError(f"texts: expected at least {length} tokens for that length, got {rows.shape[1]}.")
            draws = math.ceil(PREDICTED / (MASKED * rows.numel()))
            each = [masked_loss(model, *masked(rows, tokenizer, seed + n)) for n in range(draws)]
            losses[length] = sum(each) / draws
    return losses


def longest(model: Any) -> int | None:
    """The longest text a model takes, in tokens; None where there is no limit."""
    base = model.base_model
    encoding = getattr(base, "encoding", None)  # of our own encoders
    if isinstance(encoding, Encoding):
        return _limit(encoding)
    added = _limit(base.position_bias.encoding) if isinstance(model, Converted) else None
    if isinstance(model, Converted) and model.conversion.replaces:
        return added
    table = base.embeddings.position_embeddings
    positions = int(table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1))
    return positions if added is None else min(positions, added)


def _limit(encoding: Encoding) -> int | None:
    return None if encoding.extends else int(encoding.dims.max_length)


def length_figure(losses: Mapping[str, Mapping[int, float | None]], *, positions: int | None = None) -> Figure:
    """Curves of loss against length, one a model; `positions` marks how many the original has."""
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
    """Write PNG and SVG."""
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    for path in paths:
        figure.savefig(path, dpi=200)
    return paths
