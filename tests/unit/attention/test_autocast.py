"""Autocast lowers q, k and v. What a bias adds keeps its digits, now and in what is kept for later."""

import pytest
import torch

import headway as hw

LENGTH = 160  # beyond the short sequences, so that every path of training is its own


def drawn(*size):
    return torch.randn(size, generator=torch.Generator().manual_seed(len(size)))


def biases():
    table = drawn(1, 9, 16)
    return {
        "low rank": hw.LowRank(drawn(1, 2, LENGTH, 32).requires_grad_(), drawn(1, 2, LENGTH, 32).requires_grad_()),
        "relative keys": hw.RelativeKeys(table.requires_grad_()),
    }


def relative_error(found, right):
    found, right = found.detach().double(), right.detach().double()
    return float((found - right).norm() / right.norm())


@pytest.mark.parametrize("backend", ["auto", "blockwise", "sdpa", "matrix", "eager"])
@pytest.mark.parametrize("kind", ["low rank", "relative keys"])
def test_as_the_same_call_in_half_precision(kind, backend):
    bias = biases()[kind]
    qkv = drawn(2, LENGTH, 3, 2, 16).requires_grad_()
    wanted = [qkv, *bias.tensors.values()]
    plain = hw.self_attention(qkv.bfloat16(), bias, backend=backend)
    with torch.autocast("cpu", torch.bfloat16):
        found = hw.self_attention(qkv, bias, backend=backend)
    assert torch.equal(found, plain)
    upstream = drawn(2, 2, LENGTH, 16).bfloat16()
    grads = [torch.autograd.grad(output, wanted, upstream) for output in (found, plain)]
    assert all(relative_error(mine, theirs) < 0.005 for mine, theirs in zip(*grads, strict=True))


def test_what_is_kept_for_inference_does_not_depend_on_autocast():
    enc = hw.encoding("diet-abs", num_layers=1, num_heads=2, head_dim=16, max_length=LENGTH)
    for parameter in enc.parameters():
        torch.nn.init.normal_(parameter)
    q, k, v = drawn(3, 2, 2, LENGTH, 16)
    with torch.no_grad():
        with torch.autocast("cpu", torch.bfloat16):
            hw.attention(q, k, v, enc.bias(0, LENGTH, LENGTH), backend="sdpa")
        found = hw.attention(q, k, v, enc.bias(0, LENGTH, LENGTH), backend="sdpa")
        right = hw.attention(q, k, v, enc.bias(0, LENGTH, LENGTH), backend="eager")
    torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("masking", ["causal", "lengths"])
def test_digits_go_by_what_is_seen(masking):
    """A bias that is large only where nothing is seen, rounded to half precision."""
    q, k, v = drawn(3, 2, 2, LENGTH, 16).bfloat16()
    if masking == "causal":
        options = {"causal": True}
        bias = hw.Toeplitz(torch.cat([drawn(1, 2, LENGTH), 128 + drawn(1, 2, LENGTH - 1)], -1))
    else:
        options = {"lengths": torch.tensor([100, 70])}
        matrix = drawn(1, 2, LENGTH, LENGTH)
        matrix[..., 100:] = 70000.0
        bias = hw.Dense(matrix)
    right = hw.attention(q.double(), k.double(), v.double(), bias, backend="eager", **options)
    for backend in ("auto", "sdpa"):
        assert relative_error(hw.attention(q, k, v, bias, backend=backend, **options), right) < 0.01
