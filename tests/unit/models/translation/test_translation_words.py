"""The loss of naming words, and words that are read, against plain torch, in value and gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from headway.models.translation import words as module
from headway.models.translation.words import loss_of_words, read


def drawn(rows=7, words=11):
    torch.manual_seed(0)
    x = torch.randn(rows, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(words, 4, dtype=torch.float64, requires_grad=True)
    return x, weight, torch.randint(words, (rows,))


@pytest.mark.parametrize("product", [2**23, 25, 1])  # all rows in one product, two rows, one
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_equal_to_torchs(smoothing, product, monkeypatch):
    monkeypatch.setattr(module, "PRODUCT", product)
    monkeypatch.setattr(module, "PIECE", product)
    x, weight, labels = drawn()
    ours = loss_of_words(x, weight, labels, smoothing, 5.0)
    theirs = F.cross_entropy(x @ weight.T, labels, label_smoothing=smoothing, reduction="sum") / 5
    torch.testing.assert_close(ours, theirs)
    for one, other in zip(*(torch.autograd.grad(3 * loss, (x, weight)) for loss in (ours, theirs)), strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_by_differences():
    x, weight, labels = drawn(3, 5)
    assert torch.autograd.gradcheck(lambda x, weight: loss_of_words(x, weight, labels, 0.1, 2.0), (x, weight))


def test_a_second_backward_pass_gives_the_same():
    x, weight, labels = drawn()
    loss = loss_of_words(x, weight, labels, 0.1, 7.0)
    first, second = (torch.autograd.grad(loss, (x, weight), retain_graph=True) for _ in range(2))
    torch.testing.assert_close(first, second)


def test_great_scores_stay_finite():
    x, weight, labels = drawn()
    loss = loss_of_words(1e4 * x, weight, labels, 0.1, 1.0)
    expected = F.cross_entropy(1e4 * x @ weight.T, labels, label_smoothing=0.1, reduction="sum")
    torch.testing.assert_close(loss, expected)


def test_no_row_is_zero_with_zero_gradients():
    x, weight, labels = drawn(rows=0)
    loss = loss_of_words(x, weight, labels, 0.1, 1.0)
    loss.backward()
    assert loss == 0 and not weight.grad.any() and x.grad.shape == x.shape


def test_without_gradients_none_are_made():
    x, weight, labels = drawn()
    with torch.no_grad():
        loss = loss_of_words(x, weight, labels, 0.1, 7.0)
    torch.testing.assert_close(loss, loss_of_words(x, weight, labels, 0.1, 7.0).detach())
    assert not loss.requires_grad


@pytest.mark.parametrize("named", [True, False])
def test_gradients_of_words_that_are_read_join_those_of_words_to_name(named):
    """A word read twice on one side, and on both sides, has the sum of all."""
    _, weight, labels = drawn(6)
    ids, other_ids = torch.tensor([[3, 3], [4, 5]]), torch.tensor([3, 9])

    def loss_of(rows, others, weight, name):
        x = torch.cat([rows.flatten(0, 1), others]).sin()
        return name(x, weight) if named else x.sum()

    rows, others, alias = read(weight, ids, other_ids)
    ours = loss_of(rows, others, alias, lambda x, weight: loss_of_words(x, weight, labels, 0.1, 6.0))
    plain = loss_of(
        weight[ids],
        weight[other_ids],
        weight,
        lambda x, weight: F.cross_entropy(x @ weight.T, labels, label_smoothing=0.1),
    )
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(*(torch.autograd.grad(loss, weight)[0] for loss in (ours, plain)))
