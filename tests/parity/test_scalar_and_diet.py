"""ABS-SCALAR, REL-SCALAR, DIET-ABS and DIET-REL against their equations, entry by entry.

Chen et al. (2021b): Eq. (1) P_Q P_K^T, Eq. (3) R_{i-j}. Chen et al. (2021a): Eq. (7) P P^T, Eqs. (8) and (11) R_{i-j}.
The papers index R by i - j; the table is stored by j - i, so R_{i-j} is the entry of offset -(i - j).
"""

import pytest
import torch
from torch.testing import assert_close

LENGTHS = [(1, 1, 0), (5, 5, 0), (1, 9, 8), (3, 9, 6), (5, 9, 0), (9, 5, 0)]  # Lq, Lk, q_start


def dot(a, b):
    total = 0.0
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        total += x * y
    return total


@pytest.mark.parametrize(("q_len", "k_len", "q_start"), LENGTHS)
@pytest.mark.parametrize("rank", [None, 1, 7])
def test_diet_abs_is_eq_1(build, q_len, k_len, q_start, rank):
    enc = build("diet-abs", rank=rank)
    for layer in range(2):
        expected = torch.empty(1, 2, q_len, k_len, dtype=torch.float64)
        for h in range(2):
            for i in range(q_len):
                for j in range(k_len):
                    expected[0, h, i, j] = dot(enc.left[layer, h, q_start + i], enc.right[layer, h, j])
        assert_close(enc.bias(layer, q_len, k_len, q_start).dense(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("q_len", "k_len", "q_start"), LENGTHS)
@pytest.mark.parametrize("rank", [None, 3])
def test_abs_scalar_is_eq_7(build, q_len, k_len, q_start, rank):
    enc = build("abs-scalar", rank=rank)
    for layer in range(2):
        expected = torch.empty(1, 2, q_len, k_len, dtype=torch.float64)
        for h in range(2):
            for i in range(q_len):
                for j in range(k_len):
                    expected[0, h, i, j] = dot(enc.factor[layer, h, q_start + i], enc.factor[layer, h, j])
        assert_close(enc.bias(layer, q_len, k_len, q_start).dense(), expected, rtol=1e-12, atol=1e-12)


def test_default_rank_is_the_head_width(build):
    """Chen et al. (2021b), Sec. 3.1: "By default, we set d_p same as d_h"; (2021a), below Eq. (7)."""
    assert build("diet-abs", head_dim=6).left.shape == (2, 2, 16, 6)
    assert build("abs-scalar", head_dim=6).factor.shape == (2, 2, 16, 6)


@pytest.mark.parametrize("name", ["diet-rel", "rel-scalar"])
@pytest.mark.parametrize(("q_len", "k_len", "q_start"), [*LENGTHS, (16, 16, 0)])
def test_relative_scalars_are_eq_3(build, name, q_len, k_len, q_start):
    enc = build(name)
    for layer in range(2):
        expected = torch.empty(1, 2, q_len, k_len, dtype=torch.float64)
        for h in range(2):
            r = {j_minus_i: value.item() for j_minus_i, value in zip(range(-15, 16), enc.values[layer, h], strict=True)}
            for i in range(q_len):
                for j in range(k_len):
                    expected[0, h, i, j] = r[j - (q_start + i)]
        assert_close(enc.bias(layer, q_len, k_len, q_start).dense(), expected, rtol=0, atol=0)


@pytest.mark.parametrize(("q_len", "k_len", "q_start"), [(21, 21, 0), (1, 40, 39), (3, 30, 20), (30, 3, 0)])
def test_beyond_max_length_clips(build, q_len, k_len, q_start):
    enc = build("diet-rel", beyond="clip")
    expected = torch.empty(1, 2, q_len, k_len, dtype=torch.float64)
    for h in range(2):
        for i in range(q_len):
            for j in range(k_len):
                expected[0, h, i, j] = enc.values[1, h, max(-15, min(15, j - q_start - i)) + 15]
    assert_close(enc.bias(1, q_len, k_len, q_start).dense(), expected, rtol=0, atol=0)


@pytest.mark.parametrize("reach", [0, 3, 14])
@pytest.mark.parametrize(("q_len", "k_len", "q_start"), [(16, 16, 0), (21, 21, 0), (1, 40, 39), (3, 30, 20)])
def test_offsets_beyond_reach_share_the_outermost_values(build, reach, q_len, k_len, q_start):
    enc = build("diet-rel", reach=reach)
    assert enc.values.shape == (2, 2, 2 * reach + 1)
    expected = torch.empty(1, 2, q_len, k_len, dtype=torch.float64)
    for h in range(2):
        for i in range(q_len):
            for j in range(k_len):
                expected[0, h, i, j] = enc.values[1, h, max(-reach, min(reach, j - q_start - i)) + reach]
    assert_close(enc.bias(1, q_len, k_len, q_start).dense(), expected, rtol=0, atol=0)


def test_a_reach_beyond_the_text_is_refused(build):
    with pytest.raises(ValueError, match=r"reach: expected 0 to 15 \(max_length - 1\), got 16"):
        build("diet-rel", reach=16)


def test_beyond_max_length_raises_when_asked(build):
    enc = build("diet-rel", beyond="raise")
    assert enc.bias(0, 16, 16).shape == (1, 2, 16, 16)
    assert not enc.extends and build("diet-rel").extends
    with pytest.raises(ValueError, match=r"expected at most 16 \(max_length of diet-rel\), got 17.*larger max_length"):
        enc.bias(0, 17, 17)
    with pytest.raises(ValueError, match=r"-15\.\.15.*-16\.\.16.*larger max_length"):
        enc.bias(0, 17, 17, documents=torch.arange(17)[None] // 10)  # a row of short texts
    with pytest.raises(ValueError, match="beyond: expected clip or raise, got 'wrap'"):
        build("diet-rel", beyond="wrap")


@pytest.mark.parametrize(
    ("name", "sharing", "shape"),
    [
        ("diet-abs", "none", (3, 2, 16, 4)),
        ("diet-abs", "head", (3, 1, 16, 4)),
        ("diet-abs", "layer", (1, 2, 16, 4)),
        ("diet-rel", "none", (3, 2, 31)),
        ("diet-rel", "head", (3, 1, 31)),
        ("diet-rel", "layer", (1, 2, 31)),
    ],
)
def test_sharing_sets_the_size_of_the_tables(build, name, sharing, shape):
    """Chen et al. (2021b), Sec. 4.4: layer-wise sharing ties the layers, head-wise sharing the heads."""
    enc = build(name, num_layers=3, sharing=sharing)
    assert all(parameter.shape == shape for parameter in enc.parameters())


@pytest.mark.parametrize("name", ["diet-abs", "diet-rel", "abs-scalar", "rel-scalar"])
def test_position_and_segment_terms_add(build, name):
    """Chen et al. (2021b), Eqs. (1) and (3), and (2021a), Eqs. (7) and (11): A = content + position + segment."""
    enc = build(name, segments="per-head")
    ids = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 0, 1]])
    with_segments = enc.bias(0, 5, 5, segments=ids).dense()
    position = enc.bias(0, 5, 5).dense()
    assert with_segments.shape == (2, 2, 5, 5)
    segment = with_segments - position
    for b in range(2):  # what remains is one number per pair of segments and head, and four different ones
        for h in range(2):
            seen = {}
            for i in range(5):
                for j in range(5):
                    seen.setdefault((int(ids[b, i]), int(ids[b, j])), []).append(segment[b, h, i, j].item())
            assert len(seen) == 4
            assert all(max(group) - min(group) < 1e-12 for group in seen.values())
            assert len({round(group[0], 6) for group in seen.values()}) == 4
