"""Masks of keys and packed texts in the CUDA kernels for Hopper against the formula; see test_emulated_hopper.py."""

from __future__ import annotations

import pytest
import torch
from oracle import CUDA, DEVICE, check, draw, ids, made, masks, outcome

import headway as hw

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("small_tiles"),
    pytest.mark.skipif(not CUDA, reason="the Hopper kernels are CUDA"),
]

OF_KEYS = ["keys", "padding", "keys of all, causal", "keys and lengths"]
PACKED = ["documents", "documents, causal", "documents and keys"]


@pytest.mark.parametrize("masking", [*OF_KEYS, *PACKED])
@pytest.mark.parametrize("kind", ["none", "toeplitz", "low rank", "clipped and two segments"])
@pytest.mark.parametrize(("q_len", "k_len"), [(130, 300), (300, 130), (700, 700)])
def test_beside_a_bias(kind, q_len, k_len, masking):
    check(kind, torch.bfloat16, 3, 4, 2, q_len, k_len, 64, **masks(3, q_len, k_len)[masking])


@pytest.mark.parametrize("masking", ["keys", *PACKED])
@pytest.mark.parametrize("kind", ["none", "toeplitz"])
@pytest.mark.parametrize(("batch", "q_len", "k_len"), [(1, 1500, 1500), (5, 700, 900), (1, 70, 3000), (90, 200, 300)])
def test_where_blocks_of_threads_share_keys(kind, batch, q_len, k_len, masking):
    check(kind, torch.float16, batch, 2, 1, q_len, k_len, 64, **masks(batch, q_len, k_len)[masking])


@pytest.mark.parametrize("masking", OF_KEYS)
@pytest.mark.parametrize("kind", ["none", "dense and others"])
@pytest.mark.parametrize(("batch", "q_len", "k_len"), [(40, 128, 128), (5, 33, 101), (91, 64, 64), (90, 50, 33)])
def test_of_one_tile(one_tile, kind, batch, q_len, k_len, masking):
    check(kind, torch.bfloat16, batch, 4, 2, q_len, k_len, 64, **masks(batch, q_len, k_len)[masking])


@pytest.mark.parametrize("masking", OF_KEYS)
@pytest.mark.parametrize("kind", ["relative keys", "relative keys and values", "relative, reach 28"])
def test_beside_relative_keys_and_values(kind, masking):
    check(kind, torch.bfloat16, 3, 4, 2, 300, 200, 64, **masks(3, 300, 200)[masking])


@pytest.mark.parametrize("masking", ["keys", "documents", "documents and keys"])
@pytest.mark.parametrize("kind", ["none", "toeplitz", "low rank", "clipped and two segments"])
def test_with_dropout_as_in_the_other_kernels(kind, masking, monkeypatch):
    """The same random numbers drop the same weights in both families of kernels."""
    from headway.attention.triton import hopper

    options = masks(3, 200, 200)[masking]
    make, parameters = made(kind, 3, 4, 200, 200, 64)
    inputs, upstream = [draw(3, 4, 200, 64) for _ in range(3)], draw(3, 4, 200, 64)
    found = []
    for takes in (hopper.takes, lambda *_: False):
        monkeypatch.setattr(hopper, "takes", takes)
        torch.manual_seed(3)
        found.append(outcome("triton", torch.bfloat16, make, parameters, inputs, upstream, dropout=0.3, **options))
    for ours, others in zip(*found, strict=True):
        assert (ours.double() - others.double()).norm() <= 0.01 * others.double().norm()


@pytest.mark.parametrize("masking", ["keys", *PACKED])
@pytest.mark.parametrize(("batch", "length"), [(2, 300), (1, 2500), (70, 400)])
def test_the_same_bits_in_ten_runs(batch, length, masking):
    make, parameters = made("toeplitz", batch, 2, length, length, 64)
    inputs, upstream = [draw(batch, 2, length, 64) for _ in range(3)], draw(batch, 2, length, 64)
    options = masks(batch, length, length)[masking]
    runs = [outcome("triton", torch.bfloat16, make, parameters, inputs, upstream, **options) for _ in range(10)]
    for run in runs[1:]:
        for one, other in zip(runs[0], run, strict=True):
            assert torch.equal(one, other)


def test_texts_of_one_token_with_dropout():
    """Gradients of queries and keys are nothing, and what rounding takes from the output would be left of them."""
    q, k, v = (draw(1, 2, 200, 64).bfloat16().requires_grad_() for _ in range(3))
    documents = torch.arange(200, device=DEVICE)[None]
    output = hw.attention(q, k, v, documents=documents, dropout=0.3, backend="triton")
    dq, dk, dv = torch.autograd.grad(output, (q, k, v), torch.ones_like(output))
    assert dv.float().norm() > 1
    for grad in (dq, dk):
        assert grad.float().norm() <= 1e-3 * dv.float().norm()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own code
@pytest.mark.parametrize("masking", ["keys", "documents"])
def test_compiled_whole(masking):
    q, k, v = (torch.randn(2, 2, 200, 64, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    values = torch.randn(1, 2, 399, device=DEVICE, requires_grad=True)
    given = torch.rand(2, 200, device=DEVICE) > 0.4 if masking == "keys" else ids(3, 2, 200).sort().values

    def run(q, k, v, values, given):
        options = {"mask": given[:, None, None, :]} if masking == "keys" else {"documents": given}
        return hw.attention(q, k, v, hw.Toeplitz(values), **options)

    wanted = (q, k, v, values)
    expected = torch.autograd.grad(run(*wanted, given).square().sum(), wanted)
    found = torch.autograd.grad(torch.compile(run, fullgraph=True)(*wanted, given).square().sum(), wanted)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2 * float(theirs.abs().max()))
