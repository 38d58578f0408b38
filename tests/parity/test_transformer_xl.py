"""Transformer-XL's relative attention from its four terms, by loops, and against the published XLNet module.

Dai et al. (2019), "Transformer-XL", Sec. 3.3 (and Chen et al. 2021a, Sec. 2.2.2): with q = W_q x, k = W_k,E x
    A_ij = q_i . k_j            (a)  + q_i . (W_k,R R_{i-j})  (b)
         + u . k_j              (c)  + v . (W_k,R R_{i-j})    (d),    scores = A / sqrt(d).
R_n is the sinusoid of the distance n = i - j; for keys to the right n is negative, as in Yang et al. (2019), "XLNet".
What is compared is the whole score: scale * q' . k' + bias(q'), with q', k' what `rotate` returns; less the mean of its
row, since what all keys of a query share changes no weight and is left out of the bias.
"""

import math

import pytest
import torch
from torch.testing import assert_close

from headway import attention

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def random(*shape, seed=1):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def sinusoid(n, width):
    """R_n: all sines, then all cosines (the layout of both papers' code)."""
    frequencies = [10000.0 ** (-2 * m / width) for m in range(width // 2)]
    return [math.sin(n * w) for w in frequencies] + [math.cos(n * w) for w in frequencies]


def four_terms(enc, layer, q, k, q_start, width, scale):
    """(B, H, Lq, Lk) from (a) to (d), one pair at a time."""
    batch, heads, q_len, d = q.shape
    k_len = k.shape[2]
    scores = torch.empty(batch, heads, q_len, k_len, dtype=torch.float64)
    for h in range(heads):
        u, v, w_r = (parameter[layer, h].tolist() for parameter in (enc.u, enc.v, enc.projection))
        for i in range(q_len):
            for j in range(k_len):
                r = sinusoid(q_start + i - j, width)
                relative_key = [sum(r[e] * w_r[e][c] for e in range(width)) for c in range(d)]
                for b in range(batch):
                    qi, kj = q[b, h, i].tolist(), k[b, h, j].tolist()
                    total = 0.0
                    for c in range(d):
                        total += qi[c] * kj[c]  # (a)
                        total += qi[c] * relative_key[c]  # (b)
                        total += u[c] * kj[c]  # (c)
                        total += v[c] * relative_key[c]  # (d)
                    scores[b, h, i, j] = scale * total
    return scores


def same_weights(scores, expected):
    """Equal but for a number for each query."""
    less_mean = (each - each.mean(-1, keepdim=True) for each in (scores, expected))
    assert_close(*less_mean, **EXACT)


def scores_of(enc, layer, q, all_k, q_start):
    """What attention computes from the encoding: queries q_start .. q_start + Lq, keys 0 .. Lk."""
    q_len, k_len = q.shape[2], all_k.shape[2]
    scale = q.shape[-1] ** -0.5 if enc.scale is None else enc.scale
    turned_q, _ = enc.rotate(q, q, layer=layer, q_start=q_start)
    _, turned_k = enc.rotate(all_k, all_k, layer=layer)
    return scale * turned_q @ turned_k.transpose(-1, -2) + enc.bias(layer, q_len, k_len, q_start).dense(
        turned_q, scale=scale
    )


@pytest.mark.parametrize(
    ("q_len", "k_len", "q_start"),
    [(1, 1, 0), (5, 5, 0), (9, 9, 0), (1, 9, 8), (3, 9, 6), (5, 9, 0), (9, 5, 0), (3, 9, 4)],
)
def test_is_the_four_terms(build, q_len, k_len, q_start):
    enc = build("transformer-xl")
    q, k = random(2, 2, q_len, 4), random(2, 2, k_len, 4, seed=2)
    for layer in range(2):
        expected = four_terms(enc, layer, q, k, q_start, width=8, scale=0.5)
        same_weights(scores_of(enc, layer, q, k, q_start), expected)


def test_beyond_max_length(build):
    enc = build("transformer-xl", max_length=4)
    q, k = random(2, 1, 2, 11, 4).unbind(0)
    expected = four_terms(enc, 1, q, k, 0, width=8, scale=0.5)
    same_weights(scores_of(enc, 1, q, k, 0), expected)
    same_weights(scores_of(enc, 1, q, k, 0), expected)  # and once more, from what was kept


@pytest.mark.parametrize("sharing", ["head", "layer"])
def test_shared_parameters_are_the_same_formula(build, sharing):
    shared, unique = build("transformer-xl", sharing=sharing), build("transformer-xl")
    with torch.no_grad():
        for (_, one), (_, other) in zip(shared.named_parameters(), unique.named_parameters(), strict=True):
            other.copy_(one.expand_as(other))
    q, k = random(2, 1, 2, 5, 4).unbind(0)
    expected = four_terms(unique, 1, q, k, 0, width=8, scale=0.5)
    same_weights(scores_of(shared, 1, q, k, 0), expected)


def test_left_and_right_are_told_apart(build):
    """Sines are odd: R_n and R_-n differ, so the score at distance n does too."""
    enc = build("transformer-xl")
    q, k = (random(1, 2, 1, 4, seed=s).expand(1, 2, 9, 4) for s in (1, 2))
    scores = scores_of(enc, 0, q, k, 0)[0, 0]
    for n in range(1, 5):
        assert abs((scores[4, 4 - n] - scores[4, 4 + n]).item()) > 1e-4
    assert_close(scores[0, :5], scores[4, 4:], **EXACT)  # and nothing but the offset counts


def test_what_all_keys_share_costs_no_precision(build):
    """Slow waves hardly change over a text: a large weight of theirs is a large number in all scores of a query."""
    enc = build("transformer-xl", embed_dim=64)
    with torch.no_grad():
        enc.projection *= 0.1
        enc.projection[:, :, -8:] += 20.0  # the slowest cosines
    q, k, v = random(3, 1, 2, 32, 4).unbind(0)
    outputs = []
    for dtype in (torch.float64, torch.bfloat16):
        enc.to(dtype)
        q, k, v = (t.to(dtype) for t in (q, k, v))
        turned, _ = enc.rotate(q, k, layer=0)
        outputs.append(attention(turned, k, v, enc.bias(0, 32, 32), scale=enc.scale).double())
    assert_close(outputs[1], outputs[0], rtol=0.0, atol=0.05)


@pytest.mark.parametrize(("q_len", "memory"), [(1, 0), (6, 0), (9, 0), (4, 5), (1, 8)])
def test_the_same_weights_as_the_published_xlnet(build, q_len, memory):
    """XLNet in both directions, with and without memory: softmax((ac + bd) / sqrt(d)) of its own code."""
    from transformers import XLNetConfig
    from transformers.models.xlnet.modeling_xlnet import XLNetModel

    k_len = memory + q_len
    config = XLNetConfig(
        vocab_size=5,
        d_model=8,
        n_layer=1,
        n_head=2,
        d_inner=4,
        attn_type="bi",
        bi_data=False,
        clamp_len=-1,
        dropout=0.0,
    )
    model = XLNetModel(config).double().eval()
    attention = model.layer[0].rel_attn
    enc = build("transformer-xl")
    with torch.no_grad():
        attention.r_w_bias.copy_(enc.u[0])
        attention.r_r_bias.copy_(enc.v[0])
        attention.r.copy_(enc.projection[0].transpose(0, 1))  # (E, H, D)
        q, k = random(1, 2, q_len, 4), random(1, 2, k_len, 4, seed=2)
        waves = model.relative_positional_encoding(q_len, k_len, bsz=1).double()  # theirs, made in float32
        _, published = attention.rel_attn_core(
            q.permute(2, 0, 1, 3),
            k.permute(2, 0, 1, 3),
            k.permute(2, 0, 1, 3),
            torch.einsum("nbe,ehd->nbhd", waves, attention.r),
            output_attentions=True,
        )
        weights = scores_of(enc, 0, q, k, memory).softmax(-1)
    assert_close(weights, published.permute(2, 3, 0, 1), rtol=1e-5, atol=1e-6)
