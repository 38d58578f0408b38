"""Trace calls of `hw.attention` as a GPU would get them, on a machine without one.

    python tests/unit/attention/traced_calls.py LIBRARY MAJOR

LIBRARY is `cuda_without_a_gpu.cpp` compiled; MAJOR the compute capability, 8 or 9. Calls are made of tensors that have
shapes and no memory, so that nothing runs but what plans a call, what operators say of their results, and autograd.
Prints a line of JSON for every group of calls: its name, the backends that were chosen, and what went wrong.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import json
import sys
import traceback
from pathlib import Path

ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)  # before torch
sys.path.append(str(Path(__file__).parents[2] / "gpu"))

import oracle  # noqa: E402
import torch  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import headway as hw  # noqa: E402

oracle.DEVICE = "cuda"
hopper = importlib.import_module("headway.attention.triton.hopper")
HOPPER = sys.argv[2] == "9"
hopper._capable = lambda device: HOPPER

BATCH, HEADS, KEY_HEADS = 2, 4, 2
HALF, SINGLE = torch.bfloat16, torch.float32


def of_edges(b, h, lq, lk, width):
    labels = oracle.ids(3, b, lq, lk)
    make = lambda keys, values: (hw.EdgeKeys(keys, labels), hw.EdgeValues(values, labels))  # noqa: E731
    return make, [oracle.draw(h, 3, width), oracle.draw(h, 3, width)]


oracle.KINDS |= {
    "dense of each sequence": lambda b, h, lq, lk: (hw.Dense, [oracle.draw(b, h, lq, lk)]),
    "edge keys and values": of_edges,
}
COMPILED_KINDS = [  # one for each way through the dispatch
    "none", "toeplitz", "low rank", "toeplitz and low rank", "dense", "dense and others", "clipped and two segments",
    "sum", "relative keys and values", "everything", "products and others", "dense of each sequence",
    "edge keys and values",
]  # fmt: skip


def call(kind, dtype, q_len, k_len, width, training, masking):
    """A call without arguments, and the tensors whose gradients it has."""
    wide = "edge" in kind
    sizes = (BATCH, HEADS, q_len, k_len)
    make, parameters = oracle.KINDS[kind](*sizes, width) if wide else oracle.made(kind, *sizes, width)
    shapes = ((HEADS, q_len), (KEY_HEADS, k_len), (KEY_HEADS, k_len))
    inputs = [oracle.draw(BATCH, heads, length, width).to(dtype) for heads, length in shapes]
    parameters = [t.float() for t in parameters]
    options = masks(q_len, k_len)[masking]
    if kind == "none" and masking == "nothing":
        options = {"dropout": 0.1} if training else {}

    def run(inputs, parameters):
        bias = make(*parameters)
        bias, value_bias = bias if isinstance(bias, tuple) else (bias, None)
        return hw.attention(*inputs, bias, value_bias, **options)

    def explain():
        bias = make(*parameters)
        bias, value_bias = bias if isinstance(bias, tuple) else (bias, None)
        return hw.explain(*inputs, bias, value_bias, **options).backend

    for t in (*inputs, *parameters):
        t.requires_grad_(training)
    return run, explain, inputs, parameters


def masks(q_len, k_len):
    """One of each kind; values do not matter."""
    lengths = torch.zeros(BATCH, dtype=torch.long, device="cuda")
    mask = torch.ones(BATCH, 1, 1, k_len, dtype=torch.bool, device="cuda")
    documents = (oracle.ids(3, BATCH, q_len), oracle.ids(3, BATCH, k_len))
    every = {"causal": True, "lengths": lengths, "mask": mask, "documents": documents}
    return {"nothing": {}, "all": every, **{name: {name: value} for name, value in every.items()}}


def trace(kinds, compiled, **sizes):
    """Make the calls, one by one or compiled into one graph, forward and backward. Gives the backends."""
    made = [call(kind, **sizes) for kind in kinds]
    inputs, parameters = [each[2] for each in made], [each[3] for each in made]

    def run_all(inputs, parameters):
        return [each[0](q, p) for each, q, p in zip(made, inputs, parameters, strict=True)]

    torch._dynamo.reset()
    run = torch.compile(run_all, fullgraph=True, dynamic=False, backend="eager") if compiled else run_all
    with torch.set_grad_enabled(sizes["training"]):
        chosen = [each[1]() for each in made]
        outputs = run(inputs, parameters)
    for (_, _, q, p), output in zip(made, outputs, strict=True):
        assert output.shape == q[0].shape and output.device.type == "cuda", (output.shape, output.device)
        if sizes["training"]:
            grads = torch.autograd.grad(output, [*q, *p], torch.empty_like(output), retain_graph=compiled)
            for t, grad in zip([*q, *p], grads, strict=True):
                assert (grad.shape, grad.dtype) == (t.shape, t.dtype), (t.shape, grad.shape)
    return chosen


def groups():
    """Name, whether compiled, and sizes: every dtype and mask as it is; few compiled, which takes ten seconds each."""
    for shape, (q_len, k_len) in {"one tile": (40, 33), "long": (200, 257)}.items():
        for width, training in itertools.product((64, 24, 80), (True, False)):
            name = f"{shape}, width {width}, {'training' if training else 'inference'}"
            sizes = {"q_len": q_len, "k_len": k_len, "width": width, "training": training}
            if (shape, width) in (("one tile", 24), ("one tile", 80)) or (width == 80 and not HOPPER):
                continue  # nothing that the others do not have
            if (width, training) in ({(64, True), (64, False), (80, True)} if HOPPER else {(24, True)}):
                yield f"compiled, {name}", True, {**sizes, "dtype": HALF, "masking": "nothing"}
            for dtype, masking in [(SINGLE, "nothing"), *((HALF, masking) for masking in masks(q_len, k_len))]:
                yield f"{name}, {dtype}, {masking}", False, {**sizes, "dtype": dtype, "masking": masking}


def report(name, kinds, compiled, sizes):
    try:
        found = {"chosen": dict(zip(kinds, trace(kinds, compiled, **sizes), strict=True))}
    except Exception as error:
        if len(kinds) > 1:  # which of them?
            for kind in kinds:
                report(name, [kind], compiled, sizes)
            return
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {str(error)[:1500]} ({Path(where.filename).name}:{where.lineno})"
        found = {"problem": f"{kinds[0]}: {text}"}
    print(json.dumps({"group": name, "kinds": kinds, **found}), flush=True)


def main():
    with FakeTensorMode():
        for name, compiled, sizes in groups():
            kinds = COMPILED_KINDS if compiled else list(oracle.KINDS)
            report(name, kinds, compiled, sizes)


if __name__ == "__main__":
    main()
