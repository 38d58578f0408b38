"""What the tests of fused models share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fusing_cases import Call


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
