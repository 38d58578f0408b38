"""A picture of every encoding: the scores it can make, fitted to three patterns that heads of real models show.

One attention layer reads one word again and again, so that only position can tell its tokens apart. All that can be
learned (the encoding, the projections of queries and keys) is fitted to three heads: the previous word, near words, the
first word. What is missing in the picture is what the encoding cannot say.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache

import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from torch import Tensor, nn

from headway.bench.report.figures import LOOK, SIGN, without_grid
from headway.encodings import encoding

PATTERNS = ("previous word", "near words", "first word")
LENGTH, HEAD_DIM, STEPS = 40, 16, 400


@dataclass(frozen=True)
class Picture:
    """Scores of three heads, and the share of each pattern's variance that they explain (R²)."""

    scores: Tensor  # (3, L, L), rows centred
    explained: tuple[float, ...]


def patterns() -> Tensor:  # (3, L, L)
    offset = torch.arange(LENGTH)[None] - torch.arange(LENGTH)[:, None]  # j - i
    first = torch.zeros(LENGTH, LENGTH)
    first[:, 0] = 1
    return centred(4 * torch.stack([(offset == -1).float(), torch.exp(-offset.abs() / 5), first]))


def centred(scores: Tensor) -> Tensor:
    """Without what softmax ignores, the mean of each row."""
    return scores - scores.mean(-1, keepdim=True)


class OneWord(nn.Module):
    """The scores of one layer that reads the same word at every position."""

    def __init__(self, name: str) -> None:
        super().__init__()
        heads, width = len(PATTERNS), len(PATTERNS) * HEAD_DIM
        self.encoding = encoding(name, num_layers=1, num_heads=heads, head_dim=HEAD_DIM, max_length=LENGTH)
        self.register_buffer("word", torch.randn(width))
        self.query = nn.Parameter(torch.randn(heads, width, HEAD_DIM) * width**-0.5)
        self.key = nn.Parameter(torch.randn(heads, width, HEAD_DIM) * width**-0.5)

    def forward(self) -> Tensor:  # (3, L, L)
        x = self.encoding.embed(self.word.expand(1, LENGTH, -1))[:, None]
        q, k = self.encoding.rotate(x @ self.query, x @ self.key)
        scale = self.encoding.scale or HEAD_DIM**-0.5
        scores = scale * q @ k.transpose(-1, -2)
        bias = self.encoding.bias(0, LENGTH, LENGTH)
        if bias is not None:
            scores = scores + bias.dense(q, scale=scale)
        return centred(scores[0])


@cache
def picture(name: str) -> Picture:
    """The encoding fitted with Adam; those without parameters have only the projections to fit."""
    with torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(0)
        model, wanted = OneWord(name), patterns()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        for _ in range(STEPS):
            optimizer.zero_grad()
            (model() - wanted).square().mean().backward()
            optimizer.step()
            schedule.step()
        scores = model().detach()
    left = (scores - wanted).square().sum((1, 2)) / wanted.square().sum((1, 2))
    return Picture(scores, tuple((1 - left).tolist()))


def drawn(scores: Tensor, titles: list[str]) -> bytes:
    """Three heads side by side as SVG, queries down, keys to the right."""
    with rc_context(LOOK):
        figure = Figure(figsize=(8.4, 2.9), layout="constrained")
        limit = float(patterns().abs().max())
        for axes, head, title in zip(figure.subplots(1, len(titles)), scores, titles, strict=True):
            image = without_grid(axes).imshow(head, cmap=SIGN, vmin=-limit, vmax=limit, interpolation="nearest")
            axes.set(title=title, xlabel="key j", ylabel="query i")
        figure.colorbar(image, ax=figure.axes, shrink=0.85, label="score")
        file = io.BytesIO()
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def drawn_patterns() -> bytes:
    return drawn(patterns(), list(PATTERNS))


def drawn_encoding(name: str) -> bytes:
    shown = picture(name)
    titles = [f"{pattern}, R² {amount(r2)}" for pattern, r2 in zip(PATTERNS, shown.explained, strict=True)]
    return drawn(shown.scores, titles)


def amount(r2: float) -> str:
    """An R² in words: below nought, how far says nothing."""
    return "< 0" if r2 < -0.005 else f"= {abs(r2):.2f}"
