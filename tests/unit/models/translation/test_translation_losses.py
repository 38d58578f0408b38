"""Both losses with label smoothing against torch's own cross entropy, in value and gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from headway.models.translation import losses
from headway.models.translation.losses import fused_cross_entropy, lookup_with_weight, smoothed_cross_entropy


@pytest.mark.parametrize("words", [11, 90_000])  # 90,000: two rows are worked on at a time
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_equal_to_torchs(words, smoothing):
    torch.manual_seed(0)
    logits = torch.randn(3, 5, words, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(words, (3, 5))
    labels[0, 3:] = labels[2, 0] = -100
    ours = smoothed_cross_entropy(logits, labels, smoothing)
    theirs = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(*(torch.autograd.grad(3 * loss, logits)[0] for loss in (ours, theirs)))


def test_the_sum_can_be_divided_by_another_number():
    logits, labels = torch.randn(2, 3, 7), torch.randint(7, (2, 3))
    mean, other = (smoothed_cross_entropy(logits, labels, 0.1, count) for count in (None, 12))
    torch.testing.assert_close(mean * 6, other * 12)


def test_no_label_is_zero_with_zero_gradient():
    logits = torch.randn(2, 3, 7, requires_grad=True)
    loss = smoothed_cross_entropy(logits, torch.full((2, 3), -100), 0.1)
    loss.backward()
    assert loss == 0 and not logits.grad.any()


def test_half_precision_is_summed_in_float32():
    torch.manual_seed(0)
    logits, labels = torch.randn(40, 300).bfloat16(), torch.randint(300, (40,))
    loss = smoothed_cross_entropy(logits.requires_grad_(), labels, 0.1)
    exact = F.cross_entropy(logits.double(), labels, label_smoothing=0.1)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), exact, rtol=1e-5, atol=0)
    loss.backward()
    assert logits.grad.dtype == torch.bfloat16


def random_case(rows=7, words=11):
    torch.manual_seed(0)
    x = torch.randn(rows, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(words, 4, dtype=torch.float64, requires_grad=True)
    return x, weight, torch.randint(words, (rows,))


@pytest.mark.parametrize("product", [2**23, 25, 1])  # all rows in one product, two rows, one
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_fused_is_equal_to_torchs(smoothing, product, monkeypatch):
    monkeypatch.setattr(losses, "SCORES_PER_PRODUCT", product)
    monkeypatch.setattr(losses, "SCORES_PER_PIECE", product)
    x, weight, labels = random_case()
    ours = fused_cross_entropy(x, weight, labels, smoothing, 5.0)
    theirs = F.cross_entropy(x @ weight.T, labels, label_smoothing=smoothing, reduction="sum") / 5
    torch.testing.assert_close(ours, theirs)
    for one, other in zip(*(torch.autograd.grad(3 * loss, (x, weight)) for loss in (ours, theirs)), strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_by_differences():
    x, weight, labels = random_case(3, 5)
    assert torch.autograd.gradcheck(lambda x, weight: fused_cross_entropy(x, weight, labels, 0.1, 2.0), (x, weight))


def test_a_second_backward_pass_gives_the_same():
    x, weight, labels = random_case()
    loss = fused_cross_entropy(x, weight, labels, 0.1, 7.0)
    first, second = (torch.autograd.grad(loss, (x, weight), retain_graph=True) for _ in range(2))
    torch.testing.assert_close(first, second)


def test_great_scores_stay_finite():
    x, weight, labels = random_case()
    loss = fused_cross_entropy(1e4 * x, weight, labels, 0.1, 1.0)
    expected = F.cross_entropy(1e4 * x @ weight.T, labels, label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(loss, expected)


def test_fused_without_rows_is_zero_with_zero_gradients():
    x, weight, labels = random_case(rows=0)
    loss = fused_cross_entropy(x, weight, labels, 0.1, 1.0)
    loss.backward()
    assert loss == 0 and not weight.grad.any() and x.grad.shape == x.shape


def test_without_gradients_none_are_made():
    x, weight, labels = random_case()
    with torch.no_grad():
        loss = fused_cross_entropy(x, weight, labels, 0.1, 7.0)
    torch.testing.assert_close(loss, fused_cross_entropy(x, weight, labels, 0.1, 7.0).detach())
    assert not loss.requires_grad


@pytest.mark.parametrize("named", [True, False])
def test_gradients_of_embedding_and_output_are_summed(named):
    """A word read twice on one side, and on both sides, has the sum of all."""
    _, weight, labels = random_case(6)
    ids, other_ids = torch.tensor([[3, 3], [4, 5]]), torch.tensor([3, 9])

    def loss_of(rows, others, weight, name):
        x = torch.cat([rows.flatten(0, 1), others]).sin()
        return name(x, weight) if named else x.sum()

    rows, others, alias = lookup_with_weight(weight, ids, other_ids)
    ours = loss_of(rows, others, alias, lambda x, weight: fused_cross_entropy(x, weight, labels, 0.1, 6.0))
    plain = loss_of(
        weight[ids],
        weight[other_ids],
        weight,
        lambda x, weight: F.cross_entropy(x @ weight.T, labels, label_smoothing=0.1),
    )
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(*(torch.autograd.grad(loss, weight)[0] for loss in (ours, plain)))
