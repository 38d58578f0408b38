"""Dropout of weights: which are dropped, that the mean stays, and that the backward pass drops the same ones.

With the identity as values the output is the weights themselves, so what was dropped can be read from it.
"""

import pytest
import torch
from torch.testing import assert_close

import headway as hw
from headway.attention.blockwise import op

B, H, LQ, LK, D, P = 3, 2, 9, 11, 4, 0.3
BACKENDS = ["eager", "matrix", "blockwise", "sdpa"]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(op, "BLOCK_Q", 4)
    monkeypatch.setattr(op, "TILE", 2 * H * 4 * LK)


def param(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def parts(backend):
    bias = hw.Toeplitz(param(1, H, LQ + LK - 1))
    return bias, None if backend == "sdpa" else hw.RelativeValues(param(H, 5, D))


def kept(backend, q, k, bias, seed):
    """Which weights were kept, (B, H, Lq, Lk), read off the output."""
    identity = torch.eye(LK, dtype=q.dtype).expand(B, H, LK, LK)
    whole = hw.attention(q, k, identity, bias, causal=True, backend=backend)
    torch.manual_seed(seed)
    dropped = hw.attention(q, k, identity, bias, causal=True, dropout=P, backend=backend)
    keep = (dropped != 0).double()
    assert_close(dropped, whole * keep / (1 - P))  # each is dropped, or scaled
    return keep


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_share_that_is_dropped(backend):
    q, k = param(B, H, LQ, D), param(B, H, LK, D)
    masks = [kept(backend, q, k, None, seed) for seed in range(30)]
    seen = torch.ones(LQ, LK).tril(LK - LQ).bool()
    draws = torch.stack(masks)[..., seen]
    assert abs(draws.mean().item() - (1 - P)) < 5 * (P * (1 - P) / draws.numel()) ** 0.5
    # Each place for itself: not the same in each sequence, head, block or draw.
    for axis, sizes in enumerate(draws.shape[:3]):
        assert sizes > 1
        assert (draws.std(axis) > 0).any()
    per_query = torch.stack(masks)[..., :2].movedim(3, 0).flatten(1)  # the first two keys, seen by every query
    assert len(per_query.unique(dim=0)) == LQ


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_mean_is_preserved(backend):
    many = 400
    q, k, v = (torch.randn(1, 1, n, D, dtype=torch.float64).expand(many, H, -1, -1) for n in (LQ, LK, LK))
    bias, value_bias = (None if part is None else part.detach() for part in parts(backend))
    exact = hw.attention(q[:1], k[:1], v[:1], bias, value_bias)[0]
    draws = hw.attention(q, k, v, bias, value_bias, dropout=P, backend=backend)
    deviation = draws.std(0)
    assert (deviation > 0).all()
    assert ((draws.mean(0) - exact).abs() < 5 * deviation / many**0.5).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_backward_pass_drops_the_same(backend):
    q, k, v = param(B, H, LQ, D), param(B, H, LK, D), param(B, H, LK, D)
    bias, value_bias = parts(backend)
    keep = kept(backend, q, k, bias, seed=7)
    torch.manual_seed(7)
    got = hw.attention(q, k, v, bias, value_bias, causal=True, dropout=P, backend=backend)

    scores = q @ k.transpose(-1, -2) * D**-0.5 + bias.bind(LQ, LK).dense()
    future = torch.ones(LQ, LK).triu(LK - LQ + 1).bool()
    weights = scores.masked_fill(future, -torch.inf).softmax(-1) * keep / (1 - P)
    want = weights @ v
    wanted = [q, k, v, bias.values]
    if value_bias is not None:
        want = want + torch.einsum("bhij,xhijd->bhid", weights, value_bias.dense(q_len=LQ, k_len=LK))
        wanted.append(value_bias.table)
    assert_close(got, want)
    upstream = torch.randn_like(want)
    grads = zip(torch.autograd.grad(got, wanted, upstream), torch.autograd.grad(want, wanted, upstream), strict=True)
    for mine, theirs in grads:
        assert_close(mine, theirs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_seed_decides(backend):
    q, k, v = param(B, H, LQ, D), param(B, H, LK, D), param(B, H, LK, D)

    def run():
        return hw.attention(q, k, v, dropout=P, backend=backend)

    torch.manual_seed(1)
    first, second = run(), run()
    torch.manual_seed(1)
    assert_close(run(), first, rtol=0, atol=0)
    assert_close(run(), second, rtol=0, atol=0)
    assert not torch.equal(first, second)
    torch.manual_seed(2)
    assert not torch.equal(run(), first)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_dropout_is_exact_and_draws_nothing(backend):
    q, k, v = param(B, H, LQ, D), param(B, H, LK, D), param(B, H, LK, D)
    bias, value_bias = parts(backend)
    state = torch.get_rng_state()
    none = hw.attention(q, k, v, bias, value_bias, dropout=0.0, backend=backend)
    assert torch.equal(torch.get_rng_state(), state)
    assert_close(none, hw.attention(q, k, v, bias, value_bias, backend=backend), rtol=0, atol=0)
    assert_close(none, hw.attention(q, k, v, bias, value_bias, backend="eager"))


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_that_see_nothing_stay_zero(backend):
    q, k, v = param(B, H, LQ, D), param(B, H, LK, D), param(B, H, LK, D)
    output = hw.attention(q, k, v, lengths=torch.tensor([0, 3, LK]), dropout=P, backend=backend)
    assert (output[0] == 0).all()
    assert torch.isfinite(output).all()
    assert all(
        (grad[0] == 0).all() and torch.isfinite(grad).all() for grad in torch.autograd.grad(output.sum(), [q, k, v])
    )


def test_rows_and_columns_of_the_blockwise_loops_drop_independently():
    n = 1024
    q, k = torch.zeros(1, 1, n, D), torch.zeros(1, 1, n, D)
    identity = torch.eye(n).expand(1, 1, n, n)
    weights = hw.attention(q, k, identity, dropout=P, backend="blockwise")[0, 0]
    standard = ((weights > 0).double() - (1 - P)) / (P * (1 - P)) ** 0.5
    assert abs(standard.mean() * n) < 4
    for side in (standard, standard.T):
        assert (side.mean(1) * n**0.5).std() == pytest.approx(1, abs=0.1)
        together = side @ side.T / n**0.5  # of two rows: a standard normal number, were they independent
        others = together[~torch.eye(n, dtype=torch.bool)]
        assert others.square().mean() == pytest.approx(1, abs=0.02)
        assert others.abs().max() < 7.5
