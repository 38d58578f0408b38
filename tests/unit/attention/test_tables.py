"""What kernels read of a bias: where its numbers lie (as hopper.cuh states it), and that they are finite."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")


@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (130, 70), (1, 65)])
def test_each_thread_finds_its_numbers(rows, columns):
    from headway.attention.triton.tables import TILE, in_fragments, whole_blocks

    matrix = torch.arange(1, 2 * rows * columns + 1).view(2, rows, columns).float()
    found = in_fragments(matrix)
    tiles = whole_blocks(rows) // TILE, whole_blocks(columns) // TILE
    assert found.shape == (2, *tiles, 4, 128, 8) and found.is_contiguous()
    padded = torch.zeros(2, found.shape[1] * TILE, found.shape[2] * TILE)
    padded[:, :rows, :columns] = matrix
    generator = torch.Generator().manual_seed(0)
    for thread in torch.randint(128, (6,), generator=generator).tolist():
        warp, row_of_fragment, pair = thread // 32, thread % 32 // 4, thread % 4
        for number in range(32):
            fragment, which_row, which_column = number // 4, number % 4 // 2, number % 2
            row, column = 16 * warp + 8 * which_row + row_of_fragment, 8 * fragment + 2 * pair + which_column
            part, place = number // 8, number % 8
            wanted = padded[:, row::TILE, column::TILE]
            torch.testing.assert_close(found[:, :, :, part, thread, place], wanted)


@pytest.mark.parametrize("half", [True, False])
def test_a_factor_beyond_float16_forbids_and_leaves_the_rest(half):
    from headway.attention.triton.tables import Parts, bias_matrix

    left, right = torch.tensor([[[[-1e9, 0.0], [0.0, 1.0]]]]), torch.eye(2)[None, None]
    found = bias_matrix(Parts(None, left, right), 2, half)[0].float()
    assert found[0, 0] < -50000
    torch.testing.assert_close(found[1], torch.tensor([0.0, 1.4427]), atol=1e-3, rtol=0)
    assert found[0, 1] == 0


def test_gradients_of_a_toeplitz_bias_add_to_nothing():
    """What should cancel does; what already did, and offsets that nobody sees, stay as they are."""
    from headway.attention.triton.tables import balanced

    q_len, k_len = 9, 5
    right = torch.randn(1, 3, q_len + k_len - 1)
    right[..., -k_len:] = 0.0  # causal order
    right[..., 0] -= right.sum(-1)
    torch.testing.assert_close(balanced(right, q_len, k_len), right)
    found = balanced(right + 0.1 * (right != 0), q_len, k_len)
    torch.testing.assert_close(found.sum(-1), torch.zeros(1, 3), rtol=0, atol=1e-5)
    assert (found[..., -k_len:] == 0).all()
    assert (balanced(torch.zeros(1, 3, q_len + k_len - 1), q_len, k_len) == 0).all()
