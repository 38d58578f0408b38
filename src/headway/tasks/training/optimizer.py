"""AdamW, and which parameters it lets decay."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import AdamW

from headway.encodings import Encoding


def adamw(
    model: nn.Module, *, weight_decay: float, betas: tuple[float, float] = (0.9, 0.999), epsilon: float = 1e-6
) -> AdamW:
    """AdamW with BERT's constants; one fused kernel a step on a GPU. The learning rate is set at each step."""
    fused = all(parameter.device.type == "cuda" for parameter in model.parameters())
    return AdamW(decay_groups(model, weight_decay), lr=0.0, betas=betas, eps=epsilon, fused=fused)


def decay_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Matrices decay; vectors (biases, LayerNorm) and the parameters of encodings do not.

    Paper:    Devlin et al. (2019), App. A.2: weight decay 0.01; their code spares biases and LayerNorm
    Departs:  their code lets the position table decay. No encoding's parameters decay here: decay would pull some
              encodings towards no position at all, and others, which have no parameters, not. Chen et al. (2021b) do
              not say.
    """
    of_encodings = {
        id(parameter) for module in model.modules() if isinstance(module, Encoding) for parameter in module.parameters()
    }
    decaying: list[torch.Tensor] = []
    spared: list[torch.Tensor] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            spare = parameter.dim() < 2 or id(parameter) in of_encodings
            (spared if spare else decaying).append(parameter)
    groups = [{"params": decaying, "weight_decay": weight_decay}, {"params": spared, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
