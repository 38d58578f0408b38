"""Calls that run on torch's own kernels on a GPU: inputs that these misread, and whether calls are deterministic."""

from __future__ import annotations

import pytest
import torch
from oracle import CUDA, DEVICE

import headway as hw

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not CUDA, reason="needs a GPU")]


def draw(*size, dtype=torch.bfloat16):
    return torch.randn(size, device=DEVICE).to(dtype)


def run(q, k, v, make, parameters, backend, **options):
    """Output and gradients of all that need one."""
    wanted = [t for t in (q, k, v, *parameters) if t.requires_grad]
    output = hw.attention(q, k, v, make(*parameters), backend=backend, **options)
    return [output, *torch.autograd.grad(output, wanted, torch.ones_like(output) + output.detach())]


def compare(q, k, v, make, parameters, **options):
    found = run(q, k, v, make, parameters, "sdpa", **options)
    exact = [t.detach().double().requires_grad_(t.requires_grad) for t in (q, k, v, *parameters)]
    right = run(*exact[:3], make, exact[3:], "eager", **options)
    for ours, truth in zip(found, right, strict=True):
        assert (ours.double() - truth).norm() <= 0.02 * truth.norm() + 1e-6


def nothing():
    return None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shift", [1, 4])
@pytest.mark.parametrize("bias", [None, "dense"])
def test_rows_that_do_not_begin_at_16_bytes(dtype, shift, bias):
    q, k, v = (draw(3, 2, 129, 16 + shift, dtype=dtype)[..., shift:].requires_grad_() for _ in range(3))
    parameters = [] if bias is None else [draw(1, 2, 129, 129, dtype=dtype).requires_grad_()]
    compare(q, k, v, hw.Dense if parameters else nothing, parameters)


@pytest.mark.parametrize("scale", [-0.2, 0.0])
@pytest.mark.parametrize("masked", [False, True])
def test_scales_that_are_not_positive(scale, masked):
    q, k, v = (draw(2, 2, 128, 64).requires_grad_() for _ in range(3))
    options = {"lengths": torch.tensor([100, 128], device=DEVICE)} if masked else {"causal": True}
    found = run(q, k, v, nothing, [], "sdpa", scale=scale, **options)
    exact = [t.detach().double().requires_grad_() for t in (q, k, v)]
    for ours, truth in zip(found, run(*exact, nothing, [], "eager", scale=scale, **options), strict=True):
        assert (ours.double() - truth).norm() <= 0.02 * truth.norm() + 1e-6


def test_a_gradient_of_the_bias_alone():
    """Torch's kernels keep nothing for it, and their backward pass would read what is not there."""
    q, bias = draw(2, 2, 200, 80), draw(2, 2, 200, 200).requires_grad_()
    told = hw.explain(q, q, q, hw.Dense(bias))
    assert told.backend == "eager" and "need no gradient but the bias does" in told.others["sdpa"]
    hw.attention(q, q, q, hw.Dense(bias)).float().sum().backward()
    assert torch.isfinite(bias.grad).all()


CALLS = {
    "none": (nothing, (), "sdpa"),
    "dense of each sequence": (hw.Dense, ((4, 4, 512, 512),), "sdpa"),
    "relative values": (nothing, (), "eager"),
    "toeplitz": (hw.Toeplitz, ((1, 4, 1023),), "triton"),
}


@pytest.mark.parametrize("kind", CALLS)
def test_deterministic_mode_gives_the_same_bits(kind):
    make, sizes, backend = CALLS[kind]
    width = 80 if backend == "sdpa" else 64
    q, k, v = (draw(4, 4, 512, width).requires_grad_() for _ in range(3))
    parameters = [draw(*size, dtype=torch.float32).requires_grad_() for size in sizes]
    options = {"value_bias": hw.RelativeValues(draw(4, 9, width).float().requires_grad_())} if "values" in kind else {}
    told = hw.explain(q, k, v, make(*parameters), backend=backend, **options)
    assert told.deterministic == (backend == "triton")
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        told = hw.explain(q, k, v, make(*parameters), backend=backend, **options)
        assert told.deterministic
        first, second = (run(q, k, v, make, parameters, backend, **options) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(before)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


def test_deterministic_mode_rules_out_atomic_sums():
    q = draw(2, 2, 128, 64)
    bias = hw.Toeplitz(torch.zeros(1, 2, 255, device=DEVICE, requires_grad=True))
    assert not hw.explain(q, q, q, bias, backend="flex").deterministic
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(NotImplementedError, match="use_deterministic_algorithms"):
            hw.attention(q, q, q, bias, backend="flex")
    finally:
        torch.use_deterministic_algorithms(False)
