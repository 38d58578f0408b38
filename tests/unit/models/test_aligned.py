"""The vocabulary's product with rows of zeros added: the same scores and gradients."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from headway.models.heads import aligned_linear


@pytest.mark.parametrize("words", [29, 63, 64, 65])
def test_the_same_as_the_layer_alone(words):
    torch.manual_seed(0)
    layer = nn.Linear(6, words).double()
    x = torch.randn(3, 5, 6, dtype=torch.float64, requires_grad=True)
    got, want = aligned_linear(x, layer), layer(x)
    assert_close(got, want)
    upstream = torch.randn_like(want)
    inputs = [x, layer.weight, layer.bias]
    for mine, theirs in zip(
        torch.autograd.grad(got, inputs, upstream), torch.autograd.grad(want, inputs, upstream), strict=True
    ):
        assert theirs.any()
        assert_close(mine, theirs)


def test_rows_end_on_the_multiple():
    layer = nn.Linear(6, 30522, device="meta")
    out = aligned_linear(torch.empty(2, 6, device="meta"), layer)
    assert out.shape == (2, 30522)
    assert out.stride() == (30528, 1)  # 477 times 64
