"""F_P as measured, and encodings fitted to it, against what is known by construction."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from headway.encodings import encoding, t5_buckets
from headway.pretrained.analysis import diagonals, fit_tisa, position_scores, read
from headway.pretrained.conversion import convert
from headway.pretrained.conversion.conversion import Conversion
from headway.pretrained.conversion.converted import encoding_of
from headway.pretrained.conversion.fitting import fit, zero
from headway.pretrained.conversion.hugging_face import build
from headway.pretrained.conversion.position_factors import PositionFactors, position_factors

LENGTH, HEADS, LAYERS = 24, 2, 3


@pytest.fixture
def planted():
    """F_P of three layers, random, in factors of rank 5, its rows' means 0."""
    draw = torch.Generator().manual_seed(0)
    parts = []
    for _ in range(LAYERS):
        left, right = (torch.randn(HEADS, LENGTH, 5, generator=draw, dtype=torch.float64) for _ in range(2))
        parts.append(PositionFactors(left, right - right.mean(1, keepdim=True)))
    return parts


def matrices(parts):
    return torch.stack([part.left @ part.right.transpose(-1, -2) for part in parts])  # (layers, H, L, L)


def built(name, **options):
    sizes = {"num_layers": LAYERS, "num_heads": HEADS, "head_dim": 8, "max_length": LENGTH}
    return encoding(name, **{**sizes, **options}).double()


def biases(enc, length=LENGTH):
    return torch.stack([enc.bias(n, length, length).dense()[0].expand(HEADS, -1, -1) for n in range(LAYERS)]).detach()


def by_offset(matrix, offset):  # the mean of a diagonal, by hand
    return np.mean([float(matrix[i, i + offset]) for i in range(len(matrix)) if 0 <= i + offset < len(matrix)])


def test_the_first_layer_has_what_replacing_takes_from_its_scores(tiny, ids):
    """With one text there is no average: q k^T of both models is there to be looked at."""
    model = tiny("bert")
    replaced = build(model, Conversion(encoding="diet-rel", mode="replace", max_length=24))
    zero(encoding_of(replaced))
    found = position_factors(model, replaced, ids[:1], first_is_special=True)
    scores = []
    for each in (model, replaced):
        x = each.embeddings(input_ids=ids[:1])
        attention = each.encoder.layer[0].attention.self
        q, k = (part(x)[0].view(20, 4, 8).transpose(0, 1) for part in (attention.query, attention.key))
        scores.append(q @ k.transpose(-1, -2) / 8**0.5)
    want = scores[0] - scores[1]
    want = want - want.mean(-1, keepdim=True)
    torch.testing.assert_close(found[0].left @ found[0].right.transpose(-1, -2), want)


def test_with_all_of_it_one_text_is_attended_as_in_the_original(tiny, ids):
    """DIET-ABS with a rank that F_P does not exceed gives the first layer exactly the weights of the original."""
    model, ids = tiny("bert", num_hidden_layers=1), torch.cat([ids, ids[:, :4]], 1)
    replaced = build(model, Conversion(encoding="diet-abs:rank=16", mode="replace", max_length=24))
    fit(encoding_of(replaced), position_factors(model, replaced, ids[:1], first_is_special=True))
    model.set_attn_implementation("eager")
    mine, theirs = (each(ids[:1], output_attentions=True).attentions[0] for each in (replaced, model))
    torch.testing.assert_close(mine, theirs)


def test_position_0_is_levelled_where_no_special_token_stands_there(tiny, ids):
    model = tiny("bert")
    replaced = build(model, Conversion(encoding="diet-rel", mode="replace", max_length=24))
    for part in position_factors(model, replaced, ids, first_is_special=False):
        torch.testing.assert_close(part.left[:, 0], part.left[:, 1:].mean(1))
        torch.testing.assert_close(part.right[:, 0], part.right[:, 1:].mean(1))


@pytest.mark.parametrize("sharing", ["none", "head", "layer"])
def test_diet_rel_is_the_mean_of_each_diagonal(planted, sharing):
    enc = built("diet-rel", sharing=sharing)
    fit(enc, planted)
    want = matrices(planted)
    if sharing != "none":
        want = want.mean(0 if sharing == "layer" else 1, keepdim=True).expand_as(want)
    got = biases(enc)
    for offset in range(-20, 21):  # the outermost tenth is averaged
        torch.testing.assert_close(float(got[1, 1].diagonal(offset)[0]), by_offset(want[1, 1], offset))


def test_diet_rel_goes_on_beyond_the_positions_as_it_ends(planted):
    enc = built("diet-rel", max_length=40)
    fit(enc, planted)
    values = enc.values.detach()[0, 0]  # offsets -39 .. 39
    matrix = matrices(planted)[0, 0]
    ends = [(offset, by_offset(matrix, offset), LENGTH - offset) for offset in (21, 22, 23)]
    mean = sum(value * count for _, value, count in ends) / sum(count for _, _, count in ends)
    torch.testing.assert_close(values[39 + 21 :], torch.full((19,), mean, dtype=torch.float64))


def test_t5_is_the_mean_of_each_bucket(planted):
    enc = built("t5", sharing="none", buckets=8, max_distance=12)
    fit(enc, planted)
    offset = torch.arange(LENGTH)[None] - torch.arange(LENGTH)[:, None]
    bucket = t5_buckets(offset, buckets=8, max_distance=12)
    matrix = matrices(planted)[2, 0]
    for n in bucket.unique():
        torch.testing.assert_close(enc.table.detach()[2, 0, n], matrix[bucket == n].mean())


def test_t5_shared_by_layers_is_the_mean_over_them(planted):
    enc = built("t5")
    fit(enc, planted)
    assert enc.table.shape[0] == 1
    torch.testing.assert_close(float(enc.table.detach()[0, 1, 0]), by_offset(matrices(planted).mean(0)[1], 0))


@pytest.mark.parametrize("rank", [2, 5, 9])
def test_diet_abs_is_the_truncated_svd(planted, rank):
    enc = built("diet-abs", rank=rank)
    fit(enc, planted)
    u, s, vh = torch.linalg.svd(matrices(planted))
    want = (u[..., :rank] * s[..., None, :rank]) @ vh[..., :rank, :]
    torch.testing.assert_close(biases(enc), want)


def test_a_rank_to_spare_can_learn(planted):
    enc = built("diet-abs", rank=9)
    fit(enc, planted)
    sum(enc.bias(n, LENGTH, LENGTH).dense().pow(2).sum() for n in range(LAYERS)).backward()
    assert (enc.left.grad[..., 5:] != 0).any()


@pytest.mark.parametrize("sharing", ["head", "layer"])
def test_diet_abs_shared_is_the_svd_of_the_mean(planted, sharing):
    enc = built("diet-abs", rank=15, sharing=sharing)
    fit(enc, planted)
    want = matrices(planted).mean(0 if sharing == "layer" else 1, keepdim=True).expand(LAYERS, HEADS, -1, -1)
    torch.testing.assert_close(biases(enc), want)


def test_diet_abs_for_longer_texts_keeps_what_is_known(planted):
    enc = built("diet-abs", rank=40, max_length=40)
    fit(enc, planted)
    got = biases(enc, 40)
    torch.testing.assert_close(got[..., :LENGTH, :LENGTH], matrices(planted), rtol=1e-5, atol=1e-5)
    inner = by_offset(matrices(planted)[0, 0], 3)  # beyond, the profile of offsets
    torch.testing.assert_close(float(got[0, 0, 30, 33]), inner, rtol=1e-5, atol=1e-5)


def test_tisa_finds_planted_kernels():
    offset = (torch.arange(60)[None] - torch.arange(60)[:, None]).double()
    curve = 3 * torch.exp(-0.5 * (offset + 1) ** 2) - 2 * torch.exp(-0.02 * (offset - 8) ** 2)
    centered = curve - curve.mean(-1, keepdim=True)
    left, right = centered[None], torch.eye(60, dtype=torch.float64)[None]
    right = right - right.mean(1, keepdim=True)  # left's rows sum to 0: the product is the same
    enc = encoding("tisa", num_layers=1, num_heads=1, head_dim=4, kernels=2).double()
    fit(enc, [PositionFactors(left, right)])
    order = enc.center.detach()[0, 0].argsort()
    assert enc.center[0, 0][order].tolist() == pytest.approx([-1, 8], abs=0.5)
    assert enc.amplitude[0, 0][order].tolist() == pytest.approx([3, -2], rel=0.2)


def test_alibi_stays(planted):
    enc = built("alibi")
    before = biases(enc)
    fit(enc, planted)
    zero(enc)
    assert torch.equal(biases(enc), before)


@pytest.mark.parametrize("name", ["tisa", "diet-rel", "diet-abs", "t5"])
def test_zero_is_zero_and_can_learn(name):
    enc = built(name)
    zero(enc)
    assert not biases(enc).any()
    draw = torch.randn(LENGTH, LENGTH, dtype=torch.float64)
    sum((enc.bias(n, LENGTH, LENGTH).dense() * draw).sum() for n in range(LAYERS)).backward()
    assert any(parameter.grad.abs().max() > 0 for parameter in enc.parameters())


def test_the_fit_comes_nearer_than_nothing_and_diet_abs_nearest(tiny, ids):
    model = tiny("bert", initializer_range=0.15)
    want = model(ids).last_hidden_state
    errors = {}
    for to in ("diet-rel", "diet-abs", "t5"):
        for start in ("fit", "zero"):
            got = convert(model, to, mode="replace", start=start)(ids).last_hidden_state
            errors[to, start] = float((got - want).detach().norm())
    assert errors["diet-rel", "fit"] < errors["diet-rel", "zero"]
    assert errors["diet-abs", "fit"] < errors["diet-rel", "fit"]


@pytest.mark.parametrize("family", ["bert", "albert", "distilbert"])
def test_a_start_by_the_equation_is_fitted_to_eq_2_as_written(tiny, family):
    """DIET-ABS of full rank holds any F_P exactly, so that its bias must be Eq. (2) itself."""
    model = tiny(family)
    converted = convert(model, "diet-abs:rank=16", mode="supplement", start="equation")
    for layer in (0, 2):
        want = position_scores(read(model), layer, 24, formula="equation").matrices()
        found = encoding_of(converted).bias(layer, 24, 24).dense()[0].detach().numpy()
        np.testing.assert_allclose(found, want, rtol=1e-6, atol=1e-8)
    kernels = convert(model, "tisa:kernels=2", mode="supplement", start="equation")
    profile = diagonals(position_scores(read(model), 1, 24, formula="equation"))
    best = fit_tisa(profile, kernels=(2,))[0][2]
    want = best(profile.offsets) - best.constant
    found = encoding_of(kernels).bias(1, 24, 24).dense()[0, 0].detach().numpy()
    found = np.array([found.diagonal(offset)[0] for offset in profile.offsets])
    np.testing.assert_allclose(found, want, atol=1e-2 * np.ptp(want))
