"""How much arithmetic a step is: two operations for each product in a product of matrices; nothing else counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from headway.bias import EdgeKeys, EdgeValues, LowRank, RelativeKeys, RelativeValues, Structured
from headway.encodings import Encoding
from headway.models import EncoderConfig
from headway.models.config import parts_of


@dataclass(frozen=True, slots=True)
class Flops:
    """Of a forward pass, and of a training step: each product has two more in its backward pass."""

    inference: int = 0
    training: int = 0

    def __add__(self, other: Flops) -> Flops:
        return Flops(self.inference + other.inference, self.training + other.training)


def product(*sizes: int) -> Flops:
    """Of a product of matrices: rows, inner size and columns, times how often."""
    once = 2 * math.prod(sizes)
    return Flops(once, 3 * once)


def encoder_flops(config: EncoderConfig, batch: int, length: int) -> Flops:
    """Of the encoder without its head, by the formulas as written.

    A kernel that works something out twice to save memory does more; that is its affair, not the model's.
    """
    layers, width, tokens = config.num_hidden_layers, config.hidden_size, batch * length
    total = product(layers, tokens, width, 4 * width + 2 * config.intermediate_size)
    keys = length
    if config.attention == "linformer":
        assert config.projected_length is not None
        keys = config.projected_length
        total += product(2, layers, batch, keys, length, width)
    total += product(2, layers, tokens, keys, width)  # scores, and sums of values
    with torch.device("meta"):
        built = config.build()
    for whole in built:
        for part in parts_of(whole) if whole is not None else ():
            total += _encoding_flops(part, layers, batch, length, keys)
    return total


def head_flops(config: EncoderConfig, places: int) -> Flops:
    """Of naming the words at so many places."""
    return product(places, config.hidden_size, config.hidden_size + config.vocab_size)


def _encoding_flops(encoding: Encoding, layers: int, batch: int, length: int, keys: int) -> Flops:
    total = Flops()
    for layer in range(layers):
        if layer == 0 or encoding.layer_sets > 1:
            total += _making(encoding, layer, length, keys)
        for structured in (encoding.bias(layer, length, keys), encoding.value_bias(layer, length, keys)):
            for term in () if structured is None else structured.terms:
                total += _meeting(term, batch, encoding.dims.num_heads, length, keys)
    return total


def _making(encoding: Encoding, layer: int, length: int, keys: int) -> Flops:
    """Of making a layer's bias from the parameters, as torch counts it; the parameters have shapes and no memory."""
    with torch.enable_grad(), FlopCounterMode(display=False) as counter:
        bias = encoding.bias(layer, length, keys)
        forward = counter.get_total_flops()
        if bias is not None and bias.requires_grad:
            tensors = [tensor for tensor in bias.tensors.values() if tensor.requires_grad]
            torch.autograd.backward(tensors, [torch.empty_like(tensor) for tensor in tensors])
    return Flops(forward, counter.get_total_flops())


def _meeting(term: Structured, batch: int, heads: int, length: int, keys: int) -> Flops:
    """Of the products by which a term joins the scores or the values; what the batch shares is worked out once."""
    if isinstance(term, LowRank):
        return product(term.batch, term.heads, length, term.left.shape[-1], keys)
    if isinstance(term, RelativeKeys | EdgeKeys | RelativeValues | EdgeValues):
        return product(batch, heads, length, *term.table.shape[-2:])
    return Flops()
