"""Ways that attention takes beside the plain one: a flipped Toeplitz bias, a frozen one, other layouts, `auto`."""

import pytest
import torch
from attention_cases import DV, FAST, KINDS, SCORES, B, D, H, call, can_run, param, results, sizes_of, small_blocks
from torch.testing import assert_close

import headway as hw
from headway.attention import call as call_module
from headway.attention import sdpa as sdpa_module

_small_blocks = pytest.fixture(autouse=True)(small_blocks)


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
