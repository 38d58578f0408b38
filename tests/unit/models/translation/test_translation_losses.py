"""Label smoothing against torch's own cross entropy, in value and gradient."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from headway.models.translation.losses import smoothed_cross_entropy


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
