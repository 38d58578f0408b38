"""Segments at the input and per head, by loops.

Per head: Chen et al. (2021b), Eq. (2), E_S(S(i), S(j)) = S[S(i), S(j)]; Chen et al. (2021a), Eqs. (9) and (10): k^2
scalars per head. At the input: Devlin et al. (2019), one vector per segment added to the token's.
"""

import pytest
import torch
from torch.testing import assert_close

IDS = torch.tensor([[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 0, 0, 1, 0]])
NAMES = ["none", "sinusoidal", "learned", "diet-abs", "diet-rel", "tisa", "shaw", "transformer-xl", "tupe-rel", "alibi"]
EXACT = {"rtol": 1e-10, "atol": 1e-10}


def random(*shape, seed=1):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def pair(build, name, segments, **options):
    """The encoding with segments, the same without them, and the table of the segments."""
    enc, alone = build(name, segments=segments, **options), build(name)
    position, segment = enc.parts
    alone.load_state_dict(position.state_dict())
    return enc, alone, segment.table


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("length", "q_start"), [(7, 0), (1, 6), (3, 2)])
def test_at_the_input(build, name, length, q_start):
    enc, alone, table = pair(build, name, "input")
    assert table.shape == (2, 8)
    x, ids = random(2, length, 8), IDS[:, : q_start + length]
    expected = alone.embed(x, q_start=q_start).detach().clone()
    for b in range(2):
        for n in range(length):
            for e in range(8):
                expected[b, n, e] += table[int(ids[b, q_start + n]), e].item()
    assert_close(enc.embed(x, q_start=q_start, segments=ids), expected, **EXACT)


def test_at_the_input_means_nowhere_else(build):
    enc, alone, _ = pair(build, "diet-rel", "input")
    assert_close(enc.bias(1, 7, 7, segments=IDS).dense(), alone.bias(1, 7, 7).dense(), rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("q_len", "k_len", "q_start"), [(7, 7, 0), (1, 7, 6), (3, 7, 2)])
def test_per_head(build, name, q_len, k_len, q_start):
    enc, alone, table = pair(build, name, "per-head")
    assert table.shape == (2, 2, 2, 2)  # layers, heads, segments, segments
    q = random(2, 2, q_len, 4)
    for layer in range(2):
        expected = torch.zeros(2, 2, q_len, k_len, dtype=torch.float64)
        position = alone.bias(layer, q_len, k_len, q_start)
        if position is not None:
            expected += position.dense(q).detach()
        for b in range(2):
            for h in range(2):
                for i in range(q_len):
                    for j in range(k_len):
                        expected[b, h, i, j] += table[layer, h, int(IDS[b, q_start + i]), int(IDS[b, j])].item()
        got = enc.bias(layer, q_len, k_len, q_start, segments=IDS[:, :k_len])
        assert_close(got.dense(q), expected, **EXACT)


def test_per_head_means_not_at_the_input(build):
    enc, _, _ = pair(build, "none", "per-head")
    x = random(2, 7, 8)
    assert_close(enc.embed(x, segments=IDS), x, rtol=0, atol=0)


def test_the_table_is_not_symmetric(build):
    """S has k^2 entries per head: from A to B need not equal from B to A."""
    enc, _, table = pair(build, "none", "per-head")
    bias = enc.bias(0, 7, 7, segments=IDS[:1]).dense()[0, 0]
    assert_close(bias[0, 6], table[0, 0, 0, 1], rtol=0, atol=0)
    assert_close(bias[6, 0], table[0, 0, 1, 0], rtol=0, atol=0)
    assert abs((bias[0, 6] - bias[6, 0]).item()) > 1e-3


def test_more_segments_than_two(build):
    enc, _, table = pair(build, "none", "per-head", num_segments=4)
    assert table.shape == (2, 2, 4, 4)
    ids = torch.tensor([[0, 3, 1, 2]])
    bias = enc.bias(1, 4, 4, segments=ids).dense()
    for h in range(2):
        for i, one in enumerate((0, 3, 1, 2)):
            for j, other in enumerate((0, 3, 1, 2)):
                assert bias[0, h, i, j].item() == table[1, h, one, other].item()


@pytest.mark.parametrize("positions", ["none", "head", "layer"])
@pytest.mark.parametrize(
    ("sharing", "shape"),
    [(None, (2, 2, 2, 2)), ("none", (2, 2, 2, 2)), ("head", (2, 1, 2, 2)), ("layer", (1, 2, 2, 2))],
)
def test_segments_have_a_sharing_of_their_own(build, positions, sharing, shape):
    """Chen et al. (2021b), Sec. 4.4, share positions; in Chen et al. (2021a), Sec. 3, segments share nothing."""
    enc = build("diet-rel", sharing=positions, segments="per-head", segment_sharing=sharing)
    assert enc.parts[0].sharing == positions
    assert enc.parts[1].table.shape == shape


def test_tables_differ_between_layers_where_positions_do_not(build):
    enc = build("diet-rel", sharing="layer", segments="per-head")
    one, other = (enc.bias(layer, 7, 7, segments=IDS).dense() for layer in range(2))
    tables = enc.parts[1].table
    difference = torch.stack([tables[0] - tables[1]] * 2)[
        torch.arange(2)[:, None, None], :, IDS[:, :, None], IDS[:, None]
    ]
    assert_close(one - other, difference.permute(0, 3, 1, 2), **EXACT)
    assert difference.abs().max().item() > 1e-3


@pytest.mark.parametrize("segments", ["input", "per-head"])
def test_without_ids_all_is_segment_0(build, segments):
    enc = build("diet-rel", segments=segments)  # whose numbers are looked up: an exponential may differ by its place
    x, zeros = random(2, 7, 8), torch.zeros(2, 7, dtype=torch.long)
    assert_close(enc.embed(x), enc.embed(x, segments=zeros), rtol=0, atol=0)
    one, other = enc.bias(1, 7, 7).dense(), enc.bias(1, 7, 7, segments=zeros).dense()
    assert_close(one.expand_as(other), other, rtol=0, atol=0)
    assert_close(enc.bias(1, 1, 7, 6).dense(), one[:, :, -1:], rtol=0, atol=0)
