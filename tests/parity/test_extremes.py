"""Numbers at the ends of their range: low biases beside masks, large constants, padding that is no number."""

import pytest
import torch

import headway as hw

B, H, L, D = 2, 2, 6, 8
LOW = {
    torch.float32: torch.finfo(torch.float32).min,
    torch.bfloat16: torch.finfo(torch.float32).min,
    torch.float16: -1e9,
}
BACKENDS = ("auto", "sdpa", "matrix", "blockwise", "eager")


def qkv(length=L, *, dtype=torch.float32, heads=H, seed=0):
    torch.manual_seed(seed)
    return [torch.randn(B, heads, length, D).to(dtype) for heads in (H, heads, heads)]


def oracle(q, k, v, bias, allowed):
    """In float64, and of what is allowed alone."""
    scores = q.double() @ k.double().mT * D**-0.5 + bias.double()
    output = torch.zeros(*q.shape[:3], D, dtype=torch.float64)
    for at in range(q.shape[2]):
        seen = allowed[at]
        if seen.any():
            weights = scores[:, :, at, seen].softmax(-1)
            output[:, :, at] = (weights[:, :, None] @ v.double()[:, :, seen])[:, :, 0]
    return output


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("length", [L, 200])
def test_an_additive_mask_of_padding_lets_nobody_see_the_future(dtype, backend, length, training):
    """Queries of left padding are allowed padding alone, with a bias as low as there is."""
    q, k, v = qkv(length, dtype=dtype)
    matrix = torch.zeros(1, 1, length, length)
    matrix[..., :3] = LOW[dtype]
    bias = hw.Dense(matrix.requires_grad_(training))
    allowed = torch.ones(length, length, dtype=torch.bool).tril()
    got = hw.attention(q, k, v, bias, causal=True, backend=backend)
    later = v.clone()
    later[:, :, 3:] += 100.0
    moved = hw.attention(q, k, later, bias, causal=True, backend=backend)
    assert torch.equal(got[:, :, :3], moved[:, :, :3])
    want = oracle(q, k, v, matrix.detach(), allowed)
    close = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}[dtype]
    torch.testing.assert_close(got[:, :, 3:].double(), want[:, :, 3:], rtol=0.0, atol=close)
    if dtype == torch.float32:  # which can tell scores beside such a bias apart no better than half precision can
        return
    assert got.isfinite().all()


@pytest.mark.parametrize("constant", [10.0, 100.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_constant_in_a_bias_costs_no_digits(dtype, constant):
    """The softmax does not see it: the error stays that of the same bias without it, in float32 parameters."""
    q, k, v = qkv(dtype=dtype)
    values = torch.randn(1, H, 2 * L - 1)
    allowed = torch.ones(L, L, dtype=torch.bool)
    errors = []
    for added in (0.0, constant):
        bias = hw.Toeplitz(values + added)
        got = hw.attention(q, k, v, bias, backend="sdpa").double()
        errors.append((got - oracle(q, k, v, bias.dense(), allowed)).abs().max().item())
    assert errors[1] <= 1.5 * errors[0] + torch.finfo(dtype).eps


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("kind", ["none", "toeplitz"])
@pytest.mark.parametrize("heads", [1, H])
@pytest.mark.parametrize("q_len", [1, L])
def test_padding_that_is_no_number_stays_where_it_is(q_len, heads, kind, bad):
    """A key cache that nobody has filled yet."""
    q, k, v = qkv(heads=heads)
    q = q[:, :, :q_len]
    lengths = torch.tensor([4, L])
    bias = hw.Toeplitz(torch.randn(1, H, q_len + L - 1)) if kind == "toeplitz" else None
    want = hw.attention(q, k, v, bias, lengths=lengths, backend="sdpa")
    k[0, :, 4:] = v[0, :, 4:] = bad
    torch.testing.assert_close(hw.attention(q, k, v, bias, lengths=lengths, backend="sdpa"), want)


def test_scores_beyond_float16_are_those_of_their_scaled_queries():
    q, k, v = qkv(dtype=torch.float16)
    q, k = q.sign() * 40, k.sign() * 40
    q[:, :, 0], k[:, :, 0] = 40, 40  # q . k = 102,400
    output = hw.attention(q, k, v, backend="eager")
    assert output.isfinite().all()
    torch.testing.assert_close(output, hw.attention(q, k, v, backend="matrix"), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("length", [L, 200])
def test_a_scale_of_zero_leaves_the_bias_alone(length, backend):
    """Attention by position alone; whatever was in memory before is no score."""
    q, k, v = qkv(length)
    values = torch.randn(1, H, 2 * length - 1, requires_grad=True)
    for _ in range(3):
        hw.attention(10 * q, 10 * k, v, hw.Toeplitz(values), backend=backend)
        got = hw.attention(q, k, v, hw.Toeplitz(values), scale=0.0, backend=backend)
        want = hw.Toeplitz(values).bind(length, length).dense().softmax(-1) @ v
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
        grads = [torch.autograd.grad(each.square().sum(), values)[0] for each in (got, want)]
        torch.testing.assert_close(*grads, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", ["eager", "sdpa", "matrix", "blockwise"])
@pytest.mark.parametrize("kind", ["low rank", "sum", "large float16 factors"])
def test_a_bias_of_few_digits_is_added_with_all_of_the_calls(kind, backend):
    """What is made of its numbers is not rounded to their dtype: products of two, and sums of terms."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 200, 16) for _ in range(3))
    left, right = (torch.randn(1, 2, 200, 16).bfloat16() for _ in range(2))
    bias = {
        "low rank": hw.LowRank(left, right),
        "sum": hw.Toeplitz(torch.randn(1, 2, 399).bfloat16())
        + hw.Dense(torch.full((1, 1, 200, 200), 100.0).bfloat16()),
        "large float16 factors": hw.LowRank(*(300 * t.half().abs().clamp(max=1) for t in (left, right))),
    }[kind]
    exact = hw.attention(q.double(), k.double(), v.double(), bias.to(torch.float64), backend="eager")
    found = hw.attention(q, k, v, bias, backend=backend)
    torch.testing.assert_close(found, exact.float(), rtol=0, atol=3e-2 if kind == "large float16 factors" else 1e-4)
