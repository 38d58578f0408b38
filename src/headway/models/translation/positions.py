"""What an encoding adds at every step of decoding, worked out for many steps at once.

A step then only picks its row by number, which may be a tensor: nothing depends on a whole number of Python's, so that
one captured graph serves all steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headway.bias import Bias, RelativeKeys, RelativeValues
from headway.encodings import Encoding, parts_of


@dataclass(frozen=True, eq=False)
class LayerRows:
    """One layer's biases for queries at 0 to steps - 1 and Lk keys."""

    scores: Tensor | None  # (H|1, steps, Lk), all that does not meet the query
    keys: Tensor | None  # (H|1, steps + Lk - 1, D), relative keys from offset -(steps - 1) on
    values: Tensor | None  # (H|1, steps + Lk - 1, D), relative values likewise


def rows_of(encoding: Encoding | None, steps: int, k_len: int, dtype: torch.dtype) -> list[LayerRows]:
    """The rows of all layers; layers that share their bias share one object."""
    if encoding is None:
        return []
    shared = all(part.layer_sets == 1 or not set(part.places) & {"scores", "values"} for part in parts_of(encoding))
    layers = encoding.dims.num_layers
    if shared:
        return [_layer_rows(encoding, 0, steps, k_len, dtype)] * layers
    return [_layer_rows(encoding, layer, steps, k_len, dtype) for layer in range(layers)]


def _layer_rows(encoding: Encoding, layer: int, steps: int, k_len: int, dtype: torch.dtype) -> LayerRows:
    scores: Tensor | None = None
    keys: Tensor | None = None
    values: Tensor | None = None
    bias = encoding.bias(layer, steps, k_len)
    for term in () if bias is None else bias.terms:
        if isinstance(term, RelativeKeys):
            keys = _plus(keys, _by_offset(term, steps, k_len))
        elif isinstance(term, Bias) and not term.needs_query:
            scores = _plus(scores, term.bind(steps, k_len).dense()[0])
        else:
            raise NotImplementedError(f"encoding: {encoding.name} gives {term!r}, which decoding has no step for.")
    value_bias = encoding.value_bias(layer, steps, k_len)
    for value_term in () if value_bias is None else value_bias.terms:
        if not isinstance(value_term, RelativeValues):
            raise NotImplementedError(
                f"encoding: {encoding.name} gives {value_term!r}, which decoding has no step for."
            )
        values = _plus(values, _by_offset(value_term, steps, k_len))
    return LayerRows(*(None if part is None else part.to(dtype) for part in (scores, keys, values)))


def _by_offset(term: RelativeKeys | RelativeValues, steps: int, k_len: int) -> Tensor:
    offset = torch.arange(-(steps - 1), k_len, device=term.table.device)
    return term.table[:, offset.clamp(-term.clip, term.clip) + term.clip]


def _plus(a: Tensor | None, b: Tensor) -> Tensor:
    return b if a is None else a + b
