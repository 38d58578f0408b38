"""Random and Factorized Random Synthesizer (Tay et al. 2021): softmax(R) V and softmax(R_1 R_2^T) V, by loops."""

import pytest
import torch
from torch.testing import assert_close

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def scores_by_hand(enc, layer, head, i, j):
    """The score of one pair of positions."""
    if enc.rank is None:
        return enc.matrix[layer, head, i, j].item()
    return sum(enc.left[layer, head, i, r].item() * enc.right[layer, head, j, r].item() for r in range(enc.rank))


@pytest.mark.parametrize("rank", [None, 3])
@pytest.mark.parametrize(("q_len", "k_len", "q_start"), [(7, 7, 0), (1, 7, 6), (3, 7, 2)])
def test_the_scores(build, rank, q_len, k_len, q_start):
    enc = build("synthesizer", rank=rank)
    for layer in range(2):
        bias = enc.bias(layer, q_len, k_len, q_start).dense()
        for head in range(2):
            for i in range(q_len):
                for j in range(k_len):
                    assert bias[0, head, i, j].item() == pytest.approx(
                        scores_by_hand(enc, layer, head, q_start + i, j), abs=1e-12
                    )


@pytest.mark.parametrize("rank", [None, 3])
def test_positions_are_counted_in_each_packed_text(build, rank):
    enc = build("synthesizer", rank=rank)
    documents = torch.tensor([[4, 4, 4, 1, 1], [0, 0, 0, 0, 7]])
    packed = enc.bias(1, 5, 5, documents=documents).dense()
    assert packed.shape == (2, 2, 5, 5)
    for row, start, stop in ((0, 0, 3), (0, 3, 5), (1, 0, 4), (1, 4, 5)):
        alone = enc.bias(1, stop - start, stop - start).dense()[0]
        assert_close(packed[row, :, start:stop, start:stop], alone, **EXACT)


def test_parameters(build):
    assert sum(p.numel() for p in build("synthesizer").parameters()) == 2 * 2 * 16 * 16
    assert sum(p.numel() for p in build("synthesizer", rank=3).parameters()) == 2 * 2 * 2 * 16 * 3
    with pytest.raises(ValueError, match="rank: expected None"):
        build("synthesizer", rank=0)
