"""Attention against its formula: the oracle against loops in Python, every other backend against the oracle.

Sizes are tiny, and the blockwise loops are cut into several blocks of queries and of sequences.
"""

import itertools
import math

import pytest
import torch
from torch.testing import assert_close

import headway as hw
from headway.attention import BACKENDS
from headway.attention import call as call_module
from headway.attention import sdpa as sdpa_module
from headway.attention.blockwise import op

B, H, D, DV = 3, 4, 4, 3
TILES = {"two sequences": 2 * H * 4 * 13, "two heads": 2 * 4 * 13, "one head": 1}  # of 4 queries and up to 13 keys
# flex and native have no float64 and no gradient on a CPU (see tests/unit/attention); the GPU kernels are in tests/gpu
FAST = [name for name in BACKENDS if name not in ("eager", "flex", "triton", "native")]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(op, "BLOCK_Q", 4)
    monkeypatch.setattr(op, "TILE", TILES["two sequences"])


def ids(high, *shape):
    return torch.randint(high, shape)


def param(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


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


# The oracle against loops.


def test_the_oracle_is_the_formula():
    """Every feature at once, one pair at a time, in Python's own numbers."""
    b_, h_, m, n, d, dv, groups, clip = 2, 4, 5, 6, 3, 2, 2, 1
    q, k, v = param(b_, h_, m, d), param(b_, h_ // groups, n, d), param(b_, h_ // groups, n, dv)
    values, left, right, matrix = param(1, h_, m + n - 1), param(1, h_, m, 2), param(b_, 1, n, 2), param(1, 1, m, n)
    table, q_segments, k_segments = param(h_, 3, 3), ids(3, b_, m), ids(3, b_, n)
    keys, vectors, start = param(h_, 2 * clip + 1, d), param(1, 2 * clip + 1, dv), 1
    edge_keys, edge_values, labels = param(1, 4, d), param(h_, 4, dv), ids(4, b_, m, n)
    mask = torch.rand(b_, 1, m, n) > 0.3
    lengths, docs, scale = torch.tensor([n, n - 1]), (ids(2, b_, m), ids(2, b_, n)), 0.6
    dot = lambda x, y: sum(s * t for s, t in zip(x.tolist(), y.tolist(), strict=True))  # noqa: E731

    expected = torch.zeros(b_, h_, m, dv, dtype=torch.float64)
    for b, h, i in itertools.product(range(b_), range(h_), range(m)):
        weights, joined = {}, {}
        for j in range(n):
            row = min(max(j - (i + start), -clip), clip) + clip
            if mask[b, 0, i, j] and j - i <= n - m and j < lengths[b] and docs[0][b, i] == docs[1][b, j]:
                score = scale * dot(q[b, h, i], k[b, h // groups, j])
                score += (
                    values[0, h, j - i + m - 1].item() + dot(left[0, h, i], right[b, 0, j]) + matrix[0, 0, i, j].item()
                )
                score += table[h, q_segments[b, i], k_segments[b, j]].item()
                score += scale * dot(q[b, h, i], keys[h, row]) + scale * dot(q[b, h, i], edge_keys[0, labels[b, i, j]])
                weights[j] = math.exp(score)
                joined[j] = v[b, h // groups, j] + vectors[0, row] + edge_values[h, labels[b, i, j]]
        for j, weight in weights.items():
            expected[b, h, i] += weight / sum(weights.values()) * joined[j].detach()
    assert (expected == 0).all(-1).any(), "one row should see nothing"

    bias = sum(
        [
            hw.Toeplitz(values),
            hw.LowRank(left, right),
            hw.Dense(matrix),
            hw.SegmentTable(table, q_segments, k_segments),
            hw.RelativeKeys(keys, q_start=start),
            hw.EdgeKeys(edge_keys, labels),
        ]
    )
    value_bias = hw.RelativeValues(vectors, q_start=start) + hw.EdgeValues(edge_values, labels)
    masking = {"mask": mask, "causal": True, "lengths": lengths, "documents": docs, "scale": scale}
    for backend in ("eager", "blockwise"):
        got = hw.attention(q, k, v, bias, value_bias, backend=backend, **masking)
        assert_close(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_the_oracle_is_differentiable_twice(kind):
    b, h, m, n, d, dv = 2, 2, 2, 3, 2, 1
    parts = KINDS[kind](b, h, m, n, d, dv)
    inputs = [param(b, h, m, d), param(b, 1, n, d), param(b, 1, n, dv)]
    mask = torch.tensor([[[[True, True, False], [True, False, True]]], [[[True, True, True], [False, False, False]]]])
    floats = [learned(part) for part in parts]

    def run(q, k, v, *tensors):
        fresh = iter(tensors)
        rebuilt = [
            part
            if part is None
            else part.rebuilt([next(fresh) if t.is_floating_point() else t for t in part.tensors.values()])
            for part in parts
        ]
        return hw.attention(q, k, v, *rebuilt, mask=mask, backend="eager")

    every = [*inputs, *floats[0], *floats[1]]
    assert torch.autograd.gradcheck(run, every, fast_mode=True)
    assert torch.autograd.gradgradcheck(run, every, fast_mode=True)


# Every backend against the oracle.


@pytest.mark.parametrize(
    ("masking", "kv_heads"),
    [*itertools.product(MASKS, [H]), *itertools.product(["none", "causal", "together"], [2]), ("together", 1)],
)
@pytest.mark.parametrize("kind", KINDS)
def test_backends_agree(monkeypatch, kind, masking, kv_heads):
    m, n, options = MASKS[masking]
    options = options(m, n)
    inputs, parts = call(m, n, kv_heads), KINDS[kind](*sizes_of(m, n))
    upstream = torch.randn(B, H, m, DV, dtype=torch.float64)
    expected = results(inputs, parts, upstream, backend="eager", **options)
    assert all(torch.isfinite(t).all() for t in expected)
    backends = [name for name in FAST if can_run(name, inputs, parts)]
    assert "blockwise" in backends
    assert ("sdpa" in backends) == (parts[1] is None)
    for backend in backends:
        for tile in TILES if backend == "blockwise" else ["whole"]:
            monkeypatch.setattr(op, "TILE", TILES.get(tile))
            for got, want in zip(results(inputs, parts, upstream, backend=backend, **options), expected, strict=True):
                assert torch.isfinite(got).all()
                assert_close(got, want, rtol=1e-9, atol=1e-9, msg=lambda text, at=(backend, tile): f"{at}: {text}")


@pytest.mark.parametrize("kind", ["toeplitz", "dense", "low rank", "scores and values"])
def test_only_some_tensors_are_learned(kind):
    """A gradient that nobody asks for is not made, and the others stay right."""
    bias, value_bias = KINDS[kind](*sizes_of(9, 13))
    inputs, upstream = call(9, 13), torch.randn(B, H, 9, DV, dtype=torch.float64)
    first = learned(bias)[0]
    for tensor in [inputs[1], *learned(bias)[1:]]:
        tensor.requires_grad_(False)
    outcome = []
    for backend in ("eager", "blockwise"):
        output = hw.attention(*inputs, bias, value_bias, backend=backend)
        outcome.append(torch.autograd.grad(output, [inputs[0], inputs[2], first], upstream))
    for got, want in zip(*outcome, strict=True):
        assert_close(got, want, rtol=1e-9, atol=1e-9)
    bias = bias.detach()
    outcome = [
        torch.autograd.grad(hw.attention(*inputs, bias, backend=b), [inputs[0], inputs[2]], upstream)
        for b in ("eager", *FAST)
    ]
    for others in outcome[1:]:
        for got, want in zip(others, outcome[0], strict=True):
            assert_close(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("kind", "backend"),
    [
        *itertools.product(["none", "toeplitz", "sum that meets q"], ["eager", *FAST]),
        ("scores and values", "eager"),
        ("scores and values", "blockwise"),
    ],
)
def test_rows_that_see_nothing_are_zero_and_give_no_gradient(kind, backend):
    inputs, parts = call(9, 13), KINDS[kind](*sizes_of(9, 13))
    mask = torch.ones(B, H, 9, 13, dtype=torch.bool)
    mask[0] = False
    mask[1, 2, 5] = False
    output = hw.attention(*inputs, *parts, mask=mask, backend=backend)
    assert (output[0] == 0).all()
    assert (output[1, 2, 5] == 0).all()
    assert (output[1, 2, 4] != 0).all()
    every = [*inputs, *learned(*parts)]
    unseen = torch.zeros_like(output)
    unseen[0], unseen[1, 2, 5] = 1.0, 1.0
    for grad in torch.autograd.grad(output, every, unseen, retain_graph=True):
        assert (grad == 0).all()
    for grad in torch.autograd.grad(output, inputs, torch.ones_like(output)):
        assert (grad[0] == 0).all()
        assert (grad[1] != 0).any()


@pytest.mark.parametrize("kind", ["none", "toeplitz", "scores and values"])
def test_blockwise_refuses_a_second_derivative(kind):
    inputs, parts = call(9, 13), KINDS[kind](*sizes_of(9, 13))
    output = hw.attention(*inputs, *parts, backend="blockwise")
    (grad,) = torch.autograd.grad(output.sum(), inputs[:1], create_graph=True)
    with pytest.raises(NotImplementedError, match=r"no second derivative\. Use backend='eager'"):
        grad.sum().backward()


# Precision.


def error(got, want):
    return (got.double() - want).abs().max().item()


@pytest.mark.parametrize(
    ("dtype", "own_dtype"),
    [
        (torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float16),
        (torch.bfloat16, torch.float32),  # as under autocast: parameters keep their precision
        (torch.float16, torch.float32),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", KINDS)
def test_error_is_that_of_the_oracle(kind, dtype, own_dtype):
    """At most twice the oracle's error (gradients: three times) in the same dtype, plus one step of rounding."""
    m, n = 9, 13
    rounded = [t.detach().to(dtype) for t in call(m, n)]
    parts = [None if part is None else part.detach().to(own_dtype) for part in KINDS[kind](*sizes_of(m, n))]
    upstream = torch.randn(B, H, m, DV).to(dtype)

    def run(dtype, parameter_dtype, backend):
        inputs = [t.to(dtype).requires_grad_() for t in rounded]
        own = [
            None if p is None else p.rebuilt([
                t.to(parameter_dtype).requires_grad_() if t.is_floating_point() else t for t in p.tensors.values()
            ])
            for p in parts
        ]  # fmt: skip
        return results(inputs, own, upstream.to(dtype), backend=backend, causal=True)

    exact = run(torch.float64, torch.float64, "eager")
    eager = run(dtype, own_dtype, "eager")
    for backend in FAST:
        if not can_run(backend, rounded, parts):
            continue
        got = run(dtype, own_dtype, backend)
        for index, (x, reference, want) in enumerate(zip(got, eager, exact, strict=True)):
            assert x.dtype == reference.dtype
            size = want.abs().max().item()
            size = size if size > 1e-12 else 1.0  # terms of size one that cancel: a bias that is equal for all keys
            step = torch.finfo(dtype).eps * size
            budget = (2 if index == 0 else 3) * error(reference, want) + step
            assert error(x, want) <= budget, f"{backend}, result {index}: {error(x, want)} > {budget}"


@pytest.mark.parametrize("backend", ["eager", *FAST])
def test_large_scores_stay_finite(backend):
    """Scores of thousands: a softmax that forgets to subtract the maximum overflows."""
    q, k, v = (t.detach() * 60 for t in call(9, 13))
    bias = hw.Toeplitz(torch.randn(1, H, 21, dtype=torch.float64) * 3000)
    want = hw.attention(q, k, v, bias, causal=True, backend="eager")
    got = hw.attention(q.float(), k.float(), v.float(), bias.to(torch.float32), causal=True, backend=backend)
    assert torch.isfinite(got).all()
    assert_close(got.double(), want, rtol=1e-3, atol=1e-3)


# Paths of their own.


@pytest.mark.parametrize("kv_heads", [H, 2])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("m", "n"), [(9, 9), (9, 13), (13, 9), (1, 13)])
@pytest.mark.parametrize("shared", [(1, H), (B, 1), (1, 1)])
def test_the_flipped_toeplitz_is_the_bias(monkeypatch, shared, m, n, causal, kv_heads):
    """A fixed Toeplitz bias is read in place, with strides of (1, 1) and the queries in reverse."""
    monkeypatch.setattr(sdpa_module, "FLIP_FROM", 1)
    flipped = []
    original = sdpa_module._flipped
    monkeypatch.setattr(sdpa_module, "_flipped", lambda request: flipped.append(1) or original(request))
    inputs = [
        t.detach().float().requires_grad_()
        for t in (param(B, H, m, D), param(B, kv_heads, n, D), param(B, kv_heads, n, D))
    ]
    bias = hw.Toeplitz(torch.randn(*shared, m + n - 1))
    upstream = torch.randn(B, H, m, D)
    output = hw.attention(*inputs, bias, causal=causal, backend="sdpa")
    got = [output, *torch.autograd.grad(output, inputs, upstream)]
    assert bool(flipped) == (not causal or m <= n)
    oracle = hw.attention(*inputs, bias, causal=causal, backend="eager")
    for x, want in zip(got, [oracle, *torch.autograd.grad(oracle, inputs, upstream)], strict=True):
        assert_close(x, want, rtol=1e-5, atol=1e-5)


def test_what_the_flipped_path_does_not_take(monkeypatch):
    monkeypatch.setattr(sdpa_module, "FLIP_FROM", 1)
    monkeypatch.setattr(sdpa_module, "_flipped", lambda request: pytest.fail("flipped"))
    q = torch.randn(B, H, 9, D)
    fixed = hw.Toeplitz(torch.randn(1, H, 17))
    hw.attention(
        q, q, q, fixed.rebuilt([fixed.values.clone().requires_grad_()]), backend="sdpa"
    )  # its gradient is wanted
    hw.attention(q, q, q, fixed, lengths=torch.tensor([1, 2, 9]), backend="sdpa")
    hw.attention(q, q, q[..., :2], fixed, backend="sdpa")
    hw.attention(q.double(), q.double(), q.double(), fixed, backend="sdpa")
    hw.attention(q, q, q, fixed, dropout=0.5, backend="sdpa")


@pytest.mark.parametrize("backend", ["eager", *FAST])
def test_a_frozen_bias_gives_the_same(backend):
    inputs = [t.detach() for t in call(9, 13)]
    bias = (SCORES["toeplitz"](*sizes_of(9, 13)) + SCORES["segments"](*sizes_of(9, 13))).bind(9, 13)
    want = hw.attention(*inputs, bias.detach(), causal=True, backend="eager")
    frozen = bias.frozen()
    for _ in range(2):
        assert_close(hw.attention(*inputs, frozen, causal=True, backend=backend), want)


@pytest.mark.parametrize("backend", ["eager", *FAST])
def test_layouts_do_not_matter(backend):
    """Inputs as a projection leaves them, (B, L, H, D) transposed, and parameters that are views."""
    inputs = [t.detach() for t in call(9, 13)]
    strided = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in inputs]
    values = torch.randn(1, H, 42, dtype=torch.float64)
    left, right = torch.randn(1, H, 2, 9, dtype=torch.float64), torch.randn(1, H, 2, 13, dtype=torch.float64)
    view = hw.Toeplitz(values[..., ::2]) + hw.LowRank(left.transpose(-1, -2), right.transpose(-1, -2))
    view = view + hw.Dense(torch.randn(1, 1, 1, 13, dtype=torch.float64).expand(B, H, 9, -1))
    plain = view.rebuilt([t.contiguous() for t in view.tensors.values()])
    want = hw.attention(*inputs, plain, backend="eager")
    assert_close(hw.attention(*strided, view, backend=backend), want)


@pytest.mark.parametrize("kind", ["toeplitz", "sum that meets q", "scores and values"])
def test_layouts_of_the_upstream_gradient_do_not_matter(kind):
    """Ones that are one number seen everywhere, as sum() gives, and (B, L, H, D), as an output projection gives."""
    inputs, parts = call(9, 13), KINDS[kind](*sizes_of(9, 13))
    for upstream in (
        torch.ones((), dtype=torch.float64).expand(B, H, 9, DV),
        torch.randn(B, 9, H, DV, dtype=torch.float64).transpose(1, 2),
    ):
        want = results(inputs, parts, upstream, backend="eager")
        for backend in FAST:
            if can_run(backend, inputs, parts):
                for got, expected in zip(results(inputs, parts, upstream, backend=backend), want, strict=True):
                    assert_close(got, expected, rtol=1e-9, atol=1e-9)


def test_auto_is_one_of_them(monkeypatch):
    """Whatever is chosen, the result is the same."""
    monkeypatch.setattr(call_module, "SHORT", 0)
    for kind in KINDS:
        inputs, parts = call(9, 13), KINDS[kind](*sizes_of(9, 13))
        want = hw.attention(*inputs, *parts, causal=True, backend="eager")
        assert_close(hw.attention(*inputs, *parts, causal=True), want, rtol=1e-9, atol=1e-9)
