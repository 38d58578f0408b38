"""Positions added to the input, against their formulas by loops.

Sinusoidal: Vaswani et al. (2017), Sec. 3.5, as written out in Chen et al. (2021a), Sec. 2.2.1:
P[k, 2i] = sin(k / 10000^(2i/d)), P[k, 2i+1] = cos(k / 10000^(2i/d)).
Learned: Devlin et al. (2018); Chen et al. (2021a), Sec. 2.2.1: one vector per position, added to the token's.
"""

import math

import pytest
import torch
from torch.testing import assert_close


def random(*shape, seed=1):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def sinusoid(k, d):
    row = []
    for column in range(d):
        angle = k / 10000 ** ((column - column % 2) / d)
        row.append(math.cos(angle) if column % 2 else math.sin(angle))
    return torch.tensor(row, dtype=torch.float64)


@pytest.mark.parametrize(("length", "q_start"), [(1, 0), (5, 0), (16, 0), (1, 8), (4, 5), (3, 1000)])
@pytest.mark.parametrize(("num_heads", "head_dim"), [(2, 4), (3, 6), (1, 2)])
def test_sinusoids(build, length, q_start, num_heads, head_dim):
    enc = build("sinusoidal", num_heads=num_heads, head_dim=head_dim)
    width = num_heads * head_dim
    x = random(2, length, width)
    expected = x.clone()
    for b in range(2):
        for n in range(length):
            expected[b, n] += sinusoid(q_start + n, width)
    assert_close(enc.embed(x, q_start=q_start), expected, rtol=1e-10, atol=1e-10)


def test_waves_of_another_amplitude(build):
    x = random(1, 5, 8)
    waves = build("sinusoidal").embed(torch.zeros_like(x))
    assert_close(build("sinusoidal", amplitude=0.03).embed(x), x + 0.03 * waves, rtol=1e-12, atol=1e-12)


def test_a_shift_is_the_same_rotation_everywhere(build):
    """Vaswani et al. (2017), Sec. 3.5: P[k + n] is a linear function of P[k] that does not depend on k."""
    enc = build("sinusoidal")
    p = enc.embed(torch.zeros(1, 16, 8, dtype=torch.float64))[0]
    for n in (1, 3):
        products = [(p[k] @ p[k + n]).item() for k in range(16 - n)]
        assert max(products) - min(products) < 1e-12


@pytest.mark.parametrize(("length", "q_start"), [(1, 0), (5, 0), (16, 0), (1, 15), (4, 5)])
def test_learned(build, length, q_start):
    enc = build("learned")
    (table,) = enc.parameters()
    assert table.shape == (16, 8)
    x = random(2, length, 8)
    expected = x.clone()
    for b in range(2):
        for n in range(length):
            for e in range(8):
                expected[b, n, e] += table[q_start + n, e].item()
    assert_close(enc.embed(x, q_start=q_start), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["sinusoidal", "learned"])
def test_acts_on_the_input_alone(build, name):
    enc = build(name)
    q, k = random(2, 1, 2, 5, 4).unbind(0)
    assert enc.bias(0, 5, 5) is None
    assert enc.value_bias(0, 5, 5) is None
    for before, after in zip((q, k), enc.rotate(q, k), strict=True):
        assert_close(after, before, rtol=0, atol=0)


def test_none_does_nothing(build):
    enc = build("none")
    x, (q, k) = random(1, 5, 8), random(2, 1, 2, 5, 4)
    assert_close(enc.embed(x), x, rtol=0, atol=0)
    assert_close(torch.stack(enc.rotate(q, k)), torch.stack([q, k]), rtol=0, atol=0)
    assert enc.bias(0, 5, 5) is None and enc.value_bias(0, 5, 5) is None
    assert list(enc.parameters()) == []
