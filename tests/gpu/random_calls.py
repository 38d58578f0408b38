"""Random calls of `hw.attention`, each compared with the formula in float64, until the time is up.

    python tests/gpu/random_calls.py --seconds 200 --seed 1             # on a GPU: a process for each core but two
    TRITON_INTERPRET=1 python tests/gpu/random_calls.py --device cpu    # the CPU backends, and Triton interpreted
    python tests/gpu/random_calls.py --fix width=24 --fix rank=70       # some options held, the rest drawn
    python tests/gpu/random_calls.py --replay '{"seed": 5, ...}'        # one call again, as a failure printed it

Compiling takes most of the time, so calls come in families: what decides which kernels are compiled (dtype, widths,
rank, kinds of bias and mask) is drawn once for a family; lengths, batch, heads and memory layout for each of its calls.

A call passes if
- no number is NaN or infinite, although free memory was filled with NaN before the call;
- the output and every gradient are within the error budget of `oracle.py`: as a norm, and more loosely each number;
- queries that may attend to nothing give exact zeros;
- a second run gives the same bits, where the backend promises it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import math
import os
import queue
import random
import shlex
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import oracle
import torch
from torch import Tensor

import headway as hw
from headway.attention.masking import Masking

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
WIDTHS = list(range(8, 257, 8))
MOST_SCORES = 3_000_000  # B * H * Lq * Lk, which the float64 formula holds several times
MOST_DROPPED = 256  # keys of a call with dropout: its mask is found by as many calls as v is narrower than the keys
CALLS_PER_FAMILY = 12
REDRAWS = 8  # with other numbers, of a call that is a little over its budget
CLEARLY = 10.0  # times the budget: no luck of the yardstick explains this
Spec = dict[str, Any]


# Drawing a call


@dataclass
class Choices:
    """Draws options by name; those in `fixed` keep the value given there."""

    rng: random.Random
    fixed: Spec
    cuda: bool

    def take(self, name: str, drawn: Any) -> Any:
        return self.fixed.get(name, drawn)

    def one_of(self, name: str, weights: dict[Any, float]) -> Any:
        return self.take(name, self.rng.choices(list(weights), list(weights.values()))[0])

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def axes(self, allowed: str) -> str:
        """Which of the axes B and H a tensor has; it is shared over the others."""
        return "".join(axis for axis in allowed if self.chance(0.4 if axis == "B" else 0.7))


SCORE_KINDS = {
    "toeplitz": 3, "clipped": 2, "low rank": 4, "segments": 3, "relative keys": 3, "edge keys": 1, "dense": 2
}  # fmt: skip
VALUE_KINDS = {"": 15, "relative values": 4, "edge values": 1, "relative values, edge values": 0.5}
RANKS = [1, 5, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 70, 127, 128, 129, 130]
MASKS = {"causal": 0.45, "lengths": 0.4, "documents": 0.2, "mask": 0.3}
GPU_DTYPES = {"bfloat16": 4, "float16": 3, "float32": 3}
CPU_DTYPES = {"float32": 5, "float16": 1.5, "bfloat16": 1.5}
CPU_BACKENDS = {"auto": 6, "triton": 5, "matrix": 2, "blockwise": 2, "sdpa": 2, "native": 1, "eager": 0.2}
GPU_BACKENDS = {"auto": 12, "triton": 4, "sdpa": 1, "eager": 0.3}


def draw_family(choices: Choices) -> Spec:
    """What decides which kernels are compiled."""
    rng, cuda = choices.rng, choices.cuda
    width = choices.take("width", 64 if choices.chance(0.3) else rng.choice(WIDTHS))
    count = rng.choices([0, 1, 2, 3], [12, 40, 28, 20])[0]
    terms = [rng.choices(list(SCORE_KINDS), list(SCORE_KINDS.values()))[0] for _ in range(count)]
    values = rng.choices(list(VALUE_KINDS), list(VALUE_KINDS.values()))[0].split(", ")
    masked = choices.chance(0.65)
    family = {
        "backend": choices.one_of("backend", GPU_BACKENDS if cuda else CPU_BACKENDS),
        "dtype": choices.one_of("dtype", GPU_DTYPES if cuda else CPU_DTYPES),
        "parameters": choices.one_of("parameters", {"float32": 8, "same": 2}),
        "width": width,
        "v_width": choices.take("v_width", width if choices.chance(0.8) else rng.choice(WIDTHS)),
        "terms": choices.take("terms", terms),
        "values": choices.take("values", [kind for kind in values if kind]),
        **{kind: choices.take(kind, choices.chance(often) and masked) for kind, often in MASKS.items()},
        "dropout": choices.take("dropout", rng.choice([0.1, 0.25, 0.5]) if choices.chance(0.15) else 0.0),
        "grads": choices.one_of("grads", {"all": 7, "none": 3, "inputs": 1.5, "parameters": 0.5}),
    }
    _suit(family, cuda)
    family |= {name: value for name, value in choices.fixed.items() if name in family}
    return family | {place: [_family_term(kind, choices) for kind in family[place]] for place in ("terms", "values")}


def _suit(family: Spec, cuda: bool) -> None:
    """Leave out what a backend asked for by name does not run, so that it is not replaced by auto too often."""
    backend = family["backend"]
    if backend == "native":
        family |= {"dtype": "float32", "documents": False, "mask": False, "dropout": 0.0, "grads": "none", "values": []}
        family["terms"] = [kind for kind in family["terms"] if kind in ("toeplitz", "clipped")]
    if backend == "sdpa":
        family["values"] = []
    if backend == "triton":
        for place in ("terms", "values"):
            family[place] = [kind for kind in family[place] if "edge" not in kind and (kind != "dense" or cuda)]
        if not cuda and family["dtype"] == "bfloat16":  # which Triton's interpreter does not know
            family["dtype"] = "float16"


def _family_term(kind: str, choices: Choices) -> Spec:
    rng = choices.rng
    if kind == "low rank":
        rank = rng.choice(RANKS) if choices.chance(0.5) else rng.randint(1, 130)
        return {"kind": kind, "rank": choices.take("rank", rank)}
    if kind == "segments":
        return {"kind": kind, "count": choices.one_of("segments", {2: 3, 3: 1, 4: 1, 5: 1})}
    if kind in ("relative keys", "relative values", "clipped"):
        reach = rng.choice([0, 1, 4, 8, 15, 16, 17, 27, 28, 60, 70]) if choices.chance(0.5) else rng.randint(0, 40)
        return {"kind": kind, "reach": choices.take("reach", reach)}
    if kind in ("edge keys", "edge values"):
        return {"kind": kind, "count": rng.choice([1, 3, 8, 20])}
    if kind in ("toeplitz", "dense"):
        return {"kind": kind}
    raise ValueError(f"terms: expected {', '.join(SCORE_KINDS)}, relative values or edge values, got {kind!r}.")


def draw_call(family: Spec, choices: Choices) -> Spec:
    """One call of a family, described in full."""
    rng = choices.rng
    longest, most_scores = 600, MOST_SCORES
    if not choices.cuda:
        longest, most_scores = (40, 2_500) if family["backend"] == "triton" else (300, 100_000)
    if family["dropout"]:
        longest = min(longest, MOST_DROPPED)
    q_len = choices.take("q_len", _length(rng, longest))
    same = choices.chance(0.45)
    k_len = choices.take("k_len", q_len if same else _length(rng, longest))
    heads = choices.take("heads", rng.choice([1, 2, 2, 3, 4, 4, 6]))
    if choices.cuda and choices.chance(0.3) and _changes_when_long(family):
        sizes = {"q_len": rng.randint(4096, 4200), "k_len": rng.randint(4096, 4200), "heads": 1}
        q_len, k_len, heads = (choices.take(name, size) for name, size in sizes.items())
    key_heads = choices.take(
        "key_heads", heads if choices.chance(0.6) else rng.choice([n for n in range(1, heads + 1) if heads % n == 0])
    )
    batch = rng.randint(1, 5)
    if q_len * k_len <= 70 * 70 and choices.chance(0.15):
        batch = rng.randint(6, 60)
    batch = choices.take("batch", min(batch, max(1, most_scores // (heads * q_len * k_len))))
    scale = rng.choices([None, "other", 0.0, "negative"], [14, 3, 0.6, 1])[0]
    if isinstance(scale, str):
        scale = round(rng.uniform(0.1, 2) * family["width"] ** -0.5, 4) * (1 if scale == "other" else -1)
    q_start = rng.choices([0, rng.randint(0, k_len), k_len - q_len, -rng.randint(1, 9)], [10, 5, 3, 1])[0]
    call = {
        "seed": rng.getrandbits(32),
        "batch": batch, "heads": heads, "key_heads": key_heads, "q_len": q_len, "k_len": k_len,
        **family,
        "terms": [_call_term(term, q_start, choices) for term in family["terms"]],
        "values": [_call_term(term, q_start, choices) for term in family["values"]],
        "scale": choices.take("scale", scale),
        "upstream": choices.one_of("upstream", {"contiguous": 4, "rows first": 4, "expanded": 1}),
        "upstream_scale": choices.one_of(
            "upstream_scale", {1.0: 8, 100.0: 1} if family["dtype"] == "float16" else {1.0: 8, 100.0: 1, 1e-4: 1}
        ),
    }  # fmt: skip
    if family["lengths"] is True:
        call["lengths"] = rng.choice(["any", "any", "full", "short"])
    if family["documents"] is True:
        call["documents"] = choices.axes("B") or "shared"
    if family["mask"] is True:
        call["mask"] = "".join(axis for axis in "BHq" if choices.chance(0.6)) + "k"
    layouts = {"contiguous": 3, "rows first": 3, "sliced": 1, "expanded": 0.5}
    if q_len == k_len and heads == key_heads and family["width"] == family["v_width"]:
        layouts |= {"packed": 3, "packed views": 2}
    call["layout"] = choices.one_of("layout", layouts)
    return call


def _changes_when_long(family: Spec) -> bool:
    """Whether other kernels take the call from some thousands of keys on: those of a low-rank bias alone."""
    alone = [term["kind"] for term in family["terms"]] == ["low rank"] and not family["values"]
    return alone and family["dtype"] != "float32" and not (family["dropout"] or family["mask"] or family["documents"])


def _length(rng: random.Random, longest: int) -> int:
    """A length up to `longest`: often short, often beside a multiple of a tile's size."""
    beside = [n for n in (16, 32, 48, 64, 128, 192, 256, 320, 512) if n <= longest]
    way = rng.choices(["short", "beside", "any"], [25, 45, 30])[0]
    if way == "beside" and beside:
        return min(longest, rng.choice(beside) + rng.choice([-1, 0, 1]))
    return rng.randint(1, min(longest, 20 if way == "short" else 600))


def _call_term(term: Spec, q_start: int, choices: Choices) -> Spec:
    """Over which axes the tensors of one term are shared, and where relative offsets begin."""
    axes = {
        "toeplitz": {"table": "BH"}, "clipped": {"table": "BH"}, "dense": {"table": "BH"},
        "low rank": {"left": "BH", "right": "BH"},
        "segments": {"table": "H", "q": "B", "k": "B"},
        "relative keys": {"table": "H"}, "relative values": {"table": "H"},
        "edge keys": {"table": "H", "labels": "B"}, "edge values": {"table": "H", "labels": "B"},
    }[term["kind"]]  # fmt: skip
    drawn = {**term, **{name: choices.axes(allowed) for name, allowed in axes.items()}}
    if "relative" in term["kind"]:  # the fused kernels take one q_start, so that another one is rare
        drawn["q_start"] = q_start if choices.chance(0.95) else 3
    if term["kind"] == "dense":
        drawn["level"] = 50 if choices.chance(0.2) else 0
    return drawn


# From its description to the tensors of a call


@dataclass
class Numbers:
    """Random numbers that depend on the seed alone: drawn on the CPU, then moved."""

    seed: int
    device: str
    generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)

    def normal(self, *size: int) -> Tensor:
        return torch.randn(size, dtype=torch.float64, generator=self.generator).to(self.device)

    def ids(self, count: int, *size: int) -> Tensor:
        return torch.randint(count, size, generator=self.generator).to(self.device)

    def often(self, probability: float, *size: int) -> Tensor:
        return (torch.rand(size, generator=self.generator) < probability).to(self.device)


@dataclass
class Inputs:
    """The tensors of one call in float64, rounded to the dtype they are passed in."""

    qkv: list[Tensor]
    parameters: list[Tensor]
    names: list[str]  # of the parameters
    make: Any  # from parameters to (bias, value_bias)
    first_value: int  # number of the first parameter of a value bias
    upstream: Tensor
    options: Spec  # masks and scale


def inputs_of(spec: Spec, device: str) -> Inputs:
    """Draw the tensors of a call; the same ones each time for the same description."""
    numbers, dtype = Numbers(spec["seed"], device), DTYPES[spec["dtype"]]
    batch, heads, key_heads, q_len, k_len = (spec[n] for n in ("batch", "heads", "key_heads", "q_len", "k_len"))
    shared = 1 if spec["layout"] == "expanded" else batch
    qkv = [
        numbers.normal(batch, heads, q_len, spec["width"]),
        numbers.normal(shared, key_heads, k_len, spec["width"]).expand(batch, -1, -1, -1),
        numbers.normal(shared, key_heads, k_len, spec["v_width"]).expand(batch, -1, -1, -1),
    ]
    upstream = numbers.normal(batch, heads, q_len, spec["v_width"]) * spec["upstream_scale"]
    if spec["upstream"] == "expanded":
        upstream = upstream[:1, :1, :1, :1].expand_as(upstream)
    builders, parameters, names = [], [], []
    for place in ("terms", "values"):
        for term in spec[place]:
            build, tensors = BUILDERS[term["kind"]](term, spec, numbers)
            builders.append((place, build, len(tensors)))
            parameters += tensors
            names += [f"{term['kind']} {n}" if len(tensors) > 1 else term["kind"] for n in range(len(tensors))]

    def make(*given: Tensor) -> tuple[Any, Any]:
        found, start = {"terms": None, "values": None}, 0
        for place, build, count in builders:
            part, start = build(*given[start : start + count]), start + count
            found[place] = part if found[place] is None else found[place] + part
        return found["terms"], found["values"]

    own = parameter_dtype(spec, dtype)
    return Inputs(
        qkv=[t.to(dtype).double() for t in qkv],
        parameters=[t.to(own).double() for t in parameters],
        names=names,
        make=make,
        first_value=sum(count for place, _, count in builders if place == "terms"),
        upstream=upstream.to(dtype).double(),
        options=_options(spec, numbers),
    )


def parameter_dtype(spec: Spec, dtype: torch.dtype) -> torch.dtype:
    """That of a bias where q, k and v are of `dtype`."""
    return torch.promote_types(dtype, dtype if spec["parameters"] == "same" else torch.float32)


def _options(spec: Spec, numbers: Numbers) -> Spec:
    batch, q_len, k_len = spec["batch"], spec["q_len"], spec["k_len"]
    options: Spec = {"causal": spec["causal"], "scale": spec["scale"]}
    if spec["lengths"]:
        lengths = {
            "any": numbers.ids(k_len + 1, batch),
            "full": torch.full((batch,), k_len, device=numbers.device),
            "short": numbers.ids(min(k_len, 20) + 1, batch),
        }[spec["lengths"]]
        if batch > 1 and spec["lengths"] == "any":
            lengths[0], lengths[-1] = 0, k_len
        options["lengths"] = lengths
    if spec["documents"]:
        of = batch if spec["documents"] == "B" else 1
        ids = numbers.ids(3, of, q_len).sort().values
        options["documents"] = ids if q_len == k_len else (ids, numbers.ids(3, of, k_len).sort().values)
    if spec["mask"]:
        sizes = {"B": batch, "H": spec["heads"], "q": q_len}
        mask = numbers.often(0.6, *(n if axis in spec["mask"] else 1 for axis, n in sizes.items()), k_len)
        mask[0, 0, 0] = False
        options["mask"] = mask
    return options


def _sizes(term: Spec, name: str, spec: Spec) -> tuple[int, int]:
    return spec["batch"] if "B" in term[name] else 1, spec["heads"] if "H" in term[name] else 1


def _toeplitz(term: Spec, spec: Spec, numbers: Numbers) -> tuple[Any, list[Tensor]]:
    return hw.Toeplitz, [numbers.normal(*_sizes(term, "table", spec), spec["q_len"] + spec["k_len"] - 1)]


def _clipped(term: Spec, spec: Spec, numbers: Numbers) -> tuple[Any, list[Tensor]]:
    table = numbers.normal(*_sizes(term, "table", spec), 2 * term["reach"] + 1)
    return lambda t: hw.Toeplitz.clipped(t, spec["q_len"], spec["k_len"]), [table]


def _dense(term: Spec, spec: Spec, numbers: Numbers) -> tuple[Any, list[Tensor]]:
    return hw.Dense, [term["level"] + numbers.normal(*_sizes(term, "table", spec), spec["q_len"], spec["k_len"])]


def _low_rank(term: Spec, spec: Spec, numbers: Numbers) -> tuple[Any, list[Tensor]]:
    size = term["rank"] ** -0.25  # of one number, so that the products have size 1
    left = size * numbers.normal(*_sizes(term, "left", spec), spec["q_len"], term["rank"])
    return hw.LowRank, [left, size * numbers.normal(*_sizes(term, "right", spec), spec["k_len"], term["rank"])]


def _segments(term: Spec, spec: Spec, numbers: Numbers) -> tuple[Any, list[Tensor]]:
    q_ids = numbers.ids(term["count"], _sizes(term, "q", spec)[0], spec["q_len"])
    k_ids = numbers.ids(term["count"], _sizes(term, "k", spec)[0], spec["k_len"])
    table = numbers.normal(_sizes(term, "table", spec)[1], term["count"], term["count"])
    return lambda t: hw.SegmentTable(t, q_ids, k_ids), [table]


def _relative(term: Spec, spec: Spec, numbers: Numbers) -> tuple[Any, list[Tensor]]:
    keys = term["kind"] == "relative keys"
    width = spec["width" if keys else "v_width"]
    table = numbers.normal(_sizes(term, "table", spec)[1], 2 * term["reach"] + 1, width)
    return lambda t: (hw.RelativeKeys if keys else hw.RelativeValues)(t, term["q_start"]), [table]


def _edges(term: Spec, spec: Spec, numbers: Numbers) -> tuple[Any, list[Tensor]]:
    keys = term["kind"] == "edge keys"
    table = numbers.normal(_sizes(term, "table", spec)[1], term["count"], spec["width" if keys else "v_width"])
    labels = numbers.ids(term["count"], _sizes(term, "labels", spec)[0], spec["q_len"], spec["k_len"])
    return lambda t: (hw.EdgeKeys if keys else hw.EdgeValues)(t, labels), [table]


BUILDERS = {
    "toeplitz": _toeplitz, "clipped": _clipped, "dense": _dense, "low rank": _low_rank, "segments": _segments,
    "relative keys": _relative, "relative values": _relative, "edge keys": _edges, "edge values": _edges,
}  # fmt: skip


# Running it


def run(
    spec: Spec, inputs: Inputs, backend: str, dtype: torch.dtype, layout: str = "contiguous", *, backward: bool = True
) -> dict[str, Tensor]:
    """The output and the wanted gradients of one call, by name."""
    wanted = spec["grads"]
    own = parameter_dtype(spec, dtype)
    leaves = [t.requires_grad_(wanted in ("all", "inputs")) for t in _laid_out(inputs.qkv, dtype, layout)]
    parameters = [t.to(own, copy=True).requires_grad_(wanted in ("all", "parameters")) for t in inputs.parameters]
    options = {**inputs.options, "dropout": spec["dropout"], "backend": backend}
    with contextlib.nullcontext() if wanted != "none" else torch.no_grad():
        bias, value_bias = inputs.make(*parameters)
        if layout == "packed":
            output = hw.self_attention(leaves[0], bias, value_bias, **options)
        else:
            qkv = leaves[0].permute(2, 0, 3, 1, 4).unbind(0) if layout == "packed views" else leaves
            output = hw.attention(*qkv, bias, value_bias, **options)
    found = {"output": output.detach()}
    named = {f"gradient of {name}": t for name, t in _named(leaves, parameters, inputs) if t.requires_grad}
    if backward and output.requires_grad:
        upstream = inputs.upstream.to(dtype)
        if spec["upstream"] == "rows first":
            upstream = upstream.transpose(1, 2).contiguous().transpose(1, 2)
        grads = torch.autograd.grad(output, list(named.values()), upstream, allow_unused=True)
        for (name, t), grad in zip(named.items(), grads, strict=True):
            found[name] = torch.zeros_like(t) if grad is None else grad
    if "gradient of qkv" in found:
        whole = found.pop("gradient of qkv")
        for name, t in zip("qkv", whole.permute(2, 0, 3, 1, 4), strict=True):
            found[f"gradient of {name}"] = t
    return found


def _named(leaves: list[Tensor], parameters: list[Tensor], inputs: Inputs) -> list[tuple[str, Tensor]]:
    names = ["qkv"] if len(leaves) == 1 else ["q", "k", "v"]
    # Two terms of one kind have equal names: their number tells them apart.
    names += [f"{name} ({number})" for number, name in enumerate(inputs.names)]
    return list(zip(names, [*leaves, *parameters], strict=True))


def _laid_out(qkv: list[Tensor], dtype: torch.dtype, layout: str) -> list[Tensor]:
    """q, k and v as leaves that lie in memory as the layout says; packed, one leaf (B, L, 3, H, D)."""
    q, k, v = (t.to(dtype) for t in qkv)
    if layout.startswith("packed"):
        return [torch.stack([q, k, v]).permute(1, 3, 0, 2, 4).contiguous()]
    if layout == "expanded":  # one sequence of keys for the whole batch, as a shared prefix is
        return [q.contiguous(), *(t[:1].contiguous().expand(t.shape[0], -1, -1, -1) for t in (k, v))]
    if layout == "rows first":
        return [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
    if layout == "sliced":  # rows begin at odd addresses
        return [torch.nn.functional.pad(t, (1, 2))[..., 1:-2] for t in (q, k, v)]
    return [t.contiguous() for t in (q, k, v)]


def poison(device: str) -> None:
    """Fill free memory of the GPU's allocator with bytes 255, which are NaN in every dtype, and -1 as an integer."""
    if device != "cuda":
        return  # see poisoned_empty
    counts = {2**26: 1, 2**24: 3, 2**22: 6, 2**20: 12, 2**17: 16, 2**14: 16, 2**11: 16, 512: 24}
    blocks = [torch.empty(n, dtype=torch.uint8, device=device) for n, count in counts.items() for _ in range(count)]
    for block in blocks:
        block.fill_(255)


@contextlib.contextmanager
def poisoned_empty(device: str):
    """Fill what torch.empty and its like return with NaN, on the CPU, where there is no allocator to fill before."""
    if device == "cuda":
        yield
        return

    def filled(function):
        def call(*args, **kwargs):
            t = function(*args, **kwargs)
            if type(t) is Tensor and t.device.type == "cpu" and t.is_floating_point() and not t.requires_grad:
                t.fill_(math.nan)
            return t

        return call

    with contextlib.ExitStack() as stack:
        for owner, name in ((torch, "empty"), (torch, "empty_like"), (Tensor, "new_empty")):
            stack.enter_context(mock.patch.object(owner, name, filled(getattr(owner, name))))
        yield


def kept_weights(spec: Spec, inputs: Inputs, backend: str, dtype: torch.dtype) -> Tensor:  # (B, H, Lq, Lk) boolean
    """Which weights dropout keeps: the values are columns of the identity, so that the outputs are the weights."""
    k_len, width = spec["k_len"], spec["v_width"]
    parameters = [t if n < inputs.first_value else torch.zeros_like(t) for n, t in enumerate(inputs.parameters)]
    identity = torch.eye(k_len, dtype=torch.float64, device=inputs.upstream.device)
    identity = torch.nn.functional.pad(identity, (0, -k_len % width))
    columns = []
    for start in range(0, k_len, width):
        v = identity[:, start : start + width].expand_as(inputs.qkv[2])
        probe = replace(inputs, qkv=[*inputs.qkv[:2], v], parameters=parameters)
        torch.manual_seed(spec["seed"])
        columns.append(run(spec, probe, backend, dtype, spec["layout"], backward=False)["output"] != 0)
    return torch.cat(columns, -1)[..., :k_len]


@contextlib.contextmanager
def dropping(kept: Tensor | None):
    """Let eager drop the given weights in place of random ones."""
    if kept is None:
        yield
        return

    def drop(weights: Tensor, rate: float) -> Tensor:
        return weights * (kept / (1 - rate)).to(weights.dtype)

    with mock.patch.object(torch.nn.functional, "dropout", drop):
        yield


# Judging it


@dataclass
class Verdict:
    """What was found about one call. `ratio` is the largest error over what is allowed."""

    backend: str = "none"
    failures: list[str] = field(default_factory=list)
    ratio: float = 0.0
    of: str = ""  # what has this ratio
    repeats: bool = True
    promised: bool = False

    def as_json(self) -> Spec:
        return dict(vars(self))


def promises_same_bits(told: Any) -> bool:
    """Whether two runs of the explained call give the same bits; older versions of headway do not say so themselves."""
    return getattr(told, "deterministic", told.backend in ("triton", "native", "matrix", "blockwise"))


def judge(spec: Spec, device: str) -> Verdict:
    """Run a call twice and compare it with float64. A small excess is only a failure if redrawn numbers confirm it.

    The budget is twice or three times the error of one eager run, which may be small by luck where there are few
    numbers; so the errors and the budgets of several draws are summed.
    """
    verdict, ratios = judge_once(spec, device)
    over = {name: pair for name, pair in ratios.items() if not pair[0] <= pair[1]}
    clear = {name: pair for name, pair in over.items() if not pair[0] <= CLEARLY * pair[1]}
    if over and not clear and not verdict.failures:
        totals = {name: list(pair) for name, pair in over.items()}
        for number in range(1, REDRAWS + 1):
            again, others = judge_once({**spec, "seed": spec["seed"] + number}, device)
            verdict.failures += [f"redrawn with seed + {number}: {failure}" for failure in again.failures]
            for name, total in totals.items():
                total[0] += others.get(name, (0, 0))[0]
                total[1] += others.get(name, (0, 0))[1]
        over = {name: tuple(total) for name, total in totals.items() if not total[0] <= total[1]}
    verdict.failures += [f"{name}: error {error:.3g}, allowed {allowed:.3g}" for name, (error, allowed) in over.items()]
    return verdict


def judge_once(spec: Spec, device: str) -> tuple[Verdict, dict[str, tuple[float, float]]]:
    """One draw of numbers: the verdict without the error budget, and each error with what is allowed."""
    inputs, dtype, verdict = inputs_of(spec, device), DTYPES[spec["dtype"]], Verdict()
    backend, told = _explained(spec, inputs, dtype)
    verdict.backend, verdict.promised = told.backend, promises_same_bits(told)
    found = []
    for _ in range(2):
        poison(device)
        torch.manual_seed(spec["seed"])
        with poisoned_empty(device):
            found.append(run(spec, inputs, backend, dtype, spec["layout"]))
        if device == "cuda":
            torch.cuda.synchronize()
    verdict.failures += [f"{n}: not finite" for n, t in found[0].items() if not torch.isfinite(t).all()]
    differing = [name for name, t in found[0].items() if not torch.equal(t, found[1][name])]
    verdict.repeats = not differing
    if differing and verdict.promised:
        verdict.failures.append(f"a second run gives other bits: {', '.join(differing)}")
    if verdict.failures:
        return verdict, {}
    kept = None
    if spec["dropout"]:
        kept = kept_weights(spec, inputs, backend, dtype)
    allowed = _visible(spec, inputs)
    with dropping(kept):
        truth, eager = (run(spec, inputs, "eager", own) for own in (torch.float64, dtype))
        looser = 1.0
        if told.backend == "sdpa" and dtype != torch.float32 and spec["terms"]:
            looser = _looser(spec, inputs, dtype, allowed, truth["output"], eager["output"])
        summed = _rounding(spec, inputs, dtype)
        for name, more in _rounding_of_the_output(spec, inputs, dtype, truth["output"], told.backend).items():
            summed[name] = summed[name] + more
    if allowed is not None:
        blind = ~allowed.any(-1).expand(truth["output"].shape[:3])
        for name in ("output", "gradient of q"):
            if name in found[0] and (found[0][name][blind] != 0).any():
                verdict.failures.append(f"{name}: not zero where a query sees nothing")
    if kept is not None:
        verdict.failures += _unlikely(spec, kept, inputs, allowed)
    equal_rows = spec["batch"] * spec["q_len"] if spec["upstream"] == "expanded" else 0
    errors = _errors(found[0], truth, eager, looser, dtype, summed, equal_rows)
    for name, (error, most) in errors.items():
        ratio = error / most if most else math.inf * error if error else 0.0
        if ratio > verdict.ratio:
            verdict.ratio, verdict.of = ratio, name
    return verdict, errors


def _explained(spec: Spec, inputs: Inputs, dtype: torch.dtype) -> tuple[str, Any]:
    """The backend to ask for, and what explains its choice: auto where the drawn one cannot run the call."""
    q, k, v = _arguments(spec, inputs, dtype)
    own = parameter_dtype(spec, dtype)
    learned = spec["grads"] in ("all", "parameters")
    parameters = [t.to(own, copy=True).requires_grad_(learned) for t in inputs.parameters]
    with contextlib.nullcontext() if spec["grads"] != "none" else torch.no_grad():
        bias, value_bias = inputs.make(*parameters)
        options = {**inputs.options, "dropout": spec["dropout"]}
        for backend in (spec["backend"], "auto"):
            try:
                return backend, hw.explain(q, k, v, bias, value_bias, backend=backend, **options)
            except NotImplementedError as refusal:
                if backend == "auto" or "cannot run this call" not in str(refusal):
                    raise
    raise AssertionError


def _arguments(spec: Spec, inputs: Inputs, dtype: torch.dtype) -> Any:
    leaves = [
        t.requires_grad_(spec["grads"] in ("all", "inputs")) for t in _laid_out(inputs.qkv, dtype, spec["layout"])
    ]
    return leaves[0].permute(2, 0, 3, 1, 4).unbind(0) if len(leaves) == 1 else leaves


def _visible(spec: Spec, inputs: Inputs) -> Tensor | None:  # (B|1, H|1, Lq, Lk), or None: every query sees every key
    given = inputs.options
    documents = given.get("documents", (None, None))
    documents = (documents, documents) if isinstance(documents, Tensor) else documents
    return Masking(
        q_len=spec["q_len"], k_len=spec["k_len"], causal=given["causal"], mask=given.get("mask"),
        lengths=given.get("lengths"), q_documents=documents[0], k_documents=documents[1],
    ).dense(inputs.upstream.device)  # fmt: skip


def _looser(
    spec: Spec, inputs: Inputs, dtype: torch.dtype, allowed: Tensor | None, truth: Tensor, eager: Tensor
) -> float:
    """How many times larger the error of eager is with a bias rounded to `dtype`, as torch's kernels take it."""

    def make(*parameters: Tensor) -> tuple[Any, Any]:
        bias, value_bias = inputs.make(*parameters)
        bound = bias.bind(spec["q_len"], spec["k_len"])
        matrix = bound.dense(inputs.qkv[0].float(), k_len=spec["k_len"], scale=spec["scale"]).float()
        seen = matrix if allowed is None else matrix.masked_fill(~allowed, -6e4)
        matrix = (matrix - seen.amax(-1, keepdim=True)).clamp(min=-6e4, max=6e4)
        return hw.Dense(matrix.to(dtype).float()), value_bias

    rounded = run(spec, replace(inputs, make=make), "eager", dtype, backward=False)["output"]
    own = (eager - truth).norm()
    return max(1.0, ((rounded - truth).norm() / own).item()) if own > 0 else 1.0


def _rounding(spec: Spec, inputs: Inputs, dtype: torch.dtype) -> dict[str, Tensor]:
    """The error that rounding may leave in the output and in gradients, however small they are."""
    tables = inputs.parameters[inputs.first_value :]  # of value biases
    of_v, *of_tables = (t.norm(dim=-1).max() for t in (inputs.qkv[2], *tables))
    widest = of_v + sum(of_tables)
    rows = spec["batch"] * spec["heads"] * spec["q_len"]
    of_output = torch.finfo(torch.float32).eps * math.sqrt(rows) * widest
    if spec["grads"] == "none":
        return {"output": of_output}
    relative = any("relative" in term["kind"] for term in (*spec["terms"], *spec["values"]))
    options = {**inputs.options, "dropout": spec["dropout"]}
    plain, rounded = (
        oracle.rounding_of_sums(dtype, of_rows, inputs.make, inputs.parameters, inputs.qkv, inputs.upstream, **options)
        for of_rows in (False, relative)
    )
    # What the gradient of a score is multiplied with may be larger than one, and what it is a product of than v alone.
    scale = spec["width"] ** -0.5 if spec["scale"] is None else abs(spec["scale"])
    factors = [t.norm(dim=-1).max() for t, n in zip(inputs.parameters, inputs.names, strict=True) if "low rank" in n]
    largest = max([1.0, scale * spec["width"] ** 0.5, *map(float, factors)]) / (1 - spec["dropout"]) * (widest / of_v)
    # Gradients of relative scores are rounded on their way to q and to the tables, and nowhere else.
    return {"output": of_output, "gradient": plain * largest, "gradient of relative": rounded * largest}


def _rounding_of_the_output(
    spec: Spec, inputs: Inputs, dtype: torch.dtype, output: Tensor, backend: str
) -> dict[str, Tensor]:
    """What kernels lose by storing their output: that is all there is where a gradient is nothing, as with one key.

    The backward pass takes the sum over a row of gradients from the output. Ours keep what rounding took from it, also
    rounded; torch's do not, and round the gradient of a dense bias too. In float32 torch's scores become powers of two,
    by a product that rounds a large bias.
    """
    step = torch.finfo(dtype).eps
    if dtype == torch.float32:
        level = max([0.0, *(abs(term.get("level", 0)) for term in spec["terms"])]) if backend == "sdpa" else 0.0
        return {"output": step * level * output.norm()}
    if spec["grads"] == "none" or backend not in ("sdpa", "triton"):
        return {}
    scale = spec["width"] ** -0.5 if spec["scale"] is None else abs(spec["scale"])
    largest = max([1.0, *(scale * t.norm(dim=-1).max().item() for t in inputs.qkv[:2])])
    lost = (inputs.upstream.norm(dim=-1) * output.norm(dim=-1)).norm()
    if backend == "triton":
        more = step**2 / 4 * largest * lost
    else:
        options = {**inputs.options, "dropout": spec["dropout"]}
        of_scores = oracle.of_scores(inputs.make, inputs.parameters, inputs.qkv, inputs.upstream, **options).norm()
        more = step * largest * (of_scores + lost)
    return {"gradient": more, "gradient of relative": more}


def _unlikely(spec: Spec, kept: Tensor, inputs: Inputs, allowed: Tensor | None) -> list[str]:
    """Say so if dropout keeps a fraction of the weights that is far from the one asked for."""
    plain = {**spec, "dropout": 0.0, "grads": "none", "v_width": spec["k_len"], "values": []}
    identity = torch.eye(spec["k_len"], dtype=torch.float64, device=kept.device)
    v = identity.expand(*inputs.qkv[1].shape[:2], -1, -1)
    probe = replace(inputs, qkv=[*inputs.qkv[:2], v], make=lambda *given: (inputs.make(*given)[0], None))
    weights = run(plain, probe, "eager", torch.float64)["output"]
    some = kept[weights > 1e-5]
    rate, count = 1 - spec["dropout"], some.numel()
    if count < 500:
        return []
    fraction = some.double().mean().item()
    if abs(fraction - rate) > 0.02 + 6 * math.sqrt(rate * (1 - rate) / count):
        return [f"dropout keeps {fraction:.3f} of {count} weights, expected {rate:.3f}"]
    return []


def _errors(
    found: dict[str, Tensor],
    truth: dict[str, Tensor],
    eager: dict[str, Tensor],
    looser: float,
    dtype: torch.dtype,
    summed: dict[str, Tensor],
    equal_rows: int,  # of the upstream gradient
) -> dict[str, tuple[float, float]]:
    """The error of every result as a norm and of its worst number, with what is allowed."""
    step, info = torch.finfo(dtype).eps, torch.finfo(dtype)
    errors = {}
    for index, (name, right) in enumerate(truth.items()):
        error, theirs, times = found[name].double() - right, eager[name].double() - right, oracle.times(index) * looser
        through_rows = name == "gradient of q" or "relative" in name
        rest = summed["output" if index == 0 else "gradient of relative" if through_rows else "gradient"]
        if equal_rows:  # a sum of equal numbers, which rounds the same way every time
            rest = rest + torch.finfo(torch.float32).eps / 4 * equal_rows * right.norm()
        smallest = info.tiny * info.eps * math.sqrt(right.numel())  # float16 has no smaller numbers
        allowed = times * theirs.norm() + step * right.norm() + rest + smallest
        errors[name] = (error.norm().item(), allowed.item())
        worst = times * theirs.abs().max() + step * right.abs().max() + rest + smallest
        errors[f"{name}, worst number"] = (error.abs().max().item(), 4 * worst.item())
    return errors


def attempt(spec: Spec, device: str) -> Verdict:
    """Judge a call; an exception is a failure."""
    try:
        return judge(spec, device)
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        return Verdict(failures=[f"{type(error).__name__} at {where}: {str(error).strip()[:600]}"])


def simplified(spec: Spec, device: str, seconds: float) -> Spec:
    """A simpler call that fails as well, found by trying simplifications one after another."""
    deadline, changed = time.monotonic() + seconds, True
    while changed:
        changed = False
        for simpler in _simpler(spec):
            if time.monotonic() > deadline:
                return spec
            if attempt(simpler, device).failures:
                spec, changed = simpler, True
                break
    return spec


def _simpler(spec: Spec) -> list[Spec]:
    simpler = [{**spec, place: spec[place][:n] + spec[place][n + 1 :]}
               for place in ("terms", "values") for n in range(len(spec[place]))]  # fmt: skip
    plain = {
        "causal": False, "lengths": False, "documents": False, "mask": False, "dropout": 0.0, "scale": None,
        "layout": "contiguous", "upstream": "contiguous", "upstream_scale": 1.0, "parameters": "float32",
        "batch": 1, "heads": 1, "grads": "none",
    }  # fmt: skip
    for name, value in plain.items():
        if spec[name] != value:
            more = {"key_heads": 1} if name == "heads" else {}
            simpler.append({**spec, name: value, **more})
    if spec["key_heads"] != spec["heads"]:
        simpler.append({**spec, "key_heads": spec["heads"]})
    return simpler


# Many calls, in several processes


def replay_command(spec: Spec, device: str) -> str:
    """The command that runs one call again."""
    interpreted = "TRITON_INTERPRET=1 " if os.environ.get("TRITON_INTERPRET") == "1" else ""
    return f"{interpreted}python tests/gpu/random_calls.py --device {device} --replay {shlex.quote(json.dumps(spec))}"


def drawn_calls(seed: int, worker: int, number: int, fixed: Spec, device: str) -> list[Spec]:
    """The calls of one family, each as its description."""
    choices = Choices(random.Random(f"{seed * 1000 + worker}, {number}"), fixed, device == "cuda")
    family = draw_family(choices)
    return [draw_call(family, choices) for _ in range(CALLS_PER_FAMILY)]


def work(arguments: argparse.Namespace) -> None:
    """Judge calls until the time is up; report each beginning and end to the parent, as a line of JSON."""
    torch.set_num_threads(1)
    deadline, device = time.monotonic() + arguments.seconds, arguments.device

    def report(**event: Any) -> None:
        print(json.dumps(event), file=sys.__stdout__, flush=True)

    number = arguments.first_family
    while time.monotonic() < deadline:
        simplify = True
        for spec in drawn_calls(arguments.seed, arguments.worker, number, arguments.fixed, device):
            if time.monotonic() > deadline:
                break
            report(begin=spec, family=number)
            verdict = attempt(spec, device)
            report(end=verdict.as_json())
            if verdict.failures and device == "cuda":
                try:
                    torch.cuda.synchronize()
                except RuntimeError:  # the context is lost: the parent starts another process
                    os._exit(3)
            if verdict.failures and simplify and arguments.simplify:
                simplify = False
                report(simplified=simplified(spec, device, arguments.simplify))
        number += 1
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()


class Worker:
    """One process that judges calls, and what it last reported."""

    def __init__(self, index: int, arguments: argparse.Namespace, first_family: int, seconds: float) -> None:
        self.index, self.family, self.spec, self.since = index, first_family, None, time.monotonic()
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115
        command = [sys.executable, __file__, "--worker", str(index), "--first-family", str(first_family)]
        command += ["--seconds", str(seconds), "--seed", str(arguments.seed), "--device", arguments.device]
        command += ["--simplify", str(arguments.simplify)]
        for name, value in arguments.fixed.items():
            command += ["--fix", f"{name}={json.dumps(value)}"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        if arguments.device == "cpu":
            environment["MALLOC_PERTURB_"] = "128"  # glibc fills new memory with bytes 127: large numbers, no zeros
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.errors, env=environment)

    def listen(self, events: queue.Queue) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with contextlib.suppress(json.JSONDecodeError):
                events.put((self, json.loads(line)))
        self.process.stdout.close()
        self.process.wait()
        events.put((self, None))

    def last_words(self) -> str:
        with self.errors:
            self.errors.seek(0)
            return self.errors.read().decode(errors="replace").strip()[-1500:]


class Tally:
    """Counts of calls, and the failures with their commands."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.device, self.began = arguments.device, time.monotonic()
        self.calls, self.failures, self.lucky = 0, 0, 0
        self.counts = {name: Counter() for name in ("dtype", "backend", "structure")}
        self.differing = {"promised": 0, "not promised": 0}
        self.closest: list[tuple[float, str]] = []

    def end(self, spec: Spec, verdict: Spec) -> None:
        self.calls += 1
        self.counts["dtype"][spec["dtype"]] += 1
        self.counts["backend"][verdict["backend"]] += 1
        kinds = {term["kind"] for term in (*spec["terms"], *spec["values"])}
        self.counts["structure"].update(kinds or {"none"})
        if not verdict["repeats"]:
            self.differing["promised" if verdict["promised"] else "not promised"] += 1
        if verdict["failures"]:
            self.fail(spec, verdict["failures"], f"{verdict['backend']}, ratio {verdict['ratio']:.3g}")
        else:
            self.lucky += verdict["ratio"] > 1
            label = f"{verdict['of']}, {spec['dtype']}, {verdict['backend']}"
            self.closest = sorted([*self.closest, (verdict["ratio"], label)], reverse=True)[:5]

    def fail(self, spec: Spec | None, failures: list[str], context: str) -> None:
        self.failures += 1
        print(f"\nFAILED ({context})")
        for failure in failures:
            print(f"  {failure}")
        if spec is not None:
            print(f"  {replay_command(spec, self.device)}", flush=True)

    def progress(self) -> None:
        elapsed = time.monotonic() - self.began
        print(f"{elapsed:4.0f} s: {self.calls} calls, {self.failures} failures", flush=True)

    def summary(self, seed: int) -> None:
        print(f"\n{self.calls} calls, {self.failures} failures, seed {seed}, {time.monotonic() - self.began:.0f} s")
        for name, counts in self.counts.items():
            print(f"  by {name}: " + ", ".join(f"{key} {count}" for key, count in counts.most_common()))
        print(f"  other bits in a second run: {self.differing['promised']} where the backend promises the same bits, "
              f"{self.differing['not promised']} where it does not")  # fmt: skip
        print(f"  over the budget once, but not with redrawn numbers: {self.lucky}")
        print("  closest to the budget: " + "; ".join(f"{ratio:.2f} {label}" for ratio, label in self.closest))


def search(arguments: argparse.Namespace) -> int:
    """Run workers until the time is up, and replace those that die; the number of failures."""
    events: queue.Queue = queue.Queue()
    tally, running = Tally(arguments), set()
    deadline = time.monotonic() + arguments.seconds

    def start(index: int, first_family: int) -> None:
        worker = Worker(index, arguments, first_family, deadline - time.monotonic())
        running.add(worker)
        threading.Thread(target=worker.listen, args=(events,), daemon=True).start()

    for index in range(arguments.workers):
        start(index, 0)
    shown = time.monotonic()
    while running:
        with contextlib.suppress(queue.Empty):
            worker, event = events.get(timeout=1)
            if event is None:
                running.discard(worker)
                words = worker.last_words()
                died = worker.process.returncode != 0 and not getattr(worker, "stopped", False)
                if died and worker.spec is not None:
                    died_with = f"the process died with code {worker.process.returncode}: {words}"
                    tally.fail(worker.spec, [died_with], "no result")
                elif died and worker.process.returncode != 3:
                    tally.fail(None, [f"worker {worker.index} died: {words}"], "between calls")
                if died and time.monotonic() < deadline - 5:
                    start(worker.index, worker.family + 1)
            elif "begin" in event:
                worker.spec, worker.family, worker.since = event["begin"], event["family"], time.monotonic()
            elif "end" in event:
                tally.end(worker.spec, event["end"])
                worker.spec = None
            elif "simplified" in event:
                print(f"  simplified: {replay_command(event['simplified'], arguments.device)}", flush=True)
        now = time.monotonic()
        for worker in list(running):
            late, stuck = (
                now > deadline + arguments.grace,
                worker.spec is not None and now - worker.since > arguments.limit,
            )
            if (late or stuck) and worker.process.poll() is None and not getattr(worker, "stopped", False):
                if stuck:
                    tally.fail(worker.spec, [f"no result after {arguments.limit} s"], "no result")
                worker.stopped = True
                worker.process.kill()
                if stuck and not late:
                    start(worker.index, worker.family + 1)
        if now - shown > 20:
            shown = now
            tally.progress()
    tally.summary(arguments.seed)
    return tally.failures


FIXABLE = [
    "dtype", "parameters", "width", "v_width", "terms", "values", "rank", "segments", "reach", "causal", "lengths",
    "documents", "mask", "dropout", "grads", "backend", "q_len", "k_len", "batch", "heads", "key_heads", "scale",
    "upstream", "upstream_scale", "layout",
]  # fmt: skip


def fixed_options(pairs: list[str]) -> Spec:
    """Of --fix NAME=VALUE, where the value is JSON or, if it is none, a string."""
    fixed = {}
    for pair in pairs:
        name, _, text = pair.partition("=")
        if name not in FIXABLE:
            raise ValueError(f"--fix: expected one of {', '.join(FIXABLE)}, got {name!r}.")
        try:
            fixed[name] = json.loads(text)
        except json.JSONDecodeError:
            fixed[name] = text
    return fixed


def parsed(argv: list[str] | None) -> argparse.Namespace:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", choices=["cuda", "cpu"], default=device)
    parser.add_argument("--workers", type=int, help="processes; by default the cores less two on a GPU, else one")
    parser.add_argument("--fix", action="append", default=[], metavar="NAME=VALUE", help="hold one drawn option")
    parser.add_argument("--replay", metavar="JSON", help="run the call of this description and nothing else")
    parser.add_argument("--simplify", type=float, default=15, help="seconds for simplifying a failure of a family")
    parser.add_argument("--limit", type=float, default=200, help="seconds after which a call counts as stuck")
    parser.add_argument("--grace", type=float, default=30, help="seconds for the last calls once the time is up")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--first-family", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    arguments.fixed = fixed_options(arguments.fix)
    if arguments.workers is None:
        arguments.workers = max(1, (os.cpu_count() or 1) - 2) if arguments.device == "cuda" else 1
    return arguments


def main(argv: list[str] | None = None) -> int:
    arguments = parsed(argv)
    if arguments.worker is not None:
        work(arguments)
        return 0
    if arguments.replay is not None:
        verdict = attempt(json.loads(arguments.replay), arguments.device)
        print(f"{verdict.backend}: " + ("; ".join(verdict.failures) or "passed"))
        print(f"  closest to the budget: {verdict.ratio:.3g}, {verdict.of}; repeats: {verdict.repeats}")
        return int(bool(verdict.failures))
    return int(search(arguments) > 0)


if __name__ == "__main__":
    sys.exit(main())
