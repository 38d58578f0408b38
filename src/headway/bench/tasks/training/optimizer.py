"""AdamW, its groups of parameters, and schedules of the learning rate."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer

from headway.encodings import Encoding


def adamw(
    model: nn.Module,
    *,
    weight_decay: float,
    position_rate: float = 1.0,
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-6,
) -> AdamW:
    """Make AdamW with BERT's constants, fused where possible. `set_rate` sets the learning rate of each step."""
    return AdamW(
        parameter_groups(model, weight_decay, position_rate), lr=0.0, betas=betas, eps=epsilon, fused=fusible(model)
    )


def fusible(model: nn.Module) -> bool:
    """Return whether the fused optimizer can be used: all tensors on one kind of device, none sharded on a CPU."""
    every = list(model.parameters())
    kinds = {each.device.type for each in every}
    return kinds == {"cuda"} or (kinds == {"cpu"} and not any(isinstance(each, DTensor) for each in every))


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the learning rate of the next step; the parameters of encodings get `position_rate` times as much."""
    for group in optimizer.param_groups:
        own = rate * group.get("times", 1.0)
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(own)
        else:
            group["lr"] = own


def rates_as_tensors(optimizer: Optimizer, device: torch.device) -> None:
    """Make learning rates tensors, which replayed steps read; a number would be recorded with the step."""
    for group in optimizer.param_groups:
        group["lr"] = torch.zeros((), device=device)


def encoding_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the parameters of all encodings of positions and segments in a model."""
    for module in model.modules():
        if isinstance(module, Encoding):
            yield from module.parameters()


def parameter_groups(model: nn.Module, weight_decay: float, position_rate: float) -> list[dict[str, object]]:
    """Group parameters: matrices decay; vectors (biases, LayerNorm) and the parameters of encodings do not.

    Paper:    Devlin et al. (2019), App. A.2: weight decay 0.01; their code spares biases and LayerNorm
    Departs:  their code lets the position table decay. No encoding's parameters decay here: decay would pull some
              encodings towards no position at all, and others, which have no parameters, not. Chen et al. (2021b) do
              not say.
    """
    of_encodings = {id(parameter) for parameter in encoding_parameters(model)}
    decaying: list[torch.Tensor] = []
    spared: list[torch.Tensor] = []
    positions: list[torch.Tensor] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            spare = spared if parameter.dim() < 2 else decaying
            (positions if id(parameter) in of_encodings else spare).append(parameter)
    every: list[dict[str, object]] = [
        {"params": decaying, "weight_decay": weight_decay},
        {"params": spared, "weight_decay": 0.0},
        {"params": positions, "weight_decay": 0.0, "times": position_rate},
    ]
    return [group for group in every if group["params"]]


def linear(step: int, *, steps: int, warmup: float, peak: float) -> float:
    """Return a rate that rises from 0 to `peak` in a share `warmup` of the steps and falls to 0 after the last one.

    Paper:    Devlin et al. (2019), App. A.2, linear decay; Chen et al. (2021b), Table 7, warm-up as a proportion
    Formula:  peak * s / w for s < w, else peak * (n - s) / (n - w), with w = round(warmup * n)
    Symbols:  s -> step, from 0; n -> steps
    Checked:  tests/unit/bench/tasks/test_schedule.py, against transformers
    """
    rising = round(warmup * steps)
    if step < rising:
        return peak * step / rising
    return peak * max(0, steps - step) / max(1, steps - rising)


def inverse_square_root(step: int, *, warmup: int, peak: float) -> float:
    """Return a rate that rises to `peak` in `warmup` steps and then falls with the square root of the steps taken.

    Paper:    Vaswani et al. (2017), Eq. (3), where peak = (d_model * warmup)^-0.5
    Formula:  peak * min((warmup / s)^0.5, s / warmup)
    Symbols:  s -> step + 1, step_num
    Checked:  tests/unit/bench/tasks/test_schedule.py
    """
    taken = step + 1
    return peak * float(min((warmup / taken) ** 0.5, taken / warmup))
