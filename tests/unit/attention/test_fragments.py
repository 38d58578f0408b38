"""Where the numbers of a matrix lie for the threads of a Hopper kernel, against the layout as hopper.cuh states it."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")


@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (130, 70), (1, 65)])
def test_each_thread_finds_its_numbers(rows, columns):
    from headway.attention.triton.tables import TILE, in_fragments

    matrix = torch.arange(1, 2 * rows * columns + 1).view(2, rows, columns).float()
    found = in_fragments(matrix)
    assert found.shape == (2, -(-rows // TILE), -(-columns // TILE), 4, 128, 8) and found.is_contiguous()
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
