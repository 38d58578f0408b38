"""Encodings side by side: Wennberg and Henter (2021), Eq. (4a), position embeddings supplemented by F_P.

softmax(Q K^T / sqrt(d) + F_P) V with Q, K, V from embeddings that have their positions: each part acts as it does
alone, and what meets in one place adds up.
"""

import itertools

import pytest
import torch
from torch.testing import assert_close

EXACT = {"rtol": 1e-10, "atol": 1e-10}
BIASED = ["shaw", "t5", "tisa", "alibi", "diet-abs", "diet-rel", "abs-scalar"]


def random(*shape, seed=1):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("names", list(itertools.combinations(BIASED, 2)), ids="+".join)
def test_biases_add_up(build, names):
    enc = build("+".join(names))
    q = random(2, 2, 5, 4)
    for layer in range(2):
        for q_len, q_start in ((5, 0), (2, 3)):
            here = q[:, :, q_start : q_start + q_len]
            expected = sum(part.bias(layer, q_len, 5, q_start).dense(here) for part in enc.parts)
            got = enc.bias(layer, q_len, 5, q_start).dense(here)
            assert_close(got, expected.expand_as(got), **EXACT)


@pytest.mark.parametrize("name", ["learned+tisa", "tisa+learned", "sinusoidal+diet-rel"])
def test_supplementing_is_eq_4a(build, name):
    """Each part acts where it belongs, with the parameters it holds."""
    enc = build(name)
    at_input, at_scores = sorted(enc.parts, key=lambda part: part.places)
    x = random(2, 5, 8)
    assert_close(enc.embed(x), at_input.embed(x), rtol=0, atol=0)
    assert_close(enc.bias(1, 5, 5).dense(), at_scores.bias(1, 5, 5).dense(), rtol=0, atol=0)
    assert enc.places == ("input", "scores")


def test_inputs_add_up(build):
    enc = build("learned+sinusoidal")
    x = random(2, 5, 8)
    zero = torch.zeros_like(x)
    assert_close(enc.embed(x), x + enc.parts[0].embed(zero) + enc.parts[1].embed(zero), **EXACT)


def test_three_parts(build):
    enc = build("learned+rope+diet-rel")
    q, k = random(2, 2, 2, 5, 4).unbind(0)
    assert enc.places == ("input", "queries and keys", "scores")
    assert_close(enc.rotate(q, k), enc.parts[1].rotate(q, k), rtol=0, atol=0)
    assert_close(enc.bias(0, 5, 5).dense(), enc.parts[2].bias(0, 5, 5).dense(), rtol=0, atol=0)


def test_values_pass_through(build):
    enc = build("learned+shaw")
    assert_close(enc.value_bias(1, 5, 5).dense(), enc.parts[1].value_bias(1, 5, 5).dense(), rtol=0, atol=0)
    assert build("learned+tisa").value_bias(0, 5, 5) is None


def test_twice_the_same(build):
    enc = build("tisa+tisa")
    expected = enc.parts[0].bias(0, 5, 5).dense() + enc.parts[1].bias(0, 5, 5).dense()
    assert_close(enc.bias(0, 5, 5).dense(), expected, **EXACT)
    assert (enc.parts[0].amplitude - enc.parts[1].amplitude).abs().max().item() > 1e-3


def test_options_go_to_the_part_that_has_them(build):
    enc = build("shaw+t5+diet-abs", clip=3, buckets=8, max_distance=20, rank=2)
    assert enc.parts[0].key_table.shape == (2, 2, 7, 4)
    assert enc.parts[1].table.shape == (1, 2, 8)
    assert enc.parts[2].left.shape == (2, 2, 16, 2)
    with pytest.raises(ValueError, match="kernels"):
        build("shaw+t5", kernels=3)


def test_sharing_goes_to_the_parts_that_can(build):
    enc = build("learned+diet-rel+t5", sharing="head")
    assert enc.parts[1].values.shape == (2, 1, 31)
    assert enc.parts[2].table.shape == (2, 1, 32)
    with pytest.raises(ValueError, match=r"sharing: .*no per-head parameters"):
        build("learned+rope", sharing="head")


def test_one_scale_for_all_parts(build):
    assert build("learned+tisa").scale is None
    assert build("tupe-abs+tisa").scale == pytest.approx(8**-0.5)


@pytest.mark.parametrize("name", ["tupe-abs+transformer-xl", "transformer-xl+tupe-rel"])
def test_parts_that_need_different_scales_are_refused(build, name):
    """Transformer-XL divides all four terms by sqrt(d), TUPE the words by sqrt(2d): one attention has one scale."""
    with pytest.raises(ValueError, match=r"scale.*transformer-xl"):
        build(name)
