"""What the tests of fused models share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fusing_cases import Call


@pytest.fixture(autouse=True)
def _softmax_in_float64(monkeypatch):
    """Some models compute the softmax in float32, whatever their numbers are: no reference to 1e-9."""
    softmax, to_float = torch.nn.functional.softmax, torch.Tensor.float

    def wide(input, *args, dtype=None, **kwargs):  # torch's own name
        return softmax(input, *args, dtype=torch.float64 if input.dtype == torch.float64 else dtype, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "softmax", wide)
    monkeypatch.setattr(torch.Tensor, "float", lambda self: self if self.dtype == torch.float64 else to_float(self))


@pytest.fixture
def same():
    """Compare outputs and all gradients of two models in one call."""

    def compare(model: Any, other: Any, call: Call, tolerance: float = 1e-9) -> None:
        output, of_other = call.compared(model), call.compared(other)
        torch.testing.assert_close(of_other, output, rtol=0, atol=tolerance)
        draw = torch.Generator().manual_seed(3)
        weights = torch.randn(output.shape, generator=draw, dtype=output.dtype)
        for each, numbers in ((model, output), (other, of_other)):
            each.zero_grad(set_to_none=True)
            (numbers * weights).sum().backward()
        gradients = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
        of_other = {key: p.grad for key, p in other.named_parameters() if p.grad is not None}
        assert gradients.keys() == of_other.keys()
        for key, gradient in gradients.items():
            torch.testing.assert_close(
                of_other[key], gradient, rtol=1e-9, atol=tolerance, msg=lambda text, key=key: f"{key}: {text}"
            )

    return compare
