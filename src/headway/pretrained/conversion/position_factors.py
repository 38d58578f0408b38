"""What positions add to the scores, F_P of every layer: measured on texts, or Eq. (2) as it is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from headway.bias import Bias, LowRank
from headway.pretrained.analysis import Scores, position_scores, read
from headway.pretrained.analysis.hidden_states import mean_states
from headway.pretrained.analysis.scores import scores_of
from headway.pretrained.conversion.attention_interface import ARGUMENT, PassState
from headway.pretrained.conversion.converted import Converted, encoding_of
from headway.pretrained.conversion.samples import check_known
from headway.running import evaluation_mode

ROWS = 16  # rows of text that are averaged


@dataclass(frozen=True, eq=False)
class PositionFactors:
    """F_P of one layer, left right^T."""

    left: Tensor  # (H, L, R), float64
    right: Tensor  # (H, L, R)


def position_factors(model: Any, without: Any, rows: Tensor, *, first_is_special: bool) -> list[PositionFactors]:
    """Measure what positions add, on average over texts, to every layer's scores.

    Paper:    Wennberg and Henter (2021), Eq. (2): F_P "quantifies the average effect of E_P on the softmax"
    Formula:  F_P[h, i, j] = scale * (q[h, i] . k[h, j] - q'[h, i] . k'[h, j]), less its mean over j, which the softmax
              does not see, + bias[h, i, j]; q and k are the model's queries and keys, q' and k' those of the model
              without positions that has the F_P of all layers before, all of them averaged over the texts; bias is what
              the model adds to its scores, if it is one of headway's that does
    Departs:  Eq. (2) takes one text of average words. Through LayerNorm an average word, which is much shorter than any
              real one, lets positions weigh several times too much, and in deeper layers words alone make scores differ
              along a text as well ([CLS] is always first). Averaging queries and keys over texts, and taking off what
              the model does without positions, leaves what positions do
    Checked:  tests/unit/pretrained/conversion/test_fitting.py, tests/unit/pretrained/conversion/test_own_encoders.py

    Args:
        model: the original.
        without: the same, with its positions taken out.
        rows: (N, L) ids of tokens, N texts without padding.
        first_is_special: whether the rows begin with [CLS], as every text that the model has seen. If they do not, what
            position 0 does cannot be told, and it is taken to do what the others do on average.
    """
    measuring = _Measuring(target=average_scores(model, rows), average_first=not first_is_special)
    ids = rows.to(without.device)
    with evaluation_mode(without), torch.no_grad():
        if isinstance(without, Converted):
            without.base_model(input_ids=ids, **{ARGUMENT: _MeasuringState(encoding_of(without), measuring=measuring)})
        else:
            with _adding_measured(without.base_model, measuring):
                without.base_model(input_ids=ids)
    return measuring.found


def equation_factors(model: Any, length: int) -> list[PositionFactors]:
    """Return F_P of every layer by Eq. (2) of Wennberg and Henter (2021) as it is written, see `position_scores`."""
    reading = read(model)
    found = []
    for layer in range(len(reading.layers)):
        scores = position_scores(reading, layer, length, formula="equation")
        queries, keys = torch.from_numpy(scores.queries), torch.from_numpy(scores.keys)
        found.append(_with_bias(queries * scores.scale, keys, scores))
    return found


def average_scores(model: Any, rows: Tensor) -> list[Scores]:  # (N, L), one a layer
    """Compute each layer's scores, with queries and keys averaged over the texts."""
    check_known(rows, model)
    reading = read(model)
    return [scores_of(reading, layer, x) for layer, x in enumerate(mean_states(reading, rows))]


@dataclass
class _Measuring:
    """Measures each layer's F_P in turn, while a model without positions runs that adds what was measured so far."""

    target: Sequence[Scores]
    average_first: bool  # give position 0 the mean of all others
    found: list[PositionFactors] = field(default_factory=list)

    def bias(self, q: Tensor, k: Tensor, scale: float) -> Bias:  # (B, H, L, D) both
        """Measure what the next layer lacks, and return it as a bias."""
        target = self.target[len(self.found)]
        left = torch.cat([torch.from_numpy(target.queries) * target.scale, -q.double().mean(0).cpu() * scale], -1)
        right = torch.cat([torch.from_numpy(target.keys), k.double().mean(0).cpu()], -1)
        if self.average_first:
            left[:, 0], right[:, 0] = left[:, 1:].mean(1), right[:, 1:].mean(1)
        right = right - right.mean(1, keepdim=True)
        factors = _with_bias(left, right, target)
        self.found.append(factors)
        return LowRank(factors.left[None].to(q), factors.right[None].to(q))


def _with_bias(left: Tensor, right: Tensor, scores: Scores) -> PositionFactors:
    """Add the bias of scores to left right^T."""
    if scores.bias is not None:
        more = _factors(scores.bias, len(left))
        left, right = torch.cat([left, more[0]], -1), torch.cat([right, more[1]], -1)
    return PositionFactors(left, right)


def _factors(bias: Bias, heads: int) -> tuple[Tensor, Tensor]:  # (H, L, R) both
    """Return a bias as a product: its own factors, or its matrix and the identity."""
    if isinstance(bias, LowRank):
        return bias.left[0].expand(heads, -1, -1), bias.right[0].expand(heads, -1, -1)
    matrix = bias.dense()[0].expand(heads, -1, -1)
    return matrix, torch.eye(matrix.shape[-1], dtype=matrix.dtype).expand_as(matrix)


@dataclass
class _MeasuringState(PassState):
    """A forward pass of a converted model in which the bias is what is measured."""

    measuring: _Measuring | None = None

    def bias(self, layer: int, q: Tensor, k: Tensor, scale: float) -> Bias:
        assert self.measuring is not None and layer == len(self.measuring.found), "layers follow one another"
        return self.measuring.bias(q, k, scale)


@contextmanager
def _adding_measured(base: Any, measuring: _Measuring) -> Iterator[None]:
    """Let one of headway's encoders add what is measured, beside what segments add."""

    def add_measured(attention: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        x, frame, *rest = args
        heads, width = attention.heads
        q, k, _ = attention.qkv(x).unflatten(-1, (3, heads, width)).permute(2, 0, 3, 1, 4)
        measured = measuring.bias(q, k, width**-0.5 if frame.scale is None else frame.scale)
        others = frame.bias(attention.index)
        mine = copy(frame)
        mine.bias = lambda layer: measured if others is None else others + measured
        return (x, mine, *rest)

    hooks = [layer.attention.register_forward_pre_hook(add_measured) for layer in base.layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
