"""A bias that layers share, multiplied out: the formula, its gradient, and where it is left alone."""

from __future__ import annotations

import pytest
import torch

import headway as hw
from headway.attention import for_layers
from headway.attention.triton.multiplied import multiplied_out, unrolled


@pytest.mark.parametrize(("q_len", "k_len"), [(1, 1), (3, 7), (7, 3), (5, 5), (1, 4), (4, 1)])
def test_unrolled_is_the_formula(q_len, k_len):
    values = torch.randn(1, 2, q_len + k_len - 1, dtype=torch.float64, requires_grad=True)
    dense = hw.Toeplitz(values).bind(q_len, k_len).dense()
    found = unrolled(values, q_len, k_len)
    assert torch.equal(found, dense)
    upstream = torch.randn_like(dense)
    torch.testing.assert_close(
        torch.autograd.grad(found, values, upstream)[0], torch.autograd.grad(dense, values, upstream)[0]
    )


@pytest.mark.parametrize("heads", [1, 3])
def test_sums_are_the_formula(heads):
    t = torch.randn(1, heads, 11, dtype=torch.float64)
    left, right = torch.randn(1, 3, 6, 2, dtype=torch.float64), torch.randn(1, 1, 6, 2, dtype=torch.float64)
    for bias in (hw.Toeplitz(t, 6), hw.LowRank(left, right), hw.Toeplitz(t, 6) + hw.LowRank(left, right)):
        torch.testing.assert_close(multiplied_out(bias, 6, 6), bias.dense())


def test_half_precision_gains_digits_and_autocast_takes_none():
    left = torch.randn(1, 2, 6, 2).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = multiplied_out(hw.LowRank(left, left), 6, 6)
    torch.testing.assert_close(found, left.float() @ left.float().mT)


def test_elsewhere_a_bias_stays_as_it_is():
    bias = hw.Toeplitz(torch.randn(1, 2, 11), 6)
    kept = for_layers(bias, 6, 6, heads=2, width=64, dtype=torch.bfloat16, device=torch.device("cpu"))
    assert kept is bias
    assert for_layers(None, 6, 6, heads=2, width=64, dtype=torch.bfloat16, device=torch.device("cpu")) is None
