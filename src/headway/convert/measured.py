"""What positions add to the scores, measured: F_P of every layer as the difference that taking them out makes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from headway.analysis.families import FAMILIES
from headway.bias import Bias, LowRank
from headway.convert.converted import Converted, encoding_of
from headway.convert.interface import ARGUMENT, Frame

ROWS = 16  # texts that are averaged


@dataclass(frozen=True, eq=False)
class PositionFactors:
    """F_P of one layer, left right^T; right's mean over the keys is 0."""

    left: Tensor  # (H, L, R), float64
    right: Tensor  # (H, L, R)


def position_factors(model: Any, without: Converted, rows: Tensor, *, first_is_special: bool) -> list[PositionFactors]:
    """What positions add, on average over texts, to every layer's scores.

    Paper:    Wennberg and Henter (2021), Eq. (2): F_P "quantifies the average effect of E_P on the softmax"
    Formula:  F_P[h, i, j] = scale * (q[h, i] . k[h, j] - q'[h, i] . k'[h, j]), less its mean over j, which the softmax
              does not see; q and k are the model's queries and keys, q' and k' those of the model without positions
              that has the F_P of all layers before, all of them averaged over the texts
    Departs:  Eq. (2) takes one text of average words. Through LayerNorm an average word, which is much shorter than any
              real one, lets positions weigh several times too much, and in deeper layers words alone make scores differ
              along a text as well ([CLS] is always first). Averaging queries and keys over texts, and taking off what
              the model does without positions, leaves what positions do
    Checked:  tests/unit/convert/test_measured.py

    Args:
        model: the original.
        without: the same, with its positions replaced.
        rows: (N, L) ids of tokens, N texts without padding.
        first_is_special: whether the rows begin with [CLS], as every text that the model has seen. If they do not, what
            position 0 does cannot be told, and it is taken to do what the others do on average.
    """
    target = average_projections(model, rows)
    measuring = Measuring(encoding=encoding_of(without), target=target, levels_first=not first_is_special)
    device = next(without.parameters()).device
    with evaluating(without), torch.no_grad():
        without.base_model(input_ids=rows.to(device), **{ARGUMENT: measuring})
    return measuring.found


@dataclass
class Measuring(Frame):
    """A forward pass that measures each layer's F_P, and goes on with it."""

    target: Sequence[tuple[Tensor, Tensor]] = ()  # of each layer: q and k averaged, (H, L, D), float64
    levels_first: bool = False
    found: list[PositionFactors] = field(default_factory=list)

    def bias(self, layer: int, q: Tensor, k: Tensor, scale: float) -> Bias:
        assert layer == len(self.found), "layers follow one another"
        want_q, want_k = self.target[layer]
        left = torch.cat([want_q, -q.double().mean(0).cpu()], -1) * scale
        right = torch.cat([want_k, k.double().mean(0).cpu()], -1)
        if self.levels_first:
            left[:, 0], right[:, 0] = left[:, 1:].mean(1), right[:, 1:].mean(1)
        right = right - right.mean(1, keepdim=True)
        self.found.append(PositionFactors(left, right))
        return LowRank(left[None].to(q), right[None].to(q))


def average_projections(model: Any, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Queries and keys of each layer averaged over the texts."""
    base, family = model.base_model, FAMILIES[model.config.model_type]
    heads = base.config.num_attention_heads
    caught: dict[str, list[Tensor]] = {"query": [], "key": []}

    def catcher(name: str) -> Any:
        def catch(module: nn.Module, args: Any, output: Tensor) -> None:
            caught[name].append(_split(output.detach().double().mean(0).cpu(), heads))

        return catch

    assert family.key is not None
    layers = dict.fromkeys(family.layers(base))  # ALBERT's are one module
    hooks = [layer.get_submodule(family.query).register_forward_hook(catcher("query")) for layer in layers]
    hooks += [layer.get_submodule(family.key).register_forward_hook(catcher("key")) for layer in layers]
    try:
        with evaluating(base), torch.no_grad():
            base(input_ids=rows.to(base.device))
    finally:
        for hook in hooks:
            hook.remove()
    return list(zip(caught["query"], caught["key"], strict=True))


def _split(x: Tensor, heads: int) -> Tensor:  # (L, E) to (H, L, D)
    return x.view(len(x), heads, -1).transpose(0, 1)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout, and afterwards as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
