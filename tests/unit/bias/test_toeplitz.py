"""Toeplitz biases that are cut out of a table."""

from __future__ import annotations

import pytest
import torch

from headway.bias import Toeplitz


@pytest.mark.parametrize(
    ("q_len", "k_len", "q_start"),
    [(5, 5, 0), (1, 1, 0), (9, 4, 0), (4, 9, 0), (1, 20, 19), (3, 3, 30), (20, 1, 0), (2, 40, 0)],
)
def test_clipped_is_the_table_at_clamped_offsets(q_len, k_len, q_start):
    table = torch.randn(2, 3, 7, dtype=torch.float64, requires_grad=True)
    offset = torch.arange(-(q_start + q_len - 1), k_len - q_start).clamp(-3, 3) + 3
    expected = Toeplitz(table[..., offset], q_len)
    found = Toeplitz.clipped(table, q_len, k_len, q_start)
    assert torch.equal(found.values, expected.values)
    upstream = torch.randn_like(found.values)
    grads = [torch.autograd.grad(bias.values, table, upstream)[0] for bias in (found, expected)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("q_start", [0, 4, 19])
@pytest.mark.parametrize(("q_len", "k_len"), [(30, 30), (1, 40), (40, 2), (12, 30)])
def test_reach_is_where_nothing_changes_any_more(q_len, k_len, q_start):
    bias = Toeplitz.clipped(torch.randn(1, 2, 7), q_len, k_len, q_start)
    bias = (bias + Toeplitz.clipped(torch.randn(1, 2, 11), q_len, k_len, q_start)).terms[0]
    assert bias.reach == 5 + q_start
    offset = torch.arange(-(q_len - 1), k_len)
    for beyond in (bias.values[..., offset <= -bias.reach], bias.values[..., offset >= bias.reach]):
        assert torch.equal(beyond, beyond[..., :1].expand_as(beyond))


def test_beside_values_that_never_end_nothing_is_promised():
    clipped, free = Toeplitz.clipped(torch.randn(1, 2, 7), 20, 20), Toeplitz(torch.randn(1, 2, 39))
    assert clipped.reach == 3
    for both in (clipped + free, free + clipped):
        assert both.terms[0].reach is None


def test_clipped_refuses_a_table_without_a_middle():
    with pytest.raises(ValueError, match="odd number"):
        Toeplitz.clipped(torch.zeros(1, 1, 6), 3, 3)
