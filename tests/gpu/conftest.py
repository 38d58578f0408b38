"""Fixtures of the tests of the fused kernels."""

import os

import pytest
import torch

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # which torch asks for in deterministic mode


@pytest.fixture
def small_tiles(monkeypatch, request):
    """Interpreted, a tile costs milliseconds however small it is: use several small ones.

    Short sequences would all take the one-tile kernels; only tests marked `one_tile` leave that choice alone.
    """
    from headway.attention.triton import arguments, hopper, products, short

    torch.manual_seed(0)
    if "one_tile" not in request.fixturenames:
        monkeypatch.setattr(short, "fits", lambda *parts: False)
        monkeypatch.setattr(hopper, "is_tile", lambda *parts: False)
    if not torch.cuda.is_available():

        def small(kind, width, dtype):
            if kind == "short forward":
                return {"BLOCK_Q": 16, "num_warps": 4, "num_stages": 1, "programs": 2}
            if kind == "short backward":
                return {"num_warps": 4, "num_stages": 1, "programs": 1}
            size = {"BLOCK_Q": 16, "BLOCK_K": 32} if kind != "diagonal" else {"BLOCK_Q": 32, "BLOCK_K": 32}
            return {**size, "num_warps": 4, "num_stages": 1}

        monkeypatch.setattr(arguments, "config", small)

        def small_products(kind, *sizes):
            twice = {"forward": "BLOCK_Q", "query": "BLOCK_Q", "key": "BLOCK_K"}.get(kind)
            blocks = {side: 32 if side == twice else 16 for side in ("BLOCK_Q", "BLOCK_K")}
            return {**blocks, "num_warps": 4, "num_stages": 1}

        monkeypatch.setattr(products, "config", small_products)


@pytest.fixture
def one_tile():
    """Asks for the kernels whose whole score matrix is one tile."""
