"""What the attention benchmarks compute: q, k and v of a form, and the biases and masks of their rows."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import headway as hw

HEADS, WIDTH, RANK, CLIP, WIDE_CLIP = 12, 64, 64, 16, 64
REACH = 128  # T5's buckets, and clipped offsets: constant from here on
BUCKETS, FARTHEST = 256, 512  # DeBERTa v2 and v3: rows of the table on either side, and where they end
PADDING = 1 / 8  # at most this part of a sequence is padding, where there is any
TEXTS = 4  # of equal length, packed into one sequence
# Parameters that the batch shares, with the axis of their heads; that of q, k, v and the gradient is 1, behind the
# sequences, and so is that of parameters of each sequence.
AXES = {
    "values": 1, "fixed": 1, "buckets": 1, "left": 1, "right": 1, "matrix": 1, "table": 0, "keys": 0, "on_values": 0,
    "three": 0, "wide_keys": 0, "offset_keys": 0, "offset_query": 0, "c2p": 0, "p2c": 0,
}  # fmt: skip
OF_EACH_SEQUENCE = ("own_values", "own_matrix")
FROM_KEYS = ("k", "v")


@dataclass(frozen=True)
class Form:
    """Heads, width and dtype of q, k and v; k and v may have fewer heads."""

    heads: int = HEADS
    width: int = WIDTH
    key_heads: int = 0  # 0: as many as there are heads
    dtype: torch.dtype = torch.bfloat16

    @property
    def groups(self) -> int:
        """How many query heads share one key head."""
        return self.heads // self.key_heads if self.key_heads else 1

    def __str__(self) -> str:
        heads = f"{self.key_heads} of {self.heads} key heads" if self.key_heads else f"{self.heads} heads"
        return f"{heads} x {self.width}, {str(self.dtype).removeprefix('torch.')}"


class Inputs:
    """q, k, v, the parameters of biases at least in float32, masks, and the gradient of the output."""

    values: Tensor
    buckets: Tensor
    left: Tensor
    right: Tensor
    matrix: Tensor
    table: Tensor
    keys: Tensor
    on_values: Tensor
    three: Tensor
    wide_keys: Tensor
    offset_keys: Tensor
    offset_query: Tensor
    c2p: Tensor
    p2c: Tensor
    own_values: Tensor
    own_matrix: Tensor

    def __init__(
        self, length: int, batch: int, device: str = "cuda", *, form: Form | None = None, parameters: Iterable[str] = ()
    ) -> None:
        self.length, self.batch, self.form = length, batch, form or Form()
        heads, width, dtype = self.form.heads, self.form.width, self.form.dtype
        generator, parameters = torch.Generator(device).manual_seed(0), set(parameters)

        def draw(*size: int, kind: torch.dtype) -> Tensor:
            return torch.randn(size, generator=generator, device=device).to(kind).requires_grad_()

        sizes = {
            "values": (1, heads, 2 * length - 1),
            "buckets": (1, heads, 2 * REACH + 1),
            "left": (1, heads, length, RANK),
            "right": (1, heads, length, RANK),
            "matrix": (1, heads, length, length),
            "table": (heads, 2, 2),
            "keys": (heads, 2 * CLIP + 1, width),
            "on_values": (heads, 2 * CLIP + 1, width),
            "three": (heads, 3, 3),
            "wide_keys": (heads, 2 * WIDE_CLIP + 1, width),
            "offset_keys": (heads, 2 * length - 1, width),
            "offset_query": (heads, 1, width),
            "c2p": (heads, 2 * BUCKETS, width),
            "p2c": (heads, 2 * BUCKETS, width),
            "own_values": (batch, heads, 2 * length - 1),
            "own_matrix": (batch, heads, length, length),
        }
        own = torch.promote_types(dtype, torch.float32)
        self.q = draw(batch, heads, length, width, kind=dtype)
        self.k, self.v = (draw(batch, heads // self.form.groups, length, width, kind=dtype) for _ in range(2))
        for name in sizes:
            if name in parameters or (name == "values" and "fixed" in parameters):
                setattr(self, name, draw(*sizes[name], kind=own))
        for name in ("left", "right"):  # so that their product is about as large as the scores
            if name in parameters:
                getattr(self, name).data *= RANK**-0.25
        if "fixed" in parameters:
            self.fixed = self.values.detach()
        place = torch.arange(length, device=device)
        self.segments = (place >= length // 2).long().expand(batch, -1)
        self.thirds = (3 * place // length).expand(batch, -1)
        self.documents = (TEXTS * place // length).expand(batch, -1)
        self.lengths = torch.linspace(length - int(PADDING * length), length, batch, device=device).long()
        self.key_mask = (place < self.lengths[:, None])[:, None, None]  # (B, 1, 1, Lk)
        self.rows = log_bucket_rows(length).to(device)
        self.grad = torch.randn(self.q.shape, generator=generator, device=device).to(dtype)

    def place(self, name: str, sequences: slice, heads: slice) -> tuple[slice, ...]:
        """Index the part of the tensor with this name that belongs to some sequences and heads."""
        if name in AXES:
            return (heads,) if AXES[name] == 0 else (slice(None), heads)
        groups = self.form.groups if name in FROM_KEYS else 1
        return sequences, slice(heads.start // groups, -(-heads.stop // groups))

    def part(self, sequences: slice, heads: slice, dtype: torch.dtype, parameters: Iterable[str]) -> Inputs:
        """Copy some sequences and heads, with q, k, v in `dtype` and these parameters at least in float32."""
        part, own = copy.copy(self), torch.promote_types(dtype, torch.float32)
        for name in ("q", "k", "v", *parameters):
            whole = getattr(self, name)
            piece = whole.detach()[self.place(name, sequences, heads)].to(dtype if name in ("q", "k", "v") else own)
            setattr(part, name, piece.requires_grad_(whole.requires_grad))
        for name in ("segments", "thirds", "documents", "lengths", "key_mask"):
            setattr(part, name, getattr(self, name)[sequences])
        part.grad = self.grad[sequences, heads].to(dtype)
        return part


def log_bucket_rows(length: int) -> Tensor:  # (2 * length - 1,), offset -(length - 1) first
    """The row of DeBERTa's table for each offset: exact up to half of the buckets, then ever wider apart.

    He et al. (2023), "DeBERTaV3"; of i - j, as there. The table has 2 * BUCKETS rows.
    """
    away, exact = torch.arange(length - 1, -length, -1), BUCKETS // 2  # i - j
    distance = away.abs().clamp(min=exact).double()
    wide = torch.ceil((distance / exact).log() / math.log((FARTHEST - 1) / exact) * (exact - 1)) + exact
    bucket = torch.where(away.abs() <= exact, away, (wide * away.sign()).long())
    return bucket.clamp(-BUCKETS, BUCKETS - 1) + BUCKETS


@dataclass(frozen=True)
class BiasCase:
    """A bias, or a bias and a value bias, of the parameters it reads; those that are learned have a gradient."""

    make: Callable[[Inputs], Any]
    reads: tuple[str, ...] = ()
    learned: bool = True
    masks: tuple[str, ...] = ()  # arguments of `hw.attention`, taken from the inputs

    @property
    def wanted(self) -> tuple[str, ...]:
        """List the names of all tensors with a gradient."""
        return ("q", "k", "v", *(self.reads if self.learned else ()))

    def pair(self, x: Inputs) -> tuple[Any, Any]:
        made = self.make(x)
        return made if isinstance(made, tuple) else (made, None)

    def masked(self, x: Inputs) -> dict[str, Tensor]:
        """Return the masks by the names of the arguments."""
        return {name: x.key_mask if name == "mask" else getattr(x, name) for name in self.masks}


def none(x: Inputs) -> None:
    return None


def toeplitz(x: Inputs) -> hw.Toeplitz:
    return hw.Toeplitz(x.values)


def disentangled(x: Inputs) -> Any:
    """DeBERTa's two terms: of each query with the offset's key, and of each key with the offset's query."""
    scale = x.form.width**-0.5
    of_queries = hw.RelativeProducts(x.q, (x.c2p * scale).to(x.q.dtype), x.rows)
    return of_queries + hw.RelativeProducts(x.k, (x.p2c * scale).to(x.k.dtype), x.rows, of_keys=True)


def transformer_xl(x: Inputs) -> hw.RelativeProducts:
    """Terms (b) and (d): the query and a vector that all queries share meet the vector of the offset."""
    scaled = (x.q + x.offset_query.to(x.q.dtype)) * x.form.width**-0.5
    return hw.RelativeProducts.of_every_offset(scaled, x.offset_keys.to(x.q.dtype))


def two_segments(x: Inputs) -> hw.SegmentTable:
    return hw.SegmentTable(x.table, x.segments, x.segments)


BIASES = {
    "none": BiasCase(none),
    "Toeplitz": BiasCase(toeplitz, ("values",)),
    "fixed Toeplitz": BiasCase(lambda x: hw.Toeplitz(x.fixed), ("fixed",), learned=False),
    "clipped": BiasCase(lambda x: hw.Toeplitz.clipped(x.buckets, x.length, x.length), ("buckets",)),
    "segments": BiasCase(two_segments, ("table",)),
    "low rank": BiasCase(lambda x: hw.LowRank(x.left, x.right), ("left", "right")),
    "matrix": BiasCase(lambda x: hw.Dense(x.matrix), ("matrix",)),
    "Shaw": BiasCase(lambda x: (hw.RelativeKeys(x.keys), hw.RelativeValues(x.on_values)), ("keys", "on_values")),
    "key mask": BiasCase(none, masks=("mask",)),
    "lengths": BiasCase(none, masks=("lengths",)),
    "Toeplitz, key mask": BiasCase(toeplitz, ("values",), masks=("mask",)),
    "Toeplitz, lengths": BiasCase(toeplitz, ("values",), masks=("lengths",)),
    "Toeplitz, documents": BiasCase(toeplitz, ("values",), masks=("documents",)),
    "Toeplitz of each sequence": BiasCase(lambda x: hw.Toeplitz(x.own_values), ("own_values",)),
    "matrix of each sequence": BiasCase(lambda x: hw.Dense(x.own_matrix), ("own_matrix",)),
    "relative keys": BiasCase(lambda x: hw.RelativeKeys(x.keys), ("keys",)),
    "wide relative keys": BiasCase(lambda x: hw.RelativeKeys(x.wide_keys), ("wide_keys",)),
    "all offsets": BiasCase(lambda x: hw.RelativeKeys(x.offset_keys), ("offset_keys",)),
    "Transformer-XL": BiasCase(transformer_xl, ("offset_keys", "offset_query")),
    "DeBERTa": BiasCase(disentangled, ("c2p", "p2c")),
    "Toeplitz, three segments": BiasCase(
        lambda x: toeplitz(x) + hw.SegmentTable(x.three, x.thirds, x.thirds), ("values", "three")
    ),
    "Toeplitz, segments, low rank": BiasCase(
        lambda x: toeplitz(x) + two_segments(x) + hw.LowRank(x.left, x.right), ("values", "table", "left", "right")
    ),
}
