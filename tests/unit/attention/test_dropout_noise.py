"""Dropout's choices in the fused kernels: as probable as asked, and independent in pairs."""

from __future__ import annotations

import pytest
import torch

from headway.attention.triton.layout import NOISE_BLOCK, dropout_noise


def chosen(chance: float, n: int = 2048) -> torch.Tensor:  # (n, n): 1 where the weight is kept, as `kept` says it
    torch.manual_seed(0)
    noise = dropout_noise(torch.empty(1, 1, n, 8), torch.empty(1, 1, n, 8))[0, 0].long() % 2**32
    products = noise[:n, None] * noise[None, n:] % 2**32  # 64 bits hold the low 32 of the product
    return (products >= int(chance * 2**32)).double()


def test_sides_are_padded_to_whole_blocks_and_numbers_are_odd():
    noise = dropout_noise(torch.empty(2, 3, NOISE_BLOCK + 1, 8), torch.empty(2, 1, 5, 8))
    assert noise.shape == (2, 3, 3 * NOISE_BLOCK)
    assert noise.dtype == torch.int32
    assert (noise % 2 != 0).all()


@pytest.mark.parametrize("chance", [0.1, 0.5, 0.9])
def test_rows_columns_and_pairs_of_them_are_independent(chance):
    kept = chosen(chance)
    n = len(kept)
    standard = (kept - (1 - chance)) / (chance * (1 - chance)) ** 0.5
    assert abs(standard.mean() * n) < 4
    for side in (standard, standard.T):
        assert (side.mean(1) * n**0.5).std() == pytest.approx(1, abs=0.08)
        together = side @ side.T / n**0.5  # of two rows: a standard normal number, were they independent
        others = together[~torch.eye(n, dtype=torch.bool)]
        assert others.square().mean() == pytest.approx(1, abs=0.01)
        assert others.pow(4).mean() == pytest.approx(3, abs=0.15)
        assert others.abs().max() < 7.5
