"""Encodings for the unit tests: float64, small, and random, because a zero-initialised table would hide a no-op."""

import pytest
import torch

from headway.encodings import encoding


@pytest.fixture
def build():
    def make(name, *, seed=0, **options):
        enc = encoding(name, **{"num_layers": 2, "num_heads": 2, "head_dim": 4, "max_length": 16, **options}).double()
        draw = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in enc.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=draw, dtype=torch.float64))
        return enc

    return make
