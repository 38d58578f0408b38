"""From a call's description to its tensors and its results: on any backend, with memory that is NaN before the call."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import torch
from call_drawing import Spec
from torch import Tensor

import headway as hw

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


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


def _products(term: Spec, spec: Spec, numbers: Numbers) -> tuple[Any, list[Tensor]]:
    """Products with vectors of offsets; the sum of two or three has about size 1."""
    q_len, k_len, width, of_keys = spec["q_len"], spec["k_len"], term["vectors_width"], term["of_keys"]
    vectors = width**-0.5 * numbers.normal(*_sizes(term, "vectors", spec), k_len if of_keys else q_len, width)
    count = q_len + k_len - 1 if term["rows"] == "every offset" else min(12, q_len + k_len)
    table = numbers.normal(_sizes(term, "table", spec)[1], count, width)
    if term["rows"] == "every offset":
        return lambda v, t: hw.RelativeProducts.of_every_offset(v, t, of_keys=of_keys), [vectors, table]
    if term["rows"] == "buckets":
        rows = numbers.ids(count + 1, q_len + k_len - 1) - 1
        return lambda v, t: hw.RelativeProducts(v, t, rows, of_keys), [vectors, table]
    clipped = {"left": count // 2, "zero_beyond": term["rows"] == "zero beyond", "of_keys": of_keys}
    return lambda v, t: hw.RelativeProducts.clipped(v, t, q_len, k_len, **clipped), [vectors, table]


def _edges(term: Spec, spec: Spec, numbers: Numbers) -> tuple[Any, list[Tensor]]:
    keys = term["kind"] == "edge keys"
    table = numbers.normal(_sizes(term, "table", spec)[1], term["count"], spec["width" if keys else "v_width"])
    labels = numbers.ids(term["count"], _sizes(term, "labels", spec)[0], spec["q_len"], spec["k_len"])
    return lambda t: (hw.EdgeKeys if keys else hw.EdgeValues)(t, labels), [table]


BUILDERS = {
    "toeplitz": _toeplitz, "clipped": _clipped, "dense": _dense, "low rank": _low_rank, "segments": _segments,
    "relative keys": _relative, "relative values": _relative, "products": _products,
    "edge keys": _edges, "edge values": _edges,
}  # fmt: skip


def run(
    spec: Spec, inputs: Inputs, backend: str, dtype: torch.dtype, layout: str = "contiguous", *, backward: bool = True
) -> dict[str, Tensor]:
    """The output and the wanted gradients of one call, by name."""
    wanted = spec["grads"]
    own = parameter_dtype(spec, dtype)
    leaves = [t.requires_grad_(wanted in ("all", "inputs")) for t in laid_out(inputs.qkv, dtype, layout)]
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


def laid_out(qkv: list[Tensor], dtype: torch.dtype, layout: str) -> list[Tensor]:
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
