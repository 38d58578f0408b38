"""Errors of outputs and gradients against the formula in float64, at the shape that is timed.

The formula is headway's `eager` backend, which shares no code with what it judges. It runs in float64 over the whole
batch, a few sequences and heads at a time, and once more in the dtype of q, k and v. An implementation may err twice as
much as that second run, in gradients three times, plus one rounding step of that dtype.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

import headway as hw
from benchmarks.attention_inputs import BIASES, Inputs
from benchmarks.attention_rows import DROPOUT, SEED, Attend

SCORES_AT_ONCE = 2**28  # 2 GiB in float64


@dataclass(frozen=True)
class Judge:
    """The exact output and gradients of a call, and how far an implementation may be from each (2-norms)."""

    truth: dict[str, Tensor]
    allowed: dict[str, float]

    def ratios(self, got: dict[str, Tensor]) -> dict[str, float | None]:
        """Return the error over the allowed error for each tensor; None where it is not finite."""
        ratios = {}
        for name, tensor in got.items():
            ratio = distance(tensor, self.truth[name]) / self.allowed[name]
            ratios[name] = ratio if math.isfinite(ratio) else None
        return ratios


def is_right(ratios: dict[str, float | None]) -> bool:
    return all(ratio is not None and ratio <= 1 for ratio in ratios.values())


def judge(x: Inputs, bias: str, causal: bool, kept: Tensor | None = None) -> Judge:
    """Run the formula twice. `kept`, (B, H, n, n), says which weights dropout kept."""
    truth = by_formula(x, bias, causal, torch.float64, kept)
    plain = by_formula(x, bias, causal, x.q.dtype, kept)
    step, allowed = torch.finfo(x.q.dtype).eps / 2, {}
    for name, exact in truth.items():
        times = 2 if name == "output" else 3
        allowed[name] = times * distance(plain[name], exact) + step * exact.norm().item()
    return Judge(truth, allowed)


def distance(a: Tensor, b: Tensor) -> float:
    """Return the 2-norm of a - b in float64, computed piece by piece to save memory."""
    pairs = zip(a.reshape(-1).split(SCORES_AT_ONCE), b.reshape(-1).split(SCORES_AT_ONCE), strict=True)
    return torch.stack([(mine.double() - exact).square().sum() for mine, exact in pairs]).sum().sqrt().item()


def by_formula(x: Inputs, bias: str, causal: bool, dtype: torch.dtype, kept: Tensor | None = None) -> dict[str, Tensor]:
    """Compute output and all gradients by the formula as written, in `dtype`, and add them up in float64."""
    case = BIASES[bias]
    found = {name: torch.zeros(getattr(x, name).shape, dtype=torch.float64, device=x.q.device) for name in case.wanted}
    found["output"] = torch.zeros_like(found["q"])
    for sequences, heads in pieces(x):
        part = x.part(sequences, heads, dtype, case.reads)
        output = formula_output(part, bias, causal, None if kept is None else kept[sequences, heads])
        grads = torch.autograd.grad(output, [getattr(part, name) for name in case.wanted], part.grad.to(output.dtype))
        found["output"][sequences, heads] = output.detach().double()
        for name, grad in zip(case.wanted, grads, strict=True):
            found[name][x.place(name, sequences, heads)] += grad.double()
    return found


def formula_output(x: Inputs, bias: str, causal: bool, kept: Tensor | None) -> Tensor:
    """Compute the formula's output; with `kept`, after a dropout that keeps these weights."""
    case = BIASES[bias]
    of_scores, of_values = case.pair(x)
    if kept is None:
        masks = case.masked(x)
        output: Tensor = hw.attention(x.q, x.k, x.v, of_scores, of_values, causal=causal, backend="eager", **masks)
        return output
    assert of_values is None and not causal and not case.masks  # no row with dropout has any of them
    scores = ((x.q * x.form.width**-0.5) @ x.k.mT).to(torch.promote_types(x.q.dtype, torch.float32))
    if of_scores is not None:
        scores = scores + of_scores.dense()
    return (scores.softmax(-1) * kept / (1 - DROPOUT)).to(x.v.dtype) @ x.v


def pieces(x: Inputs) -> Iterator[tuple[slice, slice]]:
    """Yield sequences and heads, so few at a time that their scores fit into memory several times."""
    of_head, every, groups = x.length**2, x.form.heads, x.form.groups
    heads = min(every, max(1, SCORES_AT_ONCE // of_head // groups) * groups)  # all that share a head of the keys
    sequences = max(1, SCORES_AT_ONCE // (every * of_head)) if heads == every else 1
    for first in range(0, x.batch, sequences):
        for head in range(0, every, heads):
            yield slice(first, first + sequences), slice(head, head + heads)


def kept_by_dropout(attend: Attend, x: Inputs) -> Tensor:  # (B, H, n, n), boolean
    """Find which weights an implementation keeps after `torch.manual_seed(SEED)`, from its output.

    With columns of the identity in place of the values the output shows the weights, and one that is not zero was kept.
    """
    probe, device, width = copy.copy(x), x.q.device, x.form.width
    kept = torch.empty(x.batch, x.form.heads, x.length, x.length, dtype=torch.bool, device=device)
    identity = torch.eye(x.length, dtype=x.v.dtype, device=device)
    for first in range(0, x.length, width):
        columns = identity[:, first : first + width]
        shown = columns.shape[1]
        values = torch.nn.functional.pad(columns, (0, width - shown)).expand(x.v.shape).contiguous()
        probe.v = values.requires_grad_()
        torch.manual_seed(SEED)
        kept[..., first : first + width] = attend(probe).detach()[..., :shown] != 0
    return kept
