"""torch's own check of every operator of the package: schema, autograd, what its fake says, and tracing.

On a GPU those of its kernels; without one, Triton's interpreted and those of the CPU. What operators for Hopper GPUs
say of their results is also compared in test_hopper_launches.py, where nothing runs.
"""

from __future__ import annotations

import os

import pytest
import torch
from operators import Recorded, calls_of, check, names
from oracle import CUDA, DEVICE, draw

import headway as hw

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ON_TRITON = CUDA or INTERPRETED
ON_HOPPER = CUDA and torch.cuda.get_device_capability() == (9, 0)
HALF = torch.bfloat16 if CUDA else torch.float32  # which the interpreter multiplies wrongly
SLOW = pytest.mark.slow  # where kernels are interpreted

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:.*no current CUDA context.*:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the compiler's own code
]


def lengths():
    return torch.tensor([20, 3], device=DEVICE)


@pytest.mark.skipif(not ON_TRITON, reason="no GPU, and TRITON_INTERPRET is not 1")
@pytest.mark.parametrize(
    "kind", ["toeplitz", *(pytest.param(kind, marks=SLOW) for kind in ("sum", "everything", "products and others"))]
)
def test_the_kernels_of_triton(small_tiles, kind):
    calls = calls_of(kind, "triton", 16, dtype=HALF, lengths=lengths(), dropout=0.2 if kind == "toeplitz" else 0.0)
    assert names(calls) == ["fused", "fused_backward"]
    check(calls)


@pytest.mark.skipif(not ON_TRITON, reason="no GPU, and TRITON_INTERPRET is not 1")
@pytest.mark.parametrize("kind", ["none", "toeplitz and low rank", "dense"])
def test_the_kernels_for_one_tile(small_tiles, one_tile, kind):
    calls = calls_of(kind, "triton", 16, dtype=HALF)
    assert names(calls) == ["fused", "fused_backward"]
    check(calls)


@pytest.mark.skipif(not ON_TRITON, reason="no GPU, and TRITON_INTERPRET is not 1")
@pytest.mark.parametrize("kinds", ["values", "values, factors", "matrix"])
def test_tables_of_a_matrix(kinds):
    from headway.attention.triton.matrices import matrix_tables
    from headway.attention.triton.multiplied import multiplied_out

    values = draw(1, 3, 149).float() if "values" in kinds else None
    left, right = (draw(1, 3, length, 5).float() if "factors" in kinds else None for length in (80, 70))
    matrix, peaks = (draw(1, 3, 80, 70).float(), draw(1, 3, 80).float()) if kinds == "matrix" else (None, None)
    for columns in (False, True):
        torch.library.opcheck(matrix_tables, (values, left, right, matrix, peaks, 80, 70, columns))
    if matrix is None:
        parts = [None if t is None else t.requires_grad_() for t in (values, left, right)]
        torch.library.opcheck(multiplied_out, (*parts, 80, 70))
        with Recorded() as recorded:
            multiplied_out(*parts, 80, 70).sum().backward()
        assert names(recorded.calls) == ["multiplied_out", "multiplied_out_backward"]
        check(recorded.calls)


@pytest.mark.skipif(not ON_TRITON, reason="no GPU, and TRITON_INTERPRET is not 1")
@pytest.mark.parametrize("with_lengths", [False, True])
def test_what_masks_become(with_lengths):
    from headway.attention.triton.masks import _key_words, document_records

    seen = torch.arange(3 * 150, device=DEVICE).view(3, 150) % 7 > 2
    texts = torch.arange(150, device=DEVICE)[None] // 40
    lengths = torch.tensor([150, 3, 90], device=DEVICE) if with_lengths else None
    torch.library.opcheck(_key_words, (seen, lengths, 3))
    words, ends = _key_words(seen, lengths, 3)
    torch.library.opcheck(document_records, (texts, texts, ends, words, with_lengths, 3))
    torch.library.opcheck(document_records, (texts, texts, None, None, with_lengths, 3))


@pytest.mark.skipif(not ON_HOPPER, reason="kernels for Hopper GPUs")
@pytest.mark.parametrize("length", [100, 200])
@pytest.mark.parametrize(
    "kind", ["none", "toeplitz", "toeplitz and low rank", "dense", "two segments", "relative keys and values"]
)
def test_the_kernels_of_hopper(kind, length, monkeypatch):
    # Weights of places have columns that are neither written nor read; opcheck would compare them.
    monkeypatch.setattr(torch.Tensor, "new_empty", torch.Tensor.new_zeros)
    calls = calls_of(kind, "triton", 64, length, length, HALF, lengths=torch.tensor([length, 3], device=DEVICE))
    expected = "fused_relative" if "relative" in kind else "fused"
    assert [name for name in names(calls) if name != "matrix_tables"] == [expected, f"{expected}_backward"]
    check(calls)


@pytest.mark.skipif(CUDA, reason="loops for the CPU")
@pytest.mark.parametrize("kind", ["toeplitz", "sum", "everything", "dense of each sequence"])
def test_loops_of_the_cpu(kind):
    if kind == "dense of each sequence":
        q, matrix = torch.randn(2, 4, 20, 16, requires_grad=True), torch.randn(2, 4, 20, 20, requires_grad=True)
        with Recorded() as recorded:
            hw.attention(q, q, q, hw.Dense(matrix), backend="blockwise", dropout=0.2).sum().backward()
        calls = recorded.calls
    else:
        calls = calls_of(kind, "blockwise", 16, dtype=torch.bfloat16 if kind == "sum" else torch.float32)
    assert names(calls) == ["blockwise", "blockwise_backward"]
    if kind == "dense of each sequence":  # with other random numbers in each call, which no tracing reproduces
        check(calls, test_utils=("test_schema", "test_faketensor"))
    else:
        check(calls)


@pytest.mark.skipif(CUDA, reason="a kernel for the CPU")
@pytest.mark.parametrize("options", [{}, {"causal": True, "lengths": torch.tensor([20, 3])}])
def test_the_native_kernel(options):
    q, k = torch.randn(2, 4, 20, 16), torch.randn(2, 2, 24, 16)
    bias = hw.Toeplitz(torch.randn(1, 4, 43))
    if (reason := hw.explain(q, k, k, bias, **options).others.get("native")) and "compil" in reason:
        pytest.skip(reason)
    with Recorded() as recorded:
        hw.attention(q, k, k, bias, backend="native", **options)
    assert names(recorded.calls) == ["native"]
    check(recorded.calls)


def test_every_operator_is_checked():
    """A new one has to join the lists above."""
    from headway.attention.native import op as native  # noqa: F401
    from headway.attention.triton import masks, matrices, multiplied, op, relative  # noqa: F401

    found = {
        name.split("::")[1].split(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("headway::")
    }
    backward = {"fused", "fused_relative", "multiplied_out", "blockwise"}
    others = {"matrix_tables", "key_words", "document_records", "native"}
    assert found == backward | {f"{name}_backward" for name in backward} | others
