"""The two theorems about position at the input, checked on the encodings themselves.

Numbered as in Chen et al. (2021b), the DIET paper: Theorem 1 (Sec. 2.3, proof in App. B) bounds the rank of the scores,
Theorem 2 (App. B) equates the gradients of words and positions. Chen et al. (2021a), Sec. 2.3, numbers them the other
way round: gradients first, rank second.
"""

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close


def random(*shape, seed=1):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def rank(matrix):
    return int(torch.linalg.matrix_rank(matrix.detach()))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", ["learned", "sinusoidal"])
@pytest.mark.parametrize(("n", "d_h"), [(16, 4), (9, 2), (5, 8)])
def test_theorem_1_scores_of_input_positions_have_at_most_rank_d_h(build, name, seed, n, d_h):
    """A_a = (X + P) W_Q W_K^T (X + P)^T; random matrices reach the bound min(n, d_h) and never pass it."""
    enc = build(name, num_heads=3, head_dim=d_h, seed=seed)
    d = 3 * d_h
    w_q, w_k = random(2, d, d_h, seed=seed + 10)
    x = enc.embed(random(1, n, d, seed=seed))[0]
    assert rank(x @ w_q @ w_k.T @ x.T) == min(n, d_h)


@pytest.mark.parametrize(("d_p", "n"), [(5, 8), (6, 12), (7, 16), (13, 16)])
def test_theorem_1_the_construction_reaches_rank_d_p_plus_d_h(build, d_p, n):
    """W_Q = W_K = [I; 0], X = [I; 0], P = [0; I], with d_h = 3 < d_p and n >= d_h + d_p (proof of Theorem 1)."""
    d_h, d = 3, 6
    enc = build("diet-abs", num_layers=1, num_heads=1, head_dim=d_h, rank=d_p, max_length=n)
    with torch.no_grad():
        for factor in (enc.left, enc.right):
            factor.zero_()
            for r in range(d_p):
                factor[0, 0, n - d_p + r, r] = 1.0
    w = torch.zeros(d, d_h, dtype=torch.float64)
    x = torch.zeros(n, d, dtype=torch.float64)
    for r in range(d_h):
        w[r, r] = 1.0
    for r in range(d):
        x[r, r] = 1.0
    content = x @ w @ w.T @ x.T
    position = enc.bias(0, n, n).dense()[0, 0]
    assert rank(content) == d_h
    assert rank(position) == d_p
    assert rank(content + position) == d_h + d_p > d_h


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", ["diet-abs", "abs-scalar"])
@pytest.mark.parametrize("n", [5, 9, 16])
@pytest.mark.parametrize("d_p", [2, 6, 20])
def test_theorem_1_random_positions_reach_it_too(build, name, n, d_p, seed):
    """A_r = X W_Q W_K^T X^T / sqrt(d_h) + P_Q P_K^T has rank min(n, d_h + d_p), in each head."""
    d_h = 4
    enc = build(name, num_heads=2, head_dim=d_h, rank=d_p, seed=seed)
    x = random(n, 8, seed=seed + 20)
    w_q, w_k = random(2, 8, d_h, seed=seed + 10)
    content = x @ w_q @ w_k.T @ x.T / d_h**0.5
    for h in range(2):
        position = enc.bias(0, n, n).dense()[0, h]
        assert rank(position) == min(n, d_p)
        assert rank(content + position) == min(n, d_h + d_p)


class Model(torch.nn.Module):
    """A differentiable g that is far from linear: attention, LayerNorm, a GELU network, mean, cross-entropy."""

    def __init__(self, enc, width=8):
        super().__init__()
        self.enc = enc
        self.w_q, self.w_k, self.w_v, self.w_1, self.w_2, self.w_o = random(6, width, width, seed=7) / 2

    def loss(self, x, y):
        x = self.enc.embed(x)
        q, k, v = ((x @ w)[:, None] for w in (self.w_q, self.w_k, self.w_v))
        scores = q @ k.transpose(-1, -2) / x.shape[-1] ** 0.5
        bias = self.enc.bias(0, x.shape[1], x.shape[1])
        if bias is not None:
            scores = scores + bias.dense()
        x = functional.layer_norm(x + (scores.softmax(-1) @ v)[:, 0], x.shape[-1:])
        x = x + functional.gelu(x @ self.w_1) @ self.w_2
        return functional.cross_entropy(x.mean(1) @ self.w_o, y)


@pytest.mark.parametrize("n", [1, 5, 9])
def test_theorem_2_words_and_input_positions_get_one_gradient(build, n):
    """L = l(g(X + P), y), Eq. (5): dL/dX = dL/dP."""
    enc = build("learned", num_layers=1, num_heads=1, head_dim=8, max_length=n)
    (table,) = enc.parameters()
    x = random(1, n, 8).requires_grad_()
    to_x, to_p = torch.autograd.grad(Model(enc).loss(x, torch.tensor([3])), (x, table))
    assert to_x.abs().min().item() > 1e-9
    assert_close(to_p, to_x[0], rtol=1e-10, atol=1e-14)


def test_theorem_2_over_a_batch_the_gradients_add_up(build):
    """P is added to every text of the batch, so its gradient is the sum of the texts' word gradients."""
    enc = build("learned", num_layers=1, num_heads=1, head_dim=8, max_length=5)
    (table,) = enc.parameters()
    x = random(4, 5, 8).requires_grad_()
    to_x, to_p = torch.autograd.grad(Model(enc).loss(x, torch.tensor([0, 3, 1, 3])), (x, table))
    assert_close(to_p, to_x.sum(0), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("n", [5, 9])
def test_theorem_2_does_not_hold_for_diet_abs(build, n):
    """With rank d the factors have the shape of X, and gradients of their own: no multiple of the words'."""
    enc = build("diet-abs", num_layers=1, num_heads=1, head_dim=8, rank=8, max_length=n)
    x = random(1, n, 8).requires_grad_()
    to_x, to_q, to_k = torch.autograd.grad(Model(enc).loss(x, torch.tensor([3])), (x, enc.left, enc.right))
    for to_p in (to_q, to_k):
        assert to_p[0, 0].shape == to_x[0].shape
        assert to_p.norm().item() > 1e-6
        assert abs(functional.cosine_similarity(to_p.flatten(), to_x.flatten(), dim=0).item()) < 0.9
