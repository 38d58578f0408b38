"""The CUDA kernels for Hopper against the formula where there is no GPU: the emulator runs them (tests/emulator).

And that it finds what is wrong: kernels with a mistake fail, in the result or with an error that says where.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import emulator
import pytest
import torch
from oracle import CUDA, check, draw, made, masks

import headway as hw

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
        ("relative, reach 28", BF16, 130, 70, "nothing", RELATIVE),
        ("none", F16, 300, 200, "padding", USUAL),
        ("toeplitz", BF16, 130, 200, "keys of all, causal", USUAL),
        ("low rank", BF16, 130, 130, "keys and lengths", [*USUAL, "matrix"]),
        ("clipped and two segments", BF16, 70, 200, "keys", USUAL),
        ("relative keys and values", BF16, 130, 300, "keys", RELATIVE),
        ("none", BF16, 300, 400, "documents", USUAL),
        ("toeplitz", F16, 400, 300, "documents, causal", USUAL),
        ("low rank", BF16, 130, 200, "documents", [*USUAL, "matrix"]),
        ("clipped and two segments", BF16, 200, 200, "documents and keys", USUAL),
    ],
)
def test_output_and_gradients(kind, dtype, q_len, k_len, masking, kernels):
    with emulator.emulated() as launched:
        check(kind, dtype, 2, 2, 2, q_len, k_len, 64, **masks(2, q_len, k_len)[masking])
    assert launched == kernels


@pytest.mark.parametrize(
    ("kind", "dtype", "q_len", "k_len", "width", "masking"),
    [
        ("none", BF16, 70, 300, 128, "nothing"),
        ("toeplitz", F16, 190, 130, 128, "causal"),  # in blocks of three groups
        ("toeplitz", BF16, 300, 200, 96, "lengths"),
        ("clipped and two segments", BF16, 70, 130, 128, "nothing"),
        ("toeplitz", F16, 130, 200, 80, "causal"),
        ("toeplitz", BF16, 130, 200, 32, "causal"),
        ("clipped and two segments", BF16, 130, 70, 32, "lengths"),
        ("toeplitz", F16, 130, 70, 100, "nothing"),  # padded
    ],
)
def test_output_and_gradients_of_other_widths(kind, dtype, q_len, k_len, width, masking):
    with emulator.emulated() as launched:
        check(kind, dtype, 2, 2, 2, q_len, k_len, width, **masks(2, q_len, k_len)[masking])
    assert launched == USUAL


@pytest.mark.parametrize("width", [32, 96, 128])
def test_blocks_of_threads_that_share_wide_keys(width):
    with emulator.emulated(multiprocessors=16, seed=width):
        check("toeplitz", BF16, 2, 2, 1, 300, 450, width, causal=True)


@pytest.mark.parametrize("width", [32, 80, 128])
@pytest.mark.parametrize("scores", [2**24, 0])
def test_inference_with_a_low_rank_bias_at_other_widths(width, scores, monkeypatch):
    """As a matrix, and as its factors."""
    from headway.attention.triton import hopper

    monkeypatch.setattr(hopper, "MOST_SCORES", scores)
    q, k, v = (draw(2, 2, length, width).to(F16) for length in (70, 130, 130))
    left, right = 0.5 * draw(1, 2, 70, 20), 0.5 * draw(1, 1, 130, 20)
    with emulator.emulated() as launched:
        found = hw.attention(q, k, v, hw.LowRank(left.float(), right.float()), backend="triton")
    truth = hw.attention(q.double(), k.double(), v.double(), hw.LowRank(left, right), backend="eager")
    assert launched == ["forward"]
    assert (found.double() - truth).norm() <= 2 * torch.finfo(F16).eps * truth.norm()


@pytest.mark.parametrize(("dtype", "q_len", "k_len"), [(BF16, 100, 128), (F16, 50, 64)])
@pytest.mark.parametrize("masking", ["lengths", "keys"])
@pytest.mark.parametrize("kind", ["none", "dense and others"])
def test_output_and_gradients_of_one_tile(one_tile, kind, dtype, q_len, k_len, masking):
    with emulator.emulated() as launched:
        check(kind, dtype, 3, 2, 2, q_len, k_len, 64, **masks(3, q_len, k_len)[masking])
    assert launched == TILES


@pytest.mark.parametrize("multiprocessors", [2, 16])
@pytest.mark.parametrize("masking", ["nothing", "causal", "keys", "documents", "documents, causal"])
def test_blocks_of_threads_that_share_keys(masking, multiprocessors):
    """Or, with few multiprocessors, go over several sequences alone."""
    with emulator.emulated(multiprocessors=multiprocessors, seed=multiprocessors):
        check("toeplitz", BF16, 2, 2, 1, 300, 450, 64, **masks(2, 300, 450)[masking])


def test_factors(monkeypatch):
    from headway.attention.triton import hopper

    monkeypatch.setattr(hopper, "MOST_SCORES", 0)
    q, k, v = (draw(2, 2, length, 64).to(F16) for length in (70, 130, 130))
    left, right = 0.5 * draw(1, 2, 70, 20), 0.5 * draw(1, 1, 130, 20)
    with emulator.emulated() as launched:
        found = hw.attention(q, k, v, hw.LowRank(left.float(), right.float()), backend="triton")
    truth = hw.attention(q.double(), k.double(), v.double(), hw.LowRank(left, right), backend="eager")
    assert launched == ["forward"]
    assert (found.double() - truth).norm() <= 2 * torch.finfo(F16).eps * truth.norm()


@pytest.mark.parametrize(
    ("kind", "length", "masking", "kernels"),
    [
        ("toeplitz", 150, "nothing", USUAL),
        ("relative, reach 16", 150, "nothing", RELATIVE),
        ("dense", 60, "nothing", TILES),
        ("dense", 150, "nothing", [*USUAL, "matrix"]),
        ("toeplitz", 150, "keys of all, causal", USUAL),
        ("relative, reach 16", 150, "keys", RELATIVE),
        ("dense", 60, "keys", TILES),
        ("dense", 150, "documents and keys", [*USUAL, "matrix"]),
        ("none", 200, "documents", USUAL),
    ],
)
def test_dropout(one_tile, kind, length, masking, kernels):
    """The formula, without the weights whose random numbers say so (hopper.cuh, `Dropout`)."""
    from headway.attention.triton.layout import dropout_noise

    chance, (make, parameters) = 0.3, made(kind, 2, 2, length, length, 64)
    options = masks(2, length, length)[masking]
    inputs, upstream = [draw(2, 2, length, 64).to(BF16) for _ in range(3)], draw(2, 2, length, 64).to(BF16)
    torch.manual_seed(5)
    padded = (length + 127) // 128 * 128
    noise = dropout_noise(inputs[0], inputs[1]).long() % 2**32
    of_queries, of_keys = noise[..., :length, None], noise[..., None, padded : padded + length]
    kept = (of_queries * of_keys) % 2**32 >= int(chance * 2**32)

    def outcome(dtype, attend):
        own = [t.to(dtype).requires_grad_() for t in inputs]
        learned = [t.to(torch.promote_types(dtype, torch.float32)).requires_grad_() for t in parameters]
        bias = make(*learned)
        output = attend(*own, *(bias if isinstance(bias, tuple) else (bias, None)))
        return [output, *torch.autograd.grad(output, [*own, *learned], upstream.to(dtype))]

    def formula(q, k, v, bias, value_bias):
        seen = torch.zeros(2, 2, length, length, dtype=q.dtype)
        added = hw.Dense(seen) if bias is None else bias + hw.Dense(seen)
        eye = torch.eye(length, dtype=q.dtype).expand(2, 2, -1, -1)
        weights = hw.attention(q, k, eye, added, backend="eager", **options) * kept / (1 - chance)
        output = weights @ v
        if value_bias is not None:
            table, reach = value_bias.table, value_bias.clip
            offsets = (torch.arange(length) - torch.arange(length)[:, None]).clamp(-reach, reach) + reach
            output = output + torch.einsum("bhij,hijd->bhid", weights, table.expand(2, -1, -1)[:, offsets])
        return output

    truth = outcome(torch.float64, formula)
    with emulator.emulated() as launched:
        torch.manual_seed(5)
        found = outcome(BF16, lambda *given: hw.attention(*given, backend="triton", dropout=chance, **options))
    assert launched == kernels
    for right, ours in zip(truth, found, strict=True):
        assert (ours.double() - right).norm() <= 0.01 * right.norm()


MISTAKES = {  # file, what stands there, what a slip would make of it, and what is said then
    "a description of tiles": ("hopper.cuh", "0x40000040", "0x40000020", "error|not finite"),
    "where gradients of scores lie": ("hopper_backward.cu", "4)) ^ (lane & 7)", "4)) ^ (lane & 3)", "error"),
    "products are read before they are there": ("hopper.cuh", "sync.aligned 1;", "sync.aligned 2;", "not finite"),
    "what threads wrote stays unseen": ("hopper_pipes.cuh", "fence.proxy.async.shared::cta", "", "not finite"),
    "a barrier of one warp too many": ("hopper_forward.cu", "KEYS_OUT + i), WARPS", "KEYS_OUT + i), 9", "deadlock"),
    "a pair of numbers at an odd place": ("hopper_bias.cuh", "first & 1 ? REGION - 1 : 0", "0", "not aligned"),
    "queries behind the last one": ("hopper_loader.cuh", "bytes = row < q_len ? 4 : 0", "bytes = 4", "out of bounds"),
    "nobody waits for turns": ("hopper_carrier.cuh", "count == carry.expected", "true", "error|not finite"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_found(mistake, tmp_path):
    """In one of a few orders in which threads run."""
    from headway.attention.triton import hopper

    file, right, wrong, said = MISTAKES[mistake]
    for source in Path(hopper.__file__).parent.glob("hopper*.cu*"):
        shutil.copy(source, tmp_path)
    text = (tmp_path / file).read_text()
    assert right in text
    (tmp_path / file).write_text(text.replace(right, wrong))
    found = ""
    for seed in range(4):
        try:
            with emulator.emulated(seed=seed, sources=tmp_path, multiprocessors=8):
                check("toeplitz", BF16, 1, 2, 2, 300, 450, 64)
        except (AssertionError, emulator.EmulatorError) as problem:
            found += str(problem)
        if re.search(said, found):
            return
    pytest.fail(f"expected {said!r}, got {found[:2000]!r}")


def test_an_instruction_that_is_not_known_is_named():
    from emulator.translate import UnknownInstruction, translate

    with pytest.raises(UnknownInstruction, match=r"does not know the PTX instruction `tcgen05.alloc \[%0\], 32`"):
        translate('void f(unsigned a) { asm volatile("tcgen05.alloc [%0], 32;" :: "r"(a)); }')
