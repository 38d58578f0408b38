"""Torch modules as arrays: norms, linear layers, and projections split into heads."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from headway.pretrained.analysis.anatomy import Affine, Layer, Norm
from headway.pretrained.analysis.arrays import Array, array


def norm_of(name: str, module: Any) -> Norm:
    """A LayerNorm, or T5's norm."""
    bias = getattr(module, "bias", None)
    eps = module.eps if hasattr(module, "eps") else module.variance_epsilon
    values = None if bias is None else array(f"{name}.bias", bias)
    return Norm(array(f"{name}.weight", module.weight), values, eps, centers=isinstance(module, nn.LayerNorm))


def linear_of(name: str, module: Any) -> Affine:
    """A linear layer, of torch or of GPT-2, which keeps its weight the other way round."""
    weight = array(f"{name}.weight", module.weight)
    bias = None if module.bias is None else array(f"{name}.bias", module.bias)
    return Affine(weight.T if isinstance(module, nn.Linear) else weight, bias)


def layer_of(
    name: str, query: nn.Module, key: nn.Module | None, *, heads: int, head_dim: int, scale: float, norm: Norm | None
) -> Layer:
    """A layer's projections, head by head; without `key`, `query` gives queries, keys and values side by side."""
    width = heads * head_dim
    first = linear_of(f"{name}: query", query)
    second = first if key is None else linear_of(f"{name}: key", key)
    start = width if key is None else 0

    def split(part: Affine, columns: slice) -> tuple[Array, Array]:
        weight = part.weight[:, columns].reshape(-1, heads, head_dim).transpose(1, 0, 2)
        bias = np.zeros(width) if part.bias is None else part.bias[columns]
        return weight, bias.reshape(heads, head_dim)

    return Layer(
        *split(first, slice(0, width)),
        *split(second, slice(start, start + width)),
        scale=scale,
        norm=norm,
        module=query,
    )
