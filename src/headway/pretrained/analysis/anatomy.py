"""The parts of a transformer that decide how positions act on its scores, as NumPy arrays, and how modules become them.

Arrays keep the model's own numbers, without a copy where possible; everything computed from them is float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch import nn

from headway.bias import Bias
from headway.encodings.base import Encoding
from headway.pretrained.analysis.matrices import Array, to_array


@dataclass(frozen=True, eq=False)
class Norm:
    """LayerNorm, or T5's norm, which neither centers nor shifts."""

    weight: Array  # (E,)
    bias: Array | None  # (E,)
    eps: float
    centers: bool = True

    def __call__(self, x: Array) -> Array:  # (L, E)
        y = self.part(x, self.spread(x))
        return y if self.bias is None else y + self.bias

    def spread(self, x: Array) -> Array:  # (L, E) to (L, 1)
        """Return what each row is divided by."""
        centered = x - x.mean(axis=-1, keepdims=True) if self.centers else x
        spread: Array = np.sqrt((centered**2).mean(axis=-1, keepdims=True) + self.eps)
        return spread

    def part(self, x: Array, spread: Array) -> Array:
        """Return what a summand x of the input contributes.

        With the spread of the whole input the norm is linear: the parts of a sum add up to the output less `bias`.
        """
        centered = x - x.mean(axis=-1, keepdims=True) if self.centers else x
        scaled: Array = centered / spread * self.weight
        return scaled


@dataclass(frozen=True, eq=False)
class Affine:
    """x weight + bias."""

    weight: Array  # (E, F)
    bias: Array | None  # (F,)

    def __call__(self, x: Array) -> Array:  # (L, E) to (L, F)
        y = self.part(x)
        return y if self.bias is None else y + self.bias

    def part(self, x: Array) -> Array:
        """Return what a summand x of the input contributes."""
        y: Array = x @ self.weight.astype(np.float64)
        return y


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer's queries and keys."""

    query_weight: Array  # (H, E, D): W_Q of each head
    query_bias: Array  # (H, D)
    key_weight: Array  # (H, E, D)
    key_bias: Array  # (H, D)
    scale: float
    norm: Norm | None  # between the residual stream and the projections, in models that normalise first
    module: nn.Module  # the model's own module whose input is what W_Q meets

    @property
    def heads(self) -> int:
        return len(self.query_weight)

    @property
    def head_dim(self) -> int:
        return int(self.query_weight.shape[-1])

    def queries(self, x: Array, *, bias: bool = True) -> Array:  # (L, E), normalised, to (H, L, D)
        q: Array = np.matmul(x, self.query_weight.astype(np.float64))
        return q + self.query_bias[:, None] if bias else q

    def keys(self, x: Array, *, bias: bool = True) -> Array:  # (L, E), normalised, to (H, L, D)
        k: Array = np.matmul(x, self.key_weight.astype(np.float64))
        return k + self.key_bias[:, None] if bias else k


@dataclass(frozen=True, eq=False)
class Reading:
    """What `headway.pretrained.analysis.read` finds in a model."""

    model_type: str
    model: nn.Module  # the stack that runs: no task head, one side of an encoder-decoder
    words: Array  # (V, W); W is the width of embeddings, E of the model
    positions: Array | None  # (L, W): E_P; None where no position is added to the input
    segments: Array | None  # (S, W)
    norm: Norm | None  # after the sum of the three
    project: Affine | None  # from W to E
    layers: tuple[Layer, ...]
    limit: int | None  # the longest sequence; None where there is no limit
    usual_length: int  # what is analysed unless asked otherwise
    causal: bool
    runs_alone: bool  # whether the stack runs on a text alone: not a decoder that attends to an encoder
    bias_of: Callable[[int, int], Bias | None]  # of a layer and a length: what is added to the scores
    rotations: Sequence[Encoding] = ()  # encodings that turn q and k
    segment_scores: Callable[[int], Array] | None = None  # of a layer: (H|1, S, S), added to the scores per head
    constant: Array | None = None  # (W,), added to every token's input: what is left of a table that was replaced
    meets_keys: bool = False  # whether the table of the bias, Shaw's relative keys, is multiplied with the keys as well

    @cached_property
    def word_mean(self) -> Array:  # (W,)
        """Return the average word embedding across the entire vocabulary (Wennberg and Henter 2021, Sec. 3.2)."""
        mean: Array = self.words.mean(axis=0, dtype=np.float64)
        return mean

    @property
    def alike(self) -> tuple[int, ...]:
        """Return, for each layer, the first with the same queries and keys; only ALBERT's layers share them."""
        keys = [layer.module if self.bias_of(n, 3) is None else n for n, layer in enumerate(self.layers)]
        return tuple(keys.index(key) for key in keys)

    def length(self, asked: int | None) -> int:
        """Return the number of positions to analyse; raise for more than the model has."""
        return checked_length(asked, usual=self.usual_length, limit=self.limit)

    def summed(self, words: Array, segments: Array | int = 0) -> Array:  # (L, W)
        """Add up words, positions 0, 1, ... and segments, as the model does."""
        total = words.astype(np.float64)
        if self.constant is not None:
            total = total + self.constant
        if self.positions is not None:
            total = total + self.positions[: len(words)]
        return total if self.segments is None else total + self.segments[segments]

    def embedded(self, summed: Array) -> Array:  # (L, W) to (L, E)
        """Return what enters the first layer."""
        x = summed if self.norm is None else self.norm(summed)
        return x if self.project is None else self.project(x)

    def mean_words(self, length: int, segments: Array | int = 0) -> Array:  # (L, E)
        """Return what enters the first layer when every word is the average word: all that differs is the position."""
        return self.embedded(self.summed(np.broadcast_to(self.word_mean, (length, self.words.shape[1])), segments))


def checked_length(asked: int | None, *, usual: int, limit: int | None) -> int:
    """Return the number of positions to analyse; raise for more than a model has."""
    length = usual if asked is None else asked
    if length < 3 or (limit is not None and length > limit):
        most = f"3 to {limit} (the model's positions)" if limit is not None else "at least 3"
        raise ValueError(f"positions: expected {most}, got {length}.")
    return length


def read_norm(name: str, module: Any) -> Norm:
    """Read a LayerNorm, or T5's norm."""
    bias = getattr(module, "bias", None)
    eps = module.eps if hasattr(module, "eps") else module.variance_epsilon
    values = None if bias is None else to_array(f"{name}.bias", bias)
    return Norm(to_array(f"{name}.weight", module.weight), values, eps, centers=isinstance(module, nn.LayerNorm))


def read_linear(name: str, module: Any) -> Affine:
    """Read a linear layer, of torch or of GPT-2, which keeps its weight transposed."""
    weight = to_array(f"{name}.weight", module.weight)
    bias = None if module.bias is None else to_array(f"{name}.bias", module.bias)
    return Affine(weight.T if isinstance(module, nn.Linear) else weight, bias)


def read_layer(
    name: str, query: nn.Module, key: nn.Module | None, *, heads: int, head_dim: int, scale: float, norm: Norm | None
) -> Layer:
    """Read a layer's projections, head by head; without `key`, `query` gives queries, keys and values side by side."""
    width = heads * head_dim
    first = read_linear(f"{name}: query", query)
    second = first if key is None else read_linear(f"{name}: key", key)
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
