"""TISA against Wennberg and Henter (2021), Eq. (5), by loops.

f(k) = sum_s a_s exp(-|b_s| (k - c_s)^2), k = j - i, one f per head and layer (Sec. 4.2); F_P is added to the scaled
scores (Eq. 4), so f itself is not scaled.
"""

import math

import pytest
import torch
from torch.testing import assert_close


def parameters(enc, layer, head):
    """[(a_s, b_s, c_s)] of one head."""
    return list(
        zip(*(getattr(enc, name)[layer, head].tolist() for name in ("amplitude", "sharpness", "center")), strict=True)
    )


def f(kernels, k):
    total = 0.0
    for a, b, c in kernels:
        total += a * math.exp(-abs(b) * (k - c) ** 2)
    return total


@pytest.mark.parametrize("kernels", [1, 5])
@pytest.mark.parametrize(
    ("q_len", "k_len", "q_start"), [(1, 1, 0), (9, 9, 0), (5, 9, 0), (9, 5, 0), (1, 9, 8), (3, 9, 5)]
)
def test_is_eq_5(build, kernels, q_len, k_len, q_start):
    enc = build("tisa", kernels=kernels)
    for layer in range(2):
        expected = torch.empty(1, 2, q_len, k_len, dtype=torch.float64)
        for h in range(2):
            for i in range(q_len):
                for j in range(k_len):
                    expected[0, h, i, j] = f(parameters(enc, layer, h), j - (q_start + i))
        assert_close(enc.bias(layer, q_len, k_len, q_start).dense(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("reach", [1, 3, 8, 20])
@pytest.mark.parametrize(("q_len", "k_len", "q_start"), [(1, 1, 0), (9, 9, 0), (5, 9, 0), (1, 9, 8), (3, 12, 9)])
def test_beyond_the_reach_is_the_value_at_its_end(build, reach, q_len, k_len, q_start):
    enc = build("tisa", reach=reach)
    bias = enc.bias(1, q_len, k_len, q_start)
    expected = torch.empty(1, 2, q_len, k_len, dtype=torch.float64)
    for h in range(2):
        for i in range(q_len):
            for j in range(k_len):
                offset = max(-reach, min(reach, j - (q_start + i)))
                expected[0, h, i, j] = f(parameters(enc, 1, h), offset)
    assert_close(bias.dense(), expected, rtol=1e-10, atol=1e-12)


def test_a_reach_that_the_bells_do_not_leave_changes_nothing(build):
    """At the start: sqrt(14 / 1e-3) tokens, and two for the center farthest out."""
    whole, cut = build("tisa"), build("tisa", reach=121)
    cut.load_state_dict(whole.state_dict())
    with torch.no_grad():
        for enc in (whole, cut):
            enc.reset_parameters()
            enc.amplitude.fill_(1.0)
    assert_close(cut.bias(0, 300, 300).dense(), whole.bias(0, 300, 300).dense(), rtol=0, atol=1e-6)


def test_a_reach_below_one_is_refused(build):
    with pytest.raises(ValueError, match="reach: expected at least 1"):
        build("tisa", reach=0)


def test_the_sign_of_b_does_not_matter(build):
    enc = build("tisa")
    before = enc.bias(0, 9, 9).dense().detach()
    with torch.no_grad():
        enc.sharpness.neg_()
    assert_close(enc.bias(0, 9, 9).dense(), before, rtol=0, atol=0)


@pytest.mark.parametrize("center", [1, -2])
def test_the_offset_is_key_minus_query(build, center):
    """A kernel centred at +1 looks at the next token, not at the one before."""
    enc = build("tisa", kernels=1)
    with torch.no_grad():
        enc.amplitude.fill_(3.0)
        enc.sharpness.fill_(20.0)
        enc.center.fill_(float(center))
    bias = enc.bias(0, 7, 7).dense()[0, 0]
    for i in range(7):
        for j in range(7):
            assert abs(bias[i, j].item() - (3.0 if j - i == center else 0.0)) < 1e-6


def test_no_kernels_is_no_bias(build):
    """S = 0 is the bag-of-words baseline (Sec. 5, Table 3b)."""
    enc = build("tisa", kernels=0)
    assert enc.bias(0, 5, 5) is None
    assert sum(parameter.numel() for parameter in enc.parameters()) == 0


@pytest.mark.parametrize("kernels", [1, 3, 5])
def test_three_parameters_per_kernel_head_and_layer(build, kernels):
    """Sec. 4.2 and Table 2: 3 S H L."""
    enc = build("tisa", num_layers=3, num_heads=2, kernels=kernels)
    assert sum(parameter.numel() for parameter in enc.parameters()) == 3 * kernels * 2 * 3


def test_does_not_diverge_far_away(build):
    """Sec. 4.2: f must not diverge as |k| grows; 2000 tokens away it is what the formula says, and finite."""
    enc = build("tisa")
    with torch.no_grad():
        enc.sharpness.mul_(1e-6)
    bias = enc.bias(0, 1, 2001).dense()[0, 0, 0]
    for k in (0, 17, 500, 2000):
        assert_close(bias[k].item(), f(parameters(enc, 0, 0), k), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("length", [1, 9])
def test_gradients_are_those_of_eq_5(build, length):
    """df/da = e, df/db = -sign(b) (k - c)^2 a e, df/dc = 2 |b| (k - c) a e, with e = exp(-|b| (k - c)^2)."""
    enc = build("tisa", kernels=2, num_layers=1)
    weights = torch.randn(2, length, length, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    (enc.bias(0, length, length).dense()[0] * weights).sum().backward()
    for h in range(2):
        for s, (a, b, c) in enumerate(parameters(enc, 0, h)):
            to_a = to_b = to_c = 0.0
            for i in range(length):
                for j in range(length):
                    k, w = j - i, weights[h, i, j].item()
                    e = math.exp(-abs(b) * (k - c) ** 2)
                    to_a += w * e
                    to_b += w * -math.copysign(1.0, b) * (k - c) ** 2 * a * e
                    to_c += w * 2 * abs(b) * (k - c) * a * e
            assert_close(enc.amplitude.grad[0, h, s].item(), to_a, rtol=1e-9, atol=1e-12)
            assert_close(enc.sharpness.grad[0, h, s].item(), to_b, rtol=1e-9, atol=1e-12)
            assert_close(enc.center.grad[0, h, s].item(), to_c, rtol=1e-9, atol=1e-12)
