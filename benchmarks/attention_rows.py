"""The rows of the attention benchmark: the same inputs, seen by torch's functions and by headway's.

A row may have several settings, where torch offers more than one way to do the same work. The benchmark checks each and
takes the fastest that is right, for the forward pass and for forward and backward pass separately.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention

import headway as hw
from benchmarks.attention_inputs import BIASES, Form, Inputs

DROPOUT = 0.1
SEED = 1  # set before each call with dropout whose result is looked at
MODES = ("forward", "forward+backward")
Attend = Callable[[Inputs], Tensor]


@dataclass(frozen=True)
class Row:
    """A line of the table: what is computed, and one or several settings that compute it."""

    settings: dict[str, Attend]
    bias: str = "none"
    causal: bool = False
    dropout: float = 0.0
    compiled: bool = False  # FlexAttention: its settings come from `benchmarks.flex_tiles`
    form: Form = field(default_factory=Form)

    @property
    def wanted(self) -> tuple[str, ...]:
        return BIASES[self.bias].wanted

    @property
    def task(self) -> tuple[Form, str, bool]:
        """Name the task; rows of one task have the same result."""
        return self.form, self.bias, self.causal


def train(attend: Attend, x: Inputs, wanted: tuple[str, ...]) -> dict[str, Tensor]:
    """Return the output and the gradients of the tensors with these names."""
    output = attend(x)
    grads = torch.autograd.grad(output, [getattr(x, name) for name in wanted], x.grad.to(output.dtype))
    return {"output": output.detach(), **dict(zip(wanted, grads, strict=True))}


def by_torch(backend: SDPBackend | None, causal: bool = False, dropout: float = 0.0) -> Row:
    def attend(x: Inputs) -> Tensor:
        with chosen_backend(backend):
            return F.scaled_dot_product_attention(
                x.q, x.k, x.v, is_causal=causal, dropout_p=dropout, enable_gqa=x.form.groups > 1
            )

    return Row({"": attend}, causal=causal, dropout=dropout)


def chosen_backend(backend: SDPBackend | None) -> Any:
    """Return a context in which torch runs this backend or raises; with None, as torch chooses."""
    return contextlib.nullcontext() if backend is None else sdpa_kernel(backend)


def by_torch_with_matrix(bias: str, backends: dict[str, SDPBackend | None]) -> Row:
    """List torch's function with a dense bias for each backend that takes one, expanded over the batch or copied."""

    def matrix(x: Inputs) -> Tensor:  # (1, H, n, n)
        dense: Tensor = BIASES[bias].make(x).dense()
        return dense.to(x.q.dtype)

    def attend(x: Inputs, backend: SDPBackend | None, copied: bool) -> Tensor:
        addend = matrix(x).expand(x.batch, -1, -1, -1)
        with chosen_backend(backend):
            return F.scaled_dot_product_attention(x.q, x.k, x.v, addend.contiguous() if copied else addend)

    settings: dict[str, Attend] = {}
    for name, backend in backends.items():
        settings[f"{name}, expanded"] = functools.partial(attend, backend=backend, copied=False)
        settings[f"{name}, copied for each sequence"] = functools.partial(attend, backend=backend, copied=True)
    return Row(settings, bias=bias)


def by_headway(bias: str, backend: str, causal: bool = False, dropout: float = 0.0) -> Row:
    case = BIASES[bias]

    def attend(x: Inputs) -> Tensor:
        of_scores, of_values = case.pair(x)
        output: Tensor = hw.attention(
            x.q, x.k, x.v, of_scores, of_values, causal=causal, dropout=dropout, backend=backend, **case.masked(x)
        )
        return output

    return Row({"": attend}, bias=bias, causal=causal, dropout=dropout)


def by_flex(options: dict[str, Any], table_dtype: torch.dtype) -> Attend:
    """Return FlexAttention with a learned Toeplitz bias, these options of its kernels and a table in this dtype."""

    def attend(x: Inputs) -> Tensor:
        length, table = x.length, x.values[0].to(table_dtype)

        def add(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score + table[h, j - i + length - 1]

        return compiled_flex()(x.q, x.k, x.v, score_mod=add, kernel_options=dict(options))

    return attend


@functools.cache
def compiled_flex() -> Callable[..., Tensor]:
    return torch.compile(flex_attention, dynamic=False)


def rows(gpu: bool) -> dict[str, Row]:
    """List all rows of the table; without a GPU, those that a CPU has."""
    ours = functools.partial(by_headway, backend="triton" if gpu else "auto")
    cudnn, flash = SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION
    dense: dict[str, SDPBackend | None]
    dense = {"EFFICIENT": SDPBackend.EFFICIENT_ATTENTION, "cuDNN": cudnn} if gpu else {"torch's choice": None}
    every = {
        "torch, cuDNN, no bias": by_torch(cudnn),
        "torch, FlashAttention-2, no bias": by_torch(flash),
        "torch, learned Toeplitz made dense": by_torch_with_matrix("Toeplitz", dense),
        "torch, FlexAttention, learned Toeplitz": Row({}, bias="Toeplitz", compiled=True),
        "headway, no bias": ours("none"),
        "headway, learned Toeplitz": ours("Toeplitz"),
        "headway, fixed Toeplitz (ALiBi)": ours("fixed Toeplitz"),
        "headway, T5 (clipped offsets)": ours("clipped"),
        "headway, segments": ours("segments"),
        "headway, low rank 64": by_headway("low rank", "auto"),  # long ones train on torch's kernels
        "headway, low rank 64, joined to q and k (cuDNN)": by_headway("low rank", "sdpa"),
        "headway, Shaw, K = 16, keys and values": ours("Shaw"),
        "torch, learned matrix": by_torch_with_matrix("matrix", dense),
        "headway, learned matrix (Dense)": ours("matrix"),
        "torch, cuDNN, causal": by_torch(cudnn, causal=True),
        "headway, learned Toeplitz, causal": ours("Toeplitz", causal=True),
        "torch, cuDNN, dropout": by_torch(cudnn, dropout=DROPOUT),
        "torch, FlashAttention-2, dropout": by_torch(flash, dropout=DROPOUT),
        "headway, learned Toeplitz, dropout": ours("Toeplitz", dropout=DROPOUT),
    }
    if gpu:
        return every
    return {
        "torch, no bias": by_torch(None),
        **{name: row for name, row in every.items() if not any(part in name for part in ("cuDNN", "Flash", "Flex"))},
        "torch, dropout": by_torch(None, dropout=DROPOUT),
    }
