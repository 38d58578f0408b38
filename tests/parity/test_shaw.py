"""Relation-aware attention against Shaw, Uszkoreit and Vaswani (2018), by loops.

Eq. (3): z_i = sum_j alpha_ij (x_j W^V + a^V_ij). Eq. (4): e_ij = x_i W^Q (x_j W^K + a^K_ij)^T / sqrt(d_z).
Sec. 3.1: a_ij of a labelled, directed graph. Sec. 3.2: a_ij = w_clip(j - i, k), clip(x, k) = max(-k, min(k, x)).
The relative key term is inside the division by sqrt(d_z), so it is scaled as the content term is.
"""

import math

import pytest
import torch
from torch.testing import assert_close

from headway.bias import EdgeKeys, EdgeValues, RelativeKeys, RelativeValues

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def random(*shape, seed=1):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def clip(x, k):
    return max(-k, min(k, x))


def edges_of_sequence(table, q_len, k_len, q_start=0):
    """a_ij for every pair, (H, Lq, Lk, D), from w of shape (H, 2K+1, D): Sec. 3.2."""
    big_k = table.shape[1] // 2
    a = torch.empty(table.shape[0], q_len, k_len, table.shape[2], dtype=torch.float64)
    for h in range(table.shape[0]):
        for i in range(q_len):
            for j in range(k_len):
                a[h, i, j] = table[h, clip(j - (q_start + i), big_k) + big_k]
    return a


def relation_aware_attention(q, k, v, a_keys, a_values, scale):
    """Eqs. (4) and (3) for every batch, head and query; a_keys, a_values: (B, H, Lq, Lk, D) or None."""
    out = torch.zeros_like(q)
    scores = torch.empty(*q.shape[:3], k.shape[2], dtype=torch.float64)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                for j in range(k.shape[2]):
                    key = k[b, h, j] + (0 if a_keys is None else a_keys[b, h, i, j])
                    scores[b, h, i, j] = scale * sum(x.item() * y.item() for x, y in zip(q[b, h, i], key, strict=True))
                total = sum(math.exp(e.item()) for e in scores[b, h, i])
                for j in range(k.shape[2]):
                    value = v[b, h, j] + (0 if a_values is None else a_values[b, h, i, j])
                    out[b, h, i] += math.exp(scores[b, h, i, j].item()) / total * value
    return scores, out


def attend(q, k, v, bias, value_bias, scale):
    """The attention that consumes the biases: softmax(scale q k^T + bias), then v and the value bias."""
    scores = scale * q @ k.transpose(-1, -2)
    if bias is not None:
        scores = scores + bias.dense(q, scale=scale)
    weights = scores.softmax(-1)
    out = weights @ v
    if value_bias is not None:
        by_pairs = torch.einsum("bhij,bhijd->bhid", weights, value_bias.dense().expand(*weights.shape, -1))
        assert_close(value_bias.weigh(weights), by_pairs, **EXACT)
        out = out + by_pairs
    return scores, out


def tables(enc, layer, num_heads=2):
    """(w^K, w^V) of a layer for every head, None where the encoding has none."""
    found = []
    for name in ("key_table", "value_table"):
        table = getattr(enc, name)
        found.append(None if table is None else table.detach()[layer].expand(num_heads, -1, -1))
    return found


@pytest.mark.parametrize(("keys", "values"), [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("length", [1, 5, 9])
def test_full_output_is_eqs_3_and_4(build, keys, values, length):
    enc = build("shaw", clip=3, keys=keys, values=values)
    q, k, v = random(3, 2, 2, length, 4).unbind(0)
    for layer in range(2):
        w_keys, w_values = tables(enc, layer)
        assert (w_keys is not None) == keys and (w_values is not None) == values
        a_keys = edges_of_sequence(w_keys, length, length).expand(2, -1, -1, -1, -1) if keys else None
        a_values = edges_of_sequence(w_values, length, length).expand(2, -1, -1, -1, -1) if values else None
        expected = relation_aware_attention(q, k, v, a_keys, a_values, 4**-0.5)
        bias, value_bias = enc.bias(layer, length, length), enc.value_bias(layer, length, length)
        assert (bias is not None) == keys and (value_bias is not None) == values
        assert_close(attend(q, k, v, bias, value_bias, 4**-0.5), expected, **EXACT)


@pytest.mark.parametrize(("q_len", "k_len", "q_start"), [(1, 9, 8), (3, 9, 4), (5, 9, 0), (9, 5, 0)])
def test_the_scores_of_a_cache_and_of_unequal_lengths(build, q_len, k_len, q_start):
    enc = build("shaw", clip=2)
    q, k = random(2, 2, q_len, 4), random(2, 2, k_len, 4, seed=2)
    v = random(2, 2, k_len, 4, seed=3)
    a_keys, a_values = (
        edges_of_sequence(w, q_len, k_len, q_start).expand(2, -1, -1, -1, -1) for w in tables(enc, layer=1)
    )
    expected = relation_aware_attention(q, k, v, a_keys, a_values, 0.5)
    got = attend(q, k, v, enc.bias(1, q_len, k_len, q_start), enc.value_bias(1, q_len, k_len, q_start), 0.5)
    assert_close(got, expected, **EXACT)


def test_the_clipping_distance_and_its_default(build):
    """2k+1 labels (Sec. 3.2); k = 16 in the base model (Sec. 4.1)."""
    assert build("shaw").key_table.shape[-2:] == (33, 4)
    assert build("shaw", clip=3).key_table.shape[-2:] == (7, 4)
    assert build("shaw", clip=3).value_table.shape[-2:] == (7, 4)


def test_beyond_the_clip_all_offsets_are_one(build):
    enc = build("shaw", clip=2)
    q = random(1, 2, 9, 4)
    row = enc.bias(0, 9, 9).dense(q)[0, 0, 4]  # offsets -4 .. 4
    assert_close(row[0:3], row[2].expand(3), rtol=0, atol=0)
    assert_close(row[6:9], row[6].expand(3), rtol=0, atol=0)
    assert len({round(x.item(), 9) for x in row[2:7]}) == 5


def test_unclipped_has_a_vector_for_every_offset(build):
    enc = build("shaw", clip=None, max_length=9)
    q, k, v = random(3, 1, 2, 9, 4).unbind(0)
    w_keys, w_values = tables(enc, 0)
    assert w_keys.shape == w_values.shape == (2, 17, 4)
    expected = relation_aware_attention(
        q, k, v, edges_of_sequence(w_keys, 9, 9)[None], edges_of_sequence(w_values, 9, 9)[None], 0.5
    )
    assert_close(attend(q, k, v, enc.bias(0, 9, 9), enc.value_bias(0, 9, 9), 0.5), expected, **EXACT)
    corner = enc.bias(0, 9, 9).dense(q)[0, 0, 0]  # offsets 0 .. 8, none of them shared
    assert len({round(x.item(), 9) for x in corner}) == 9


def test_keys_and_values_have_tables_of_their_own(build):
    """Sec. 3.1: two distinct edge representations."""
    enc = build("shaw")
    assert not torch.equal(*tables(enc, 0))
    with torch.no_grad():
        before = enc.value_bias(0, 5, 5).dense().clone()
        enc.key_table.add_(1.0)
    assert_close(enc.value_bias(0, 5, 5).dense(), before, rtol=0, atol=0)


def labelled_graph(batch, q_len, k_len, labels, seed=4):
    return torch.randint(0, labels, (batch, q_len, k_len), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("graphs", [1, 2])
@pytest.mark.parametrize("table_heads", [1, 2])
def test_labelled_graphs_are_eqs_3_and_4(graphs, table_heads):
    """Sec. 3.1: any labels, asymmetric, over batches of different graphs."""
    labels = labelled_graph(graphs, 5, 7, 3)
    w_keys, w_values = random(table_heads, 3, 4), random(table_heads, 3, 4, seed=5)
    q, k, v = random(2, 2, 5, 4, seed=6), random(2, 2, 7, 4, seed=7), random(2, 2, 7, 4, seed=8)
    a_keys, a_values = torch.empty(2, 2, 2, 5, 7, 4, dtype=torch.float64).unbind(0)
    for b in range(2):
        for h in range(2):
            for i in range(5):
                for j in range(7):
                    label = int(labels[b % graphs, i, j])
                    a_keys[b, h, i, j] = w_keys[h % table_heads, label]
                    a_values[b, h, i, j] = w_values[h % table_heads, label]
    expected = relation_aware_attention(q, k, v, a_keys, a_values, 0.7)
    assert_close(attend(q, k, v, EdgeKeys(w_keys, labels), EdgeValues(w_values, labels), 0.7), expected, **EXACT)


@pytest.mark.parametrize("q_start", [0, 3])
def test_a_sequence_is_a_graph_whose_labels_are_clipped_offsets(q_start):
    """Sec. 3.2 is Sec. 3.1 with labels clip(j - i) + K, in value and in every gradient."""
    q = random(2, 2, 5, 4).requires_grad_()
    table = random(2, 5, 4, seed=5).requires_grad_()
    labels = torch.tensor([[clip(j - q_start - i, 2) + 2 for j in range(8)] for i in range(5)])[None]
    weights = random(2, 2, 5, 8, seed=9)

    by_offset = RelativeKeys(table, q_start).bind(5, 8).dense(q, scale=0.3)
    by_label = EdgeKeys(table, labels).dense(q, scale=0.3)
    assert_close(by_offset, by_label, **EXACT)
    for one, other in zip(
        torch.autograd.grad((by_offset * weights).sum(), (q, table)),
        torch.autograd.grad((by_label * weights).sum(), (q, table)),
        strict=True,
    ):
        assert_close(one, other, **EXACT)

    by_offset, by_label = RelativeValues(table, q_start), EdgeValues(table, labels)
    assert_close(by_offset.dense(q_len=5, k_len=8), by_label.dense(), **EXACT)
    assert_close(by_offset.weigh(weights), by_label.weigh(weights), **EXACT)


def test_the_encoding_is_that_graph(build):
    enc = build("shaw", clip=3)
    q = random(1, 2, 6, 4)
    labels = torch.tensor([[clip(j - i, 3) + 3 for j in range(6)] for i in range(6)])[None]
    w_keys, w_values = tables(enc, 1)
    assert_close(enc.bias(1, 6, 6).dense(q), EdgeKeys(w_keys, labels).dense(q), **EXACT)
    assert_close(enc.value_bias(1, 6, 6).dense(), EdgeValues(w_values, labels).dense(), **EXACT)


@pytest.mark.parametrize("length", [1, 5, 9])
def test_music_transformer_is_shaw_without_values_and_without_clipping(build, length):
    """Huang et al. (2019): softmax((Q K^T + S) / sqrt(D)) V, where S[i, j] = Q[i] . E[j - i]."""
    enc = build("music-transformer", max_length=9)
    q, k, v = random(3, 2, 2, length, 4).unbind(0)
    assert enc.value_bias(0, length, length) is None
    for layer in range(2):
        table = enc.key_table.detach()[layer]  # offset -8 first
        relative = torch.zeros(2, 2, length, length, dtype=torch.float64)
        for i in range(length):
            for j in range(length):
                relative[:, :, i, j] = (q[:, :, i] * table[:, j - i + 8]).sum(-1)
        scores = (q @ k.mT + relative) / 2
        got = attend(q, k, v, enc.bias(layer, length, length), None, 0.5)
        assert_close(got, (scores, scores.softmax(-1) @ v), **EXACT)
    assert build("music-transformer", clip=2).key_table.shape[-2] == 5
