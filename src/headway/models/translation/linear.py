"""Linear layers for the few rows of a decoding step, which a CPU multiplies faster one way round than the other."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# How many rows a CPU multiplies in half the time when the weight, (outputs, inputs), comes first, and how many outputs
# at a time stay in its caches until they are turned: by trial with float32 and 32,768 outputs on two cores.
FEW = range(8, 57)
OUTPUTS = 4096


class Linear(nn.Module):
    """x weight + bias, the weight stored (inputs, outputs); nn.Linear stores (outputs, inputs).

    A CPU's matrix product of 4 to 64 rows, a step of beam search, takes 1.2 to 2 times less time this way round; with
    one row, with thousands (training) and on GPUs the two are alike.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Glorot's uniform distribution. Of three products at once it is smaller by 2^0.5, as fairseq's is."""
        nn.init.xavier_uniform_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:  # (..., inputs) to (..., outputs)
        return F.linear(x, self.weight.mT, self.bias)

    def extra_repr(self) -> str:
        return f"inputs={self.weight.shape[0]}, outputs={self.weight.shape[1]}"


def of_few(layer: nn.Module, x: Tensor) -> Tensor:  # (..., inputs) to (..., outputs)
    """layer(x), where nobody asks for gradients; for few rows as weight x^T, which is then turned."""
    rows = x.flatten(0, -2)
    turns = type(layer) is nn.Linear and layer.bias is None and len(rows) in FEW
    if not turns or x.device.type != "cpu" or x.dtype != torch.float32 or torch.is_grad_enabled():
        y: Tensor = layer(x)
        return y
    assert isinstance(layer, nn.Linear)
    made = x.new_empty(len(rows), layer.out_features)
    for part, out in zip(torch.split(layer.weight, OUTPUTS), torch.split(made, OUTPUTS, dim=1), strict=True):
        out.copy_((part @ rows.mT).mT)
    return made.view(*x.shape[:-1], -1)
