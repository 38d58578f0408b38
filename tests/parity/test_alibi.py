"""ALiBi against the published slopes and the formula.

Press, Smith and Lewis (2022), Sec. 3: for n heads (n a power of 2) the slopes are the geometric sequence that starts at
2^(-8/n) and has that ratio. For other n the authors' reference code takes the slopes of the nearest smaller power of 2
and fills up with every second slope of twice that number of heads. The bias is -slope |j - i|.
"""

import pytest
import torch
from torch.testing import assert_close

EIGHT = [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
SIXTEEN = [2.0 ** -(0.5 * n) for n in range(1, 17)]
TWELVE = [*EIGHT, 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
PUBLISHED = {
    1: [2**-8.0],
    2: [1 / 16, 1 / 256],
    3: [1 / 16, 1 / 256, 1 / 4],
    4: [1 / 4, 1 / 16, 1 / 64, 1 / 256],
    6: [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8],
    8: EIGHT,
    12: TWELVE,
    16: SIXTEEN,
}


@pytest.mark.parametrize("num_heads", PUBLISHED)
def test_published_slopes(build, num_heads):
    bias = build("alibi", num_heads=num_heads).bias(0, 2, 2).dense()
    assert_close(-bias[0, :, 1, 0], torch.tensor(PUBLISHED[num_heads], dtype=torch.float64), rtol=1e-12, atol=0)


@pytest.mark.parametrize("num_heads", [2, 3])
@pytest.mark.parametrize(
    ("q_len", "k_len", "q_start"), [(1, 1, 0), (9, 9, 0), (5, 9, 0), (9, 5, 0), (1, 9, 8), (3, 40, 37)]
)
def test_formula(build, num_heads, q_len, k_len, q_start):
    enc = build("alibi", num_heads=num_heads)
    expected = torch.empty(1, num_heads, q_len, k_len, dtype=torch.float64)
    for h in range(num_heads):
        for i in range(q_len):
            for j in range(k_len):
                expected[0, h, i, j] = -PUBLISHED[num_heads][h] * abs(j - (q_start + i))
    for layer in range(2):
        assert_close(enc.bias(layer, q_len, k_len, q_start).dense(), expected, rtol=1e-12, atol=0)


def test_nothing_is_learned(build):
    assert list(build("alibi").parameters()) == []


@pytest.mark.parametrize("num_heads", [2, 6, 12])
def test_a_causal_row_differs_from_the_published_module_by_a_constant(build, num_heads):
    """BLOOM adds slope * j to the row of query i; -slope * (i - j) is that less slope * i, which softmax ignores."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    published = build_alibi_tensor(torch.ones(1, 9), num_heads, torch.float64).view(num_heads, 9)
    bias = build("alibi", num_heads=num_heads).bias(0, 9, 9).dense()[0]
    for i in range(9):
        row, theirs = bias[:, i, : i + 1], published[:, : i + 1]
        assert_close(row - row[:, :1], theirs - theirs[:, :1], rtol=1e-6, atol=1e-6)  # they work in float32
