"""Settings and fixtures of all tests."""

import os

import pytest
import torch
from hypothesis import settings

from headway.encodings import encoding

# Continuous integration tries the same examples every time; at a desk each run tries new ones. How long one takes is no
# property of the code where other work shares the machine.
settings.register_profile("desk", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "desk")

LONG = ("test_same_numbers.py",)  # the files that take longest begin first, so that no process works on one alone


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name not in LONG)


@pytest.fixture(autouse=True)
def _same_products():
    """On a CPU without bfloat16 torch turns oneDNN off, for good, once it is asked for such a product; and later tests
    would compare runs of two kinds."""
    before = torch.backends.mkldnn.enabled
    yield
    torch.backends.mkldnn.enabled = before


@pytest.fixture
def build():
    """Encodings in float64, small, and random, because a zero-initialised table would hide a no-op."""

    def make(name, *, seed=0, **options):
        enc = encoding(name, **{"num_layers": 2, "num_heads": 2, "head_dim": 4, "max_length": 16, **options}).double()
        draw = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in enc.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=draw, dtype=torch.float64))
        return enc

    return make
