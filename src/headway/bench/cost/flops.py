"""Floating-point operations of a step, and the share of a GPU's peak rate that they make up.

Only products of matrices count, with two operations for each product of two numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from headway.bias import EdgeKeys, EdgeValues, LowRank, RelativeKeys, RelativeProducts, RelativeValues, Structured
from headway.encodings import Encoding, parts_of
from headway.models import EncoderConfig

# Operations a second in bfloat16 with dense matrices, from NVIDIA's data sheets, by the name that CUDA reports.
PEAK_BF16 = {
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
}


def utilization(flops: float, seconds: float, gpu: str | None, *, bf16: bool) -> float | None:
    """Return the share of the peak rate (MFU: model FLOPs utilization); None where the peak rate is not known."""
    peak = PEAK_BF16.get(gpu or "") if bf16 else None
    return None if peak is None else flops / seconds / peak


@dataclass(frozen=True, slots=True)
class Flops:
    """Operations of a forward pass, and of a training step, whose backward pass has two products for each of these."""

    inference: int = 0
    training: int = 0

    def __add__(self, other: Flops) -> Flops:
        return Flops(self.inference + other.inference, self.training + other.training)


def product(*sizes: int) -> Flops:
    """Count a product of matrices: rows x inner size x columns, times how often it is done."""
    once = 2 * math.prod(sizes)
    return Flops(once, 3 * once)


def encoder_flops(config: EncoderConfig, batch: int, length: int) -> Flops:
    """Count the encoder without its head, by the formulas as written.

    What a kernel computes twice to save memory does not count, and neither do Fourier transforms (performer).
    """
    layers, width, tokens = config.num_hidden_layers, config.hidden_size, batch * length
    projections = 2 if config.attention == "synthesizer" else 4  # of q, k, v and the output
    total = product(layers, tokens, width, projections * width + 2 * config.intermediate_size)
    keys, seen = length, length  # of a sequence, and of each query
    if config.attention == "linformer":
        assert config.projected_length is not None
        keys = seen = config.projected_length
        total += product(2, layers, batch, keys, length, width)
    elif config.attention == "local":
        assert config.window is not None
        seen = min(length, 2 * config.window + 1)
    if config.attention == "performer":
        assert config.num_features is not None
        total += product(4, layers, tokens, config.num_features, width)  # of q and k, of keys with values, of all
    else:
        total += product(1 if config.attention == "synthesizer" else 2, layers, tokens, seen, width)  # scores, values
    with torch.device("meta"):
        built = config.build()
    for whole in built:
        for part in parts_of(whole) if whole is not None else ():
            total += _encoding_flops(part, layers, batch, length, keys, seen)
    return total


def head_flops(config: EncoderConfig, positions: int) -> Flops:
    """Count the head that predicts words at a number of positions."""
    return product(positions, config.hidden_size, config.hidden_size + config.vocab_size)


def _encoding_flops(encoding: Encoding, layers: int, batch: int, length: int, keys: int, seen: int) -> Flops:
    total = Flops()
    for layer in range(layers):
        if layer == 0 or encoding.layer_sets > 1:
            total += _bias_flops(encoding, layer, length, keys)
        for structured in (encoding.bias(layer, length, keys), encoding.value_bias(layer, length, keys)):
            for term in () if structured is None else structured.terms:
                total += _term_flops(term, batch, encoding.dims.num_heads, length, seen)
    return total


def _bias_flops(encoding: Encoding, layer: int, length: int, keys: int) -> Flops:
    """Count how a layer's bias is computed from the parameters, with torch's counter on the meta device."""
    with torch.enable_grad(), FlopCounterMode(display=False) as counter:
        bias = encoding.bias(layer, length, keys)
        forward = counter.get_total_flops()
        if bias is not None and bias.requires_grad:
            tensors = [tensor for tensor in bias.tensors.values() if tensor.requires_grad]
            torch.autograd.backward(tensors, [torch.empty_like(tensor) for tensor in tensors])
    return Flops(forward, counter.get_total_flops())


def _term_flops(term: Structured, batch: int, heads: int, length: int, keys: int) -> Flops:
    """Count the products that add a term to the scores or values; what the batch shares is computed once."""
    if isinstance(term, LowRank):
        return product(term.batch, term.heads, length, term.left.shape[-1], keys)
    if isinstance(term, RelativeProducts):
        return product(term.batch, term.heads, *term.vectors.shape[-2:], term.offset_vectors.shape[-2])
    if isinstance(term, RelativeKeys | EdgeKeys | RelativeValues | EdgeValues):
        return product(batch, heads, length, *term.table.shape[-2:])
    return Flops()
