"""Attention against its formula: the oracle against loops in Python, every other backend against the oracle."""

import itertools
import math

import pytest
import torch
from attention_cases import (
    DV,
    FAST,
    KINDS,
    MASKS,
    TILES,
    B,
    H,
    call,
    can_run,
    ids,
    learned,
    param,
    results,
    sizes_of,
    small_blocks,
)
from torch.testing import assert_close

import headway as hw
from headway.attention.blockwise import op

_small_blocks = pytest.fixture(autouse=True)(small_blocks)


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
        for tile, kept in itertools.product(TILES, (2**24, 0)) if backend == "blockwise" else [("whole", 0)]:
            monkeypatch.setattr(op, "TILE", TILES.get(tile))
            monkeypatch.setattr(op, "KEPT", kept)
            for got, want in zip(results(inputs, parts, upstream, backend=backend, **options), expected, strict=True):
                assert torch.isfinite(got).all()
                assert_close(
                    got, want, rtol=1e-9, atol=1e-9, msg=lambda text, at=(backend, tile, kept): f"{at}: {text}"
                )


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_gradients_of_a_bias_where_few_keys_are_seen(dtype):
    """Packed texts of two tokens: in dp - g . out nearly everything cancels, so that both must be exact."""
    length = 200
    q, k, v, upstream = (t.to(dtype) for t in torch.randn(4, 4, H, length, 16))
    values = torch.randn(1, H, 2 * length - 1)
    texts = (torch.arange(length) // 2).expand(4, -1)

    def gradient(kind, backend):
        learned = values.to(torch.promote_types(kind, torch.float32)).requires_grad_()
        bias = hw.Toeplitz(learned)
        output = hw.attention(q.to(kind), k.to(kind), v.to(kind), bias, documents=texts, backend=backend)
        return torch.autograd.grad(output, learned, upstream.to(kind))[0]

    exact = gradient(torch.float64, "eager")
    of_oracle = (gradient(dtype, "eager") - exact).norm()
    for backend in ("blockwise", "matrix"):
        assert (gradient(dtype, backend) - exact).norm() < 0.1 * of_oracle, backend


@pytest.mark.parametrize("backend", ["eager", *FAST])
def test_large_scores_stay_finite(backend):
    """Scores of thousands: a softmax that forgets to subtract the maximum overflows."""
    q, k, v = (t.detach() * 60 for t in call(9, 13))
    bias = hw.Toeplitz(torch.randn(1, H, 21, dtype=torch.float64) * 3000)
    want = hw.attention(q, k, v, bias, causal=True, backend="eager")
    got = hw.attention(q.float(), k.float(), v.float(), bias.to(torch.float32), causal=True, backend=backend)
    assert torch.isfinite(got).all()
    assert_close(got.double(), want, rtol=1e-3, atol=1e-3)
