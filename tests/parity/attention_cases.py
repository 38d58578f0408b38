"""Biases, masks and sizes on which all of attention is tried, and what it gives on them.

Sizes are tiny, and the blockwise loops are cut into several blocks of queries and of sequences.
"""

import torch

import headway as hw
from headway.attention import BACKENDS
from headway.attention.blockwise import op

B, H, D, DV = 3, 4, 4, 3
TILES = {"two sequences": 2 * H * 4 * 13, "two heads": 2 * 4 * 13, "one head": 1}  # of 4 queries and up to 13 keys
# flex and native have no float64 and no gradient on a CPU (see tests/unit/attention); the GPU kernels are in tests/gpu
FAST = [name for name in BACKENDS if name not in ("eager", "flex", "triton", "native")]


def small_blocks(monkeypatch):
    """A fixture of every file that uses these cases: the blockwise loops go over several blocks."""
    torch.manual_seed(0)
    monkeypatch.setattr(op, "BLOCK_Q", 4)
    monkeypatch.setattr(op, "TILE", TILES["two sequences"])


def ids(high, *shape):
    return torch.randint(high, shape)


def param(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def products(m, n, vectors, table, of_keys=False):
    """Products with rows in any order, of which some offsets have none."""
    return hw.RelativeProducts(vectors, table, ids(7, m + n - 1) - 1, of_keys)


# kind -> a function of (B, H, Lq, Lk, D, Dv) that gives (bias, value_bias)
SCORES = {
    "dense": lambda b, h, m, n, d, dv: hw.Dense(param(b, h, m, n)),
    "shared dense": lambda b, h, m, n, d, dv: hw.Dense(param(1, 1, m, n)),
    "toeplitz": lambda b, h, m, n, d, dv: hw.Toeplitz(param(1, h, m + n - 1)),
    "toeplitz of each sequence": lambda b, h, m, n, d, dv: hw.Toeplitz(param(b, 1, m + n - 1)),
    "low rank": lambda b, h, m, n, d, dv: hw.LowRank(param(1, h, m, 2), param(1, h, n, 2)),
    "low rank, half shared": lambda b, h, m, n, d, dv: hw.LowRank(param(1, h, m, 2), param(b, 1, n, 2)),
    "segments": lambda b, h, m, n, d, dv: hw.SegmentTable(param(h, 3, 3), ids(3, b, m), ids(3, b, n)),
    "shared segments": lambda b, h, m, n, d, dv: hw.SegmentTable(param(1, 3, 3), ids(3, 1, m), ids(3, b, n)),
    "relative keys": lambda b, h, m, n, d, dv: hw.RelativeKeys(param(h, 5, d), q_start=2),
    "one relative key": lambda b, h, m, n, d, dv: hw.RelativeKeys(param(1, 1, d)),
    "far relative keys": lambda b, h, m, n, d, dv: hw.RelativeKeys(param(1, 61, d), q_start=9),
    "products of queries": lambda b, h, m, n, d, dv: products(m, n, param(b, h, m, 2), param(h, 6, 2)),
    "products of keys": lambda b, h, m, n, d, dv: products(m, n, param(b, 1, n, 2), param(h, 6, 2), of_keys=True),
    "edges": lambda b, h, m, n, d, dv: hw.EdgeKeys(param(h, 5, d), ids(5, b, m, n)),
    "shared edges": lambda b, h, m, n, d, dv: hw.EdgeKeys(param(1, 5, d), ids(5, 1, m, n)),
}
VALUES = {
    "relative values": lambda b, h, m, n, d, dv: hw.RelativeValues(param(h, 5, dv), q_start=1),
    "far relative values": lambda b, h, m, n, d, dv: hw.RelativeValues(param(1, 61, dv)),
    "edge values": lambda b, h, m, n, d, dv: hw.EdgeValues(param(h, 5, dv), ids(5, b, m, n)),
    "shared edge values": lambda b, h, m, n, d, dv: hw.EdgeValues(param(1, 5, dv), ids(5, 1, m, n)),
}


def total(table, *names):
    return lambda *sizes: sum(table[name](*sizes) for name in names)


KINDS = {"none": lambda *sizes: (None, None)}
KINDS |= {name: lambda *sizes, make=make: (make(*sizes), None) for name, make in SCORES.items()}
KINDS |= {name: lambda *sizes, make=make: (None, make(*sizes)) for name, make in VALUES.items()}
KINDS["sum"] = lambda *sizes: (total(SCORES, "toeplitz", "segments", "low rank, half shared")(*sizes), None)
KINDS["sum that meets q"] = lambda *sizes: (total(SCORES, "edges", "toeplitz", "relative keys")(*sizes), None)
KINDS["products of both sides"] = lambda *sizes: (
    total(SCORES, "products of queries", "toeplitz", "products of keys")(*sizes),
    None,
)
KINDS["scores and values"] = lambda *sizes: (
    total(SCORES, "relative keys", "shared dense", "toeplitz of each sequence")(*sizes),
    total(VALUES, "relative values", "shared edge values")(*sizes),
)


def free_mask(m, n):
    mask = torch.rand(B, H, m, n) > 0.4
    mask[0, :, 1] = False  # one query that may attend to nothing, in every head
    mask[1, 0] = False  # and a whole head of one sequence
    return mask


def documents(m, n):
    """Queries of document 2 have no key at all."""
    return ids(3, B, m).sort().values, ids(2, B, n).sort().values


def everything(m, n):
    return {
        "mask": free_mask(m, n),
        "causal": True,
        "lengths": torch.tensor([3, n, n - 1]),
        "documents": documents(m, n),
        "scale": 0.3,
    }


# name -> (Lq, Lk, arguments)
MASKS = {
    "none": (9, 13, lambda m, n: {}),
    "none, more queries": (13, 9, lambda m, n: {"scale": -0.2}),
    "causal": (9, 9, lambda m, n: {"causal": True}),
    "causal, more keys": (9, 13, lambda m, n: {"causal": True}),
    "causal, more queries": (13, 9, lambda m, n: {"causal": True}),
    "one query": (1, 13, lambda m, n: {"causal": True}),
    "one key": (9, 1, lambda m, n: {}),
    "lengths": (9, 13, lambda m, n: {"lengths": torch.tensor([0, 5, n])}),
    "mask": (9, 13, lambda m, n: {"mask": free_mask(m, n)}),
    "padding mask": (9, 13, lambda m, n: {"mask": torch.rand(B, 1, 1, n) > 0.5}),
    "documents": (13, 13, lambda m, n: {"documents": ids(3, B, m).sort().values}),
    "documents, two sides": (13, 9, lambda m, n: {"documents": documents(m, n)}),
    "together": (9, 13, everything),
    "together, more queries": (13, 9, everything),
}


def learned(*structures):
    """Every tensor of the biases that has a gradient."""
    return [t for part in structures if part is not None for t in part.tensors.values() if t.is_floating_point()]


def results(inputs, parts, upstream, **options):
    """The output and the gradient of every input and parameter; zeros where nothing depends on it."""
    output = hw.attention(*inputs, *parts, **options)
    wanted = [*inputs, *learned(*parts)]
    grads = torch.autograd.grad(output, wanted, upstream, allow_unused=True)
    return [output] + [torch.zeros_like(w) if g is None else g for w, g in zip(wanted, grads, strict=True)]


def can_run(backend, inputs, parts):
    try:
        hw.explain(*inputs, *parts, backend=backend)
    except NotImplementedError:
        return False
    return True


def sizes_of(m, n):
    return B, H, m, n, D, DV


def call(m, n, kv_heads=H):
    return [param(B, H, m, D), param(B, kv_heads, n, D), param(B, kv_heads, n, DV)]
