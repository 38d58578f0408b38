"""T5's buckets and bias against golden vectors, a bucket rule in whole numbers, and the published PyTorch module.

Raffel et al. (2020), Sec. 2.1 (32 scalars per head, offsets up to 128 in ranges that grow logarithmically); the exact
rule is that of the authors' Mesh TensorFlow code. relative = key - query = j - i.
"""

from fractions import Fraction

import pytest
import torch
from torch.testing import assert_close

# The distance at which each bucket begins, for 32 buckets and max_distance 128.
BOTH_WAYS = [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]  # buckets 0..15; keys on the right add 16
CAUSAL = [*range(16), 16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]  # buckets 0..31

GOLDEN_BOTH_WAYS = {  # offset j - i: bucket
    -1000: 15, -128: 15, -91: 15, -90: 14, -64: 14, -63: 13, -46: 13, -45: 12, -32: 12, -31: 11, -23: 11, -22: 10,
    -16: 10, -15: 9, -12: 9, -11: 8, -8: 8, -7: 7, -2: 2, -1: 1, 0: 0, 1: 17, 2: 18, 7: 23, 8: 24, 11: 24, 12: 25,
    15: 25, 16: 26, 22: 26, 23: 27, 31: 27, 32: 28, 45: 28, 46: 29, 63: 29, 64: 30, 90: 30, 91: 31, 128: 31, 1000: 31,
}  # fmt: skip
GOLDEN_CAUSAL = {
    -1000: 31, -128: 31, -113: 31, -112: 30, -99: 30, -98: 29, -87: 29, -86: 28, -77: 28, -76: 27, -67: 27, -66: 26,
    -59: 26, -58: 25, -52: 25, -51: 24, -46: 24, -45: 23, -40: 23, -39: 22, -35: 22, -34: 21, -31: 21, -30: 20,
    -27: 20, -26: 19, -24: 19, -23: 18, -21: 18, -20: 17, -19: 17, -18: 16, -16: 16, -15: 15, -1: 1, 0: 0, 1: 0,
    2: 0, 50: 0, 1000: 0,
}  # fmt: skip


def table_of(enc):
    """The one table of the encoding, seen as (layers, heads, buckets)."""
    (table,) = enc.parameters()
    assert table.dim() == 3
    return table


def buckets_of(enc, q_len, k_len, q_start=0):
    """Which bucket each pair takes, (Lq, Lk), read through the bias of a table that holds its own row numbers."""
    table = table_of(enc)
    with torch.no_grad():
        table.copy_(torch.arange(table.shape[-1], dtype=table.dtype).expand_as(table))
        return enc.bias(0, q_len, k_len, q_start).dense()[0, 0].round().long()


def bucket_by_hand(offset, buckets, max_distance, bidirectional):
    """The rule without logarithms: bucket e + s begins where (d / e) ** n >= (max_distance / e) ** s, exactly."""
    base = 0
    if bidirectional:
        buckets //= 2
        base = buckets if offset > 0 else 0
        distance = abs(offset)
    else:
        distance = max(0, -offset)
    exact = buckets // 2
    if distance < exact:
        return base + distance
    n = buckets - exact
    step = 0
    while step < n - 1 and Fraction(distance, exact) ** n >= Fraction(max_distance, exact) ** (step + 1):
        step += 1
    return base + exact + step


def start_of(starts, distance):
    return max(bucket for bucket, start in enumerate(starts) if start <= distance)


@pytest.mark.parametrize(("bidirectional", "golden"), [(True, GOLDEN_BOTH_WAYS), (False, GOLDEN_CAUSAL)])
def test_golden_buckets(build, bidirectional, golden):
    enc = build("t5", bidirectional=bidirectional)
    for offset, bucket in golden.items():
        if offset <= 0:
            got = buckets_of(enc, 1, 1, q_start=-offset)
            assert int(got[0, 0]) == bucket, offset
        else:
            got = buckets_of(enc, 1, offset + 1)
            assert int(got[0, -1]) == bucket, offset


@pytest.mark.parametrize("bidirectional", [True, False])
def test_every_bucket_begins_where_published(build, bidirectional):
    enc = build("t5", bidirectional=bidirectional)
    got = buckets_of(enc, 200, 200)
    left = got[199].flip(0).tolist()  # distances 0..199 to the left
    right = got[0].tolist()
    if bidirectional:
        assert left == [start_of(BOTH_WAYS, d) for d in range(200)]
        assert right == [0] + [16 + start_of(BOTH_WAYS, d) for d in range(1, 200)]
        assert set(got.flatten().tolist()) == set(range(32)) - {16}  # no key is at distance 0 to the right
    else:
        assert left == [start_of(CAUSAL, d) for d in range(200)]
        assert right == [0] * 200


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (8, 20), (64, 256), (16, 1000), (4, 5)])
def test_the_rule_for_other_sizes(build, bidirectional, buckets, max_distance):
    enc = build("t5", bidirectional=bidirectional, buckets=buckets, max_distance=max_distance)
    length = min(max_distance + 10, 150)
    got = buckets_of(enc, length, length)
    for offset in range(-(length - 1), length):
        i, j = (-offset, 0) if offset < 0 else (0, offset)
        assert int(got[i, j]) == bucket_by_hand(offset, buckets, max_distance, bidirectional), offset


@pytest.mark.parametrize("bidirectional", [True, False])
def test_the_same_buckets_as_the_published_module(build, bidirectional):
    from transformers.models.t5.modeling_t5 import T5Attention

    offsets = torch.arange(-600, 601)
    published = T5Attention._relative_position_bucket(offsets, bidirectional, 32, 128)
    enc = build("t5", bidirectional=bidirectional)
    got = buckets_of(enc, 601, 601)
    assert_close(torch.cat([got[600], got[0, 1:]]), published.long(), rtol=0, atol=0)


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(
    ("q_len", "k_len", "q_start"), [(1, 1, 0), (9, 9, 0), (150, 150, 0), (1, 140, 139), (4, 30, 26)]
)
def test_the_same_bias_as_the_published_module(build, bidirectional, q_len, k_len, q_start):
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    config = T5Config(d_model=8, d_kv=4, num_heads=2, is_decoder=not bidirectional)
    module = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double()
    enc = build("t5", bidirectional=bidirectional)
    with torch.no_grad():
        module.relative_attention_bias.weight.copy_(table_of(enc)[0].T)  # (buckets, heads)
        published = module.compute_bias(q_len, k_len, past_seen_tokens=q_start)
        assert_close(enc.bias(0, q_len, k_len, q_start).dense(), published, rtol=0, atol=0)


def test_the_bias_by_loops(build):
    enc = build("t5", sharing="none", buckets=8, max_distance=6)
    table = table_of(enc)
    assert table.shape == (2, 2, 8)
    for layer in range(2):
        expected = torch.empty(1, 2, 9, 9, dtype=torch.float64)
        for h in range(2):
            for i in range(9):
                for j in range(9):
                    expected[0, h, i, j] = table[layer, h, bucket_by_hand(j - i, 8, 6, True)]
        assert_close(enc.bias(layer, 9, 9).dense(), expected, rtol=0, atol=0)


def test_layers_share_one_table_unless_told(build):
    """The T5 models keep one table, in the first block, for all layers; heads have their own scalars."""
    enc = build("t5", num_layers=3)
    assert enc.sharing == "layer"
    assert table_of(enc).shape == (1, 2, 32)
    assert_close(enc.bias(0, 9, 9).dense(), enc.bias(2, 9, 9).dense(), rtol=0, atol=0)
