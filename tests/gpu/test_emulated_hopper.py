"""The CUDA kernels for Hopper against the formula where there is no GPU: the emulator runs them (tests/emulator)."""

from __future__ import annotations

import os

import emulator
import pytest
import torch
from oracle import CUDA, check, masks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        CUDA or os.environ.get("TRITON_INTERPRET") != "1", reason="for machines without a GPU, with TRITON_INTERPRET=1"
    ),
    pytest.mark.skipif(not emulator.available(), reason="g++ is not installed"),
    pytest.mark.usefixtures("small_tiles"),
]

BF16, F16 = torch.bfloat16, torch.float16
USUAL, TILES = ["forward", "backward"], ["tile_forward", "tile_backward"]
RELATIVE = ["forward", "rows", "backward", "settle"]


@pytest.mark.parametrize(
    ("kind", "dtype", "q_len", "k_len", "masking", "kernels"),
    [
        ("none", BF16, 70, 130, "nothing", USUAL),
        ("toeplitz", F16, 130, 70, "causal", USUAL),
        ("toeplitz", BF16, 300, 200, "lengths", USUAL),
        ("low rank", BF16, 70, 130, "causal", [*USUAL, "matrix"]),
        ("clipped and two segments", BF16, 70, 130, "nothing", USUAL),
        ("relative keys and values", F16, 70, 130, "lengths", RELATIVE),
        ("relative, reach 16", BF16, 130, 200, "causal", RELATIVE),
    ],
)
def test_output_and_gradients(kind, dtype, q_len, k_len, masking, kernels):
    with emulator.emulated() as launched:
        check(kind, dtype, 2, 2, 2, q_len, k_len, 64, **masks(2, q_len, k_len)[masking])
    assert launched == kernels


@pytest.mark.parametrize(("dtype", "q_len", "k_len"), [(BF16, 100, 128), (F16, 50, 64)])
@pytest.mark.parametrize("kind", ["none", "dense and others"])
def test_output_and_gradients_of_one_tile(one_tile, kind, dtype, q_len, k_len):
    with emulator.emulated() as launched:
        check(kind, dtype, 3, 2, 2, q_len, k_len, 64, **masks(3, q_len, k_len)["lengths"])
    assert launched == TILES
