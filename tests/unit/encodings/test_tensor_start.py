"""The position of the first query as a tensor, for steps that are captured as a graph."""

from __future__ import annotations

import pytest
import torch

from headway.encodings import encoding


@pytest.mark.parametrize("name", ["rope", "transformer-xl", "rope+tisa"])
def test_a_tensor_turns_as_its_number(name):
    made = encoding(name, num_layers=2, num_heads=2, head_dim=8, max_length=16)
    q, k = torch.randn(2, 3, 2, 4, 8).unbind(0)
    by_number = made.rotate(q, k, layer=1, q_start=5)
    by_tensor = made.rotate(q, k, layer=1, q_start=torch.tensor([5]))
    torch.testing.assert_close(by_tensor, by_number, rtol=0, atol=0)


def test_packed_texts_need_a_number():
    made = encoding("rope", num_layers=1, num_heads=2, head_dim=8)
    q = torch.randn(1, 2, 4, 8)
    with pytest.raises(TypeError, match="q_start: expected a whole number beside documents"):
        made.rotate(q, q, q_start=torch.tensor([0]), documents=torch.zeros(1, 4, dtype=torch.long))
