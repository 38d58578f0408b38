"""TUPE against its formula, by loops.

Ke, He and Liu (2021), "Rethinking Positional Encoding in Language Pre-training"; Chen et al. (2021a), Eq. (5):
    A_ij = q_i . k_j / sqrt(2d) + Reset_theta((p_i U^Q) . (p_j U^K) / sqrt(2d) + b_{j-i}, i, j).
Both correlations are divided by sqrt(2d), the relative bias is not. p goes through LayerNorm, the projections have
biases. The reset sets column 0 to theta_2 first (others to [CLS]) and then row 0 to theta_1 ([CLS] to others), so
[CLS] to [CLS] is theta_1.
"""

import math

import pytest
import torch
from torch.testing import assert_close

EXACT = {"rtol": 1e-9, "atol": 1e-9}
LENGTHS = [(1, 1, 0), (5, 5, 0), (9, 9, 0), (1, 9, 8), (3, 9, 4), (5, 9, 0), (9, 5, 0)]


def layer_norm(row, weight, bias, eps):
    mean = sum(row) / len(row)
    variance = sum((x - mean) ** 2 for x in row) / len(row)
    return [(x - mean) / math.sqrt(variance + eps) * w + b for x, w, b in zip(row, weight, bias, strict=True)]


def projected(row, weight, bias):
    """row times weight (E, D), plus bias (D)."""
    return [sum(x * w[c] for x, w in zip(row, weight, strict=True)) + bias[c] for c in range(len(bias))]


def t5_bucket(offset):
    """32 buckets in both directions up to 128, for the short distances used here (see test_t5.py for all of them)."""
    starts = [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91]
    return max(n for n, start in enumerate(starts) if start <= abs(offset)) + (16 if offset > 0 else 0)


def by_hand(enc, layer, q_len, k_len, q_start, *, relative, reset):
    heads, d = enc.query_bias.shape[1:]
    positions = [
        layer_norm(row, enc.norm.weight.tolist(), enc.norm.bias.tolist(), enc.norm.eps) for row in enc.table.tolist()
    ]
    bias = torch.empty(1, heads, q_len, k_len, dtype=torch.float64)
    for h in range(heads):
        query_weight, query_bias, key_weight, key_bias = (
            getattr(enc, name)[layer, h].tolist() for name in ("query_weight", "query_bias", "key_weight", "key_bias")
        )
        for i in range(q_len):
            for j in range(k_len):
                query = projected(positions[q_start + i], query_weight, query_bias)
                key = projected(positions[j], key_weight, key_bias)
                value = sum(x * y for x, y in zip(query, key, strict=True)) / math.sqrt(2 * d)
                if relative:
                    value += enc.relative.table[layer, h, t5_bucket(j - q_start - i)].item()
                if reset and j == 0:
                    value = enc.theta2[layer, h].item()
                if reset and q_start + i == 0:  # after the column: [CLS] to [CLS] is theta_1
                    value = enc.theta1[layer, h].item()
                bias[0, h, i, j] = value
    return bias


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("name", ["tupe-abs", "tupe-rel"])
@pytest.mark.parametrize(("q_len", "k_len", "q_start"), LENGTHS)
def test_is_the_formula(build, name, reset, q_len, k_len, q_start):
    enc = build(name, sharing="none", reset=reset)
    for layer in range(2):
        expected = by_hand(enc, layer, q_len, k_len, q_start, relative=name == "tupe-rel", reset=reset)
        assert_close(enc.bias(layer, q_len, k_len, q_start).dense(), expected, **EXACT)


@pytest.mark.parametrize("name", ["tupe-abs", "tupe-rel"])
def test_one_table_and_pair_of_projections_serve_all_layers(build, name):
    enc = build(name, num_layers=3)
    assert enc.sharing == "layer"
    assert enc.query_weight.shape == enc.key_weight.shape == (1, 2, 8, 4)
    expected = by_hand(enc, 0, 5, 5, 0, relative=name == "tupe-rel", reset=True)
    for layer in range(3):
        assert_close(enc.bias(layer, 5, 5).dense(), expected, **EXACT)


@pytest.mark.parametrize("name", ["tupe-abs", "tupe-rel"])
def test_words_are_scaled_by_the_square_root_of_2d_too(build, name):
    assert build(name, head_dim=8).scale == pytest.approx(1 / 4, rel=1e-15)
    assert build(name, head_dim=4).scale == pytest.approx(1 / math.sqrt(8), rel=1e-15)


@pytest.mark.parametrize("name", ["tupe-abs", "tupe-rel"])
def test_the_reset_row_and_column_are_constant(build, name):
    enc = build(name)
    bias = enc.bias(0, 9, 9).dense()[0]
    for h in range(2):
        assert_close(bias[h, 0], enc.theta1[0, h].expand(9), **EXACT)
        assert_close(bias[h, 1:, 0], enc.theta2[0, h].expand(8), **EXACT)
    assert (enc.theta1 - enc.theta2).abs().min().item() > 1e-3


def test_relative_terms_reach_everything_but_cls(build):
    """The buckets are inside the reset: they change no score from or to [CLS]."""
    enc = build("tupe-rel")
    before = enc.bias(0, 9, 9).dense().detach()
    with torch.no_grad():
        enc.relative.table.add_(1.0)
    moved = enc.bias(0, 9, 9).dense() - before
    assert_close(moved[..., 0, :], torch.zeros(1, 2, 9, dtype=torch.float64), **EXACT)
    assert_close(moved[..., :, 0], torch.zeros(1, 2, 9, dtype=torch.float64), **EXACT)
    assert_close(moved[..., 1:, 1:], torch.ones(1, 2, 8, 8, dtype=torch.float64), **EXACT)


@pytest.mark.parametrize("name", ["tupe-abs", "tupe-rel"])
def test_gradients_of_the_reset(build, name):
    """theta_1 collects row 0, theta_2 the rest of column 0, and position 0 itself gets nothing."""
    enc = build(name)
    weights = torch.randn(2, 9, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    (enc.bias(0, 9, 9).dense()[0] * weights).sum().backward()
    for h in range(2):
        assert_close(enc.theta1.grad[0, h].item(), sum(weights[h, 0].tolist()), **EXACT)
        assert_close(enc.theta2.grad[0, h].item(), sum(weights[h, 1:, 0].tolist()), **EXACT)
    assert_close(enc.table.grad[0], torch.zeros(8, dtype=torch.float64), **EXACT)
    assert (enc.table.grad[1:9].abs().amax(-1) > 0).all()


def test_each_packed_text_has_a_cls(build):
    enc = build("tupe-rel")
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    bias = enc.bias(0, 7, 7, documents=documents).dense()
    assert_close(bias[..., 3:, 3:], by_hand(enc, 0, 4, 4, 0, relative=True, reset=True), **EXACT)
    assert_close(bias[..., :3, :3], by_hand(enc, 0, 3, 3, 0, relative=True, reset=True), **EXACT)
