"""Toeplitz biases that are cut out of a table."""

from __future__ import annotations

import pickle

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


def test_frozen_without_lengths_works_out_each_matrix_once():
    values = torch.randn(2, 3, 11)
    frozen, expected = Toeplitz(values).frozen(), Toeplitz(values.clone())
    values.zero_()
    for q_len, k_len in ((6, 6), (4, 8), (8, 4), (6, 6)):
        bound = frozen.bind(q_len, k_len)
        assert bound.is_frozen and bound.lengths == (q_len, k_len)
        assert bound.dense_once(torch.float32) is frozen.bind(q_len, k_len).dense_once(torch.float32)
        torch.testing.assert_close(bound.dense_once(torch.float32), expected.bind(q_len, k_len).dense())
    assert not expected.bind(6, 6).is_frozen
    assert torch.equal(pickle.loads(pickle.dumps(frozen)).bind(4, 8).dense(), expected.bind(4, 8).dense())


def test_clipped_refuses_a_table_without_a_middle():
    with pytest.raises(ValueError, match="odd number"):
        Toeplitz.clipped(torch.zeros(1, 1, 6), 3, 3)
