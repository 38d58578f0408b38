"""RoPE against Su et al. (2021), "RoFormer", with the rotation matrices written out.

Eqs. (14) and (15): f(x, m) = R_m x with R_m block-diagonal, block i the turn by m theta_i, theta_i = base^(-2(i-1)/d),
i = 1..d/2, on the neighbours x_{2i-1}, x_{2i}. Eq. (16): <R_m q, R_n k> = q^T R_{n-m} k. Eq. (34) is the same turn
without the matrix. The half-split layout (GPT-NeoX, Llama) pairs x_i with x_{i + d/2} instead.
"""

import math

import pytest
import torch
from torch.testing import assert_close

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def random(*shape, seed=1):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def rotation(m, d, *, base=10000.0, turned=None, interleaved=True):
    """R_m, (d, d): the first `turned` coordinates turn, the others stand."""
    turned = d if turned is None else turned
    matrix = torch.eye(d, dtype=torch.float64)
    for i in range(1, turned // 2 + 1):
        angle = m * base ** (-2 * (i - 1) / turned)
        one, other = (2 * i - 2, 2 * i - 1) if interleaved else (i - 1, i - 1 + turned // 2)
        matrix[one, one] = math.cos(angle)
        matrix[one, other] = -math.sin(angle)
        matrix[other, one] = math.sin(angle)
        matrix[other, other] = math.cos(angle)
    return matrix


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize(("fraction", "turned"), [(1.0, 8), (0.5, 4), (0.25, 2)])
@pytest.mark.parametrize("base", [10000.0, 100.0])
@pytest.mark.parametrize(("length", "q_start"), [(1, 0), (9, 0), (1, 8), (3, 1000)])
def test_rotation_matrices(build, interleaved, fraction, turned, base, length, q_start):
    enc = build("rope", head_dim=8, base=base, fraction=fraction, interleaved=interleaved)
    q, k = random(2, 2, 2, length, 8).unbind(0)
    for before, after in zip((q, k), enc.rotate(q, k, layer=1, q_start=q_start), strict=True):
        expected = torch.empty_like(before)
        for n in range(length):
            matrix = rotation(q_start + n, 8, base=base, turned=turned, interleaved=interleaved)
            for b in range(2):
                for h in range(2):
                    expected[b, h, n] = matrix @ before[b, h, n]
        assert_close(after, expected, **EXACT)


def test_the_defaults_are_the_paper(build):
    enc = build("rope")
    q, k = random(2, 1, 2, 5, 4).unbind(0)
    expected = torch.stack([rotation(n, 4) @ q[0, 0, n] for n in range(5)])
    assert_close(enc.rotate(q, k)[0][0, 0], expected, **EXACT)


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_scores_depend_on_the_offset_alone(build, interleaved, fraction):
    """Eq. (16): the same q and k at every position give a Toeplitz matrix q^T R_{n-m} k."""
    enc = build("rope", head_dim=8, interleaved=interleaved, fraction=fraction)
    one_q, one_k = random(2, 1, 1, 1, 8).unbind(0)
    q, k = enc.rotate(one_q.expand(1, 2, 9, 8), one_k.expand(1, 2, 9, 8))
    scores = (q @ k.transpose(-1, -2))[0, 0]
    for m in range(9):
        for n in range(9):
            matrix = rotation(n - m, 8, turned=int(8 * fraction), interleaved=interleaved)
            assert_close(scores[m, n], one_q[0, 0, 0] @ matrix @ one_k[0, 0, 0], **EXACT)
    assert abs((scores[0, 1] - scores[1, 0]).item()) > 1e-6  # left and right differ


@pytest.mark.parametrize("fraction", [1.0, 0.5])
def test_lengths_are_kept(build, fraction):
    enc = build("rope", head_dim=8, fraction=fraction)
    q, k = random(2, 1, 2, 9, 8).unbind(0)
    assert_close(enc.rotate(q, k)[0].norm(dim=-1), q.norm(dim=-1), **EXACT)


def half_split(d):
    """The order that puts the pairs (0, d/2), (1, d/2 + 1), ... of the half-split layout next to one another."""
    return [c for i in range(d // 2) for c in (i, i + d // 2)]


@pytest.mark.parametrize("source", ["llama", "gpt_neox"])
def test_half_split_is_the_published_rotate_half(build, source):
    if source == "llama":
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
    else:
        from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb

    q, k = random(2, 2, 2, 9, 8).unbind(0)
    angle = torch.tensor([[m * 10000.0 ** (-2 * i / 8) for i in range(4)] * 2 for m in range(9)], dtype=torch.float64)
    published = apply_rotary_pos_emb(q, k, angle.cos()[None], angle.sin()[None])
    assert_close(build("rope", head_dim=8, interleaved=False).rotate(q, k), tuple(published), **EXACT)

    order = half_split(8)  # and the interleaved layout is the same turn of permuted coordinates
    turned = build("rope", head_dim=8, interleaved=True).rotate(q[..., order], k[..., order])
    assert_close(turned, tuple(x[..., order] for x in published), **EXACT)


def test_a_part_is_turned_as_published(build):
    """GPT-NeoX turns the first quarter of each head (rotary_pct) and passes the rest through."""
    from transformers.models.gpt_neox.modeling_gpt_neox import apply_rotary_pos_emb

    q, k = random(2, 2, 2, 9, 16).unbind(0)
    angle = torch.tensor([[m * 10000.0 ** (-2 * i / 4) for i in range(2)] * 2 for m in range(9)], dtype=torch.float64)
    published = apply_rotary_pos_emb(q, k, angle.cos()[None], angle.sin()[None])
    enc = build("rope", head_dim=16, fraction=0.25, interleaved=False)
    assert_close(enc.rotate(q, k), tuple(published), **EXACT)


def test_interleaved_is_the_published_rotate_every_two(build):
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb

    q, k = random(2, 2, 2, 9, 8).unbind(0)
    angle = torch.tensor([[m * 10000.0 ** (-2 * i / 8) for i in range(4)] for m in range(9)], dtype=torch.float64)
    got = build("rope", head_dim=8).rotate(q, k)
    for before, after in zip((q, k), got, strict=True):  # GPT-J works in (B, L, H, D)
        published = apply_rotary_pos_emb(before.transpose(1, 2), angle.sin()[None], angle.cos()[None])
        assert_close(after, published.transpose(1, 2), **EXACT)


def turned_by(enc, position, d):
    """Angles at one position, read from how it turns the unit vectors of each pair."""
    unit = torch.zeros(1, 2, 1, d, dtype=torch.float64)
    unit[..., 0::2] = 1.0
    turned, _ = enc.rotate(unit, unit, q_start=position)
    return torch.atan2(turned[0, 0, 0, 1::2], turned[0, 0, 0, 0::2])


@pytest.mark.parametrize("scaling", [None, "linear", "ntk", "yarn"])
@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_frequencies_of_longer_texts(build, scaling, factor):
    """Chen et al. (2023) and Peng et al. (2023), Secs. 3.1 and 3.2, number by number."""
    if scaling is None and factor > 1:
        return
    d, base = 16, 100.0
    enc = build("rope", head_dim=d, base=base, scaling=scaling, factor=factor, max_length=512)
    for i, angle in enumerate(turned_by(enc, 1, d)):
        theta = base ** (-2 * i / d)
        if scaling == "linear":
            theta /= factor
        elif scaling == "ntk":
            theta = (base * factor ** (d / (d - 2))) ** (-2 * i / d)
        elif scaling == "yarn":
            wavelength = 2 * math.pi / theta
            ratio = 512 / wavelength
            ramp = 0.0 if ratio < 1 else 1.0 if ratio > 32 else (ratio - 1) / 31
            theta = (1 - ramp) * theta / factor + ramp * theta
        assert_close(angle.item(), theta, rtol=1e-9, atol=0)


def test_scalings_differ_where_their_papers_say(build):
    """ntk: the fastest pair as it was, the slowest interpolated. yarn: pairs of more than 32 turns as they were."""
    d, factor = 16, 4.0
    plain, linear, ntk, yarn = (
        turned_by(build("rope", head_dim=d, base=10000.0, max_length=512, **options), 1, d)
        for options in ({}, *({"scaling": each, "factor": factor} for each in ("linear", "ntk", "yarn")))
    )
    assert_close(ntk[0], plain[0])
    assert_close(ntk[-1], linear[-1])
    assert_close(yarn[0], plain[0])  # 81 turns in 512 positions
    assert_close(yarn[-1], linear[-1])  # a part of one turn
    assert (yarn[1:-1] <= plain[1:-1]).all() and (yarn[1:-1] >= linear[1:-1]).all()


def test_yarn_makes_scores_greater(build):
    """Peng et al. (2023), Sec. 3.4: sqrt(1 / t) = 0.1 ln s + 1, of q and of k."""
    enc = build("rope", head_dim=16, scaling="yarn", factor=8.0)
    assert enc.scale == pytest.approx(16**-0.5 * (0.1 * math.log(8.0) + 1.0) ** 2)
    assert build("rope", head_dim=16, scaling="linear", factor=8.0).scale is None


def test_linear_is_transformers_own(build):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rope = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    config = LlamaConfig(hidden_size=32, num_attention_heads=2, head_dim=16, rope_parameters=rope)
    enc = build("rope", head_dim=16, scaling="linear", factor=4.0)
    wanted = LlamaRotaryEmbedding(config).inv_freq.double()
    assert_close(enc.frequencies(wanted.device), wanted, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"scaling": "dynamic", "factor": 2.0}, "scaling: expected None or one of linear, ntk, yarn, got 'dynamic'"),
        ({"factor": 2.0}, "factor: expected 1 without scaling, got 2.0"),
        ({"scaling": "yarn", "factor": 0.5}, "factor: expected at least 1"),
        ({"scaling": "ntk", "factor": 2.0, "head_dim": 2}, "scaling: ntk expected at least 4 coordinates"),
    ],
)
def test_wrong_scalings_are_refused(build, options, said):
    with pytest.raises(ValueError, match=said):
        build("rope", **options)
