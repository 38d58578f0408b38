"""The fused kernels against the oracle: on a GPU, or interpreted on the CPU (TRITON_INTERPRET=1).

The error budget is measured: against float64, at most twice (gradients: three times) the error of the eager path in the
same dtype, plus one rounding step of that dtype and one of the float32 products that are summed.
"""

from __future__ import annotations

import importlib
import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headway as hw

CUDA = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if CUDA else "cpu"
DTYPES = [torch.bfloat16, torch.float16, torch.float32] if CUDA else [torch.float32]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (CUDA or INTERPRETED), reason="no GPU, and TRITON_INTERPRET is not 1"),
    pytest.mark.filterwarnings("ignore:.*no current CUDA context.*:UserWarning"),
]


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch, request):
    """Interpreted, a tile costs milliseconds however small it is: use several small ones.

    Short sequences would all take the one-tile kernels; only tests marked `one_tile` leave that choice alone.
    """
    from headway.attention.triton import arguments, short

    torch.manual_seed(0)
    if "one_tile" not in request.fixturenames:
        monkeypatch.setattr(short, "fits", lambda *parts: False)
    if not CUDA:

        def small(kind, width, dtype):
            if kind == "short forward":
                return {"BLOCK_Q": 16, "num_warps": 4, "num_stages": 1, "programs": 2}
            if kind == "short backward":
                return {"num_warps": 4, "num_stages": 1, "programs": 1}
            size = {"BLOCK_Q": 16, "BLOCK_K": 32} if kind != "diagonal" else {"BLOCK_Q": 32, "BLOCK_K": 32}
            return {**size, "num_warps": 4, "num_stages": 1}

        monkeypatch.setattr(arguments, "config", small)


@pytest.fixture
def one_tile():
    """Asks for the kernels whose whole score matrix is one tile."""


def draw(*size: int) -> torch.Tensor:
    return torch.randn(size, dtype=torch.float64, device=DEVICE)


def ids(count: int, *size: int) -> torch.Tensor:
    return torch.randint(count, size, device=DEVICE)


def segments(table, q_ids, k_ids):
    return lambda *parameters: hw.SegmentTable(parameters[table], q_ids, k_ids)


def of_clipped_and_segments(b, h, lq, lk):
    add = segments(1, ids(2, b, lq), ids(2, b, lk))
    return lambda *t: hw.Toeplitz.clipped(t[0], lq, lk) + add(*t), [draw(1, h, 9), draw(1, 2, 2)]


def of_segments(b, h, lq, lk):
    return segments(0, ids(3, b, lq), ids(3, b, lk)), [draw(h, 3, 3)]


def of_all(b, h, lq, lk):
    add = segments(3, ids(2, b, lq), ids(2, b, lk))
    parameters = [draw(1, h, lq + lk - 1), 0.5 * draw(1, h, lq, 16), 0.5 * draw(1, 1, lk, 16), draw(1, 2, 2)]
    return lambda *p: hw.Toeplitz(p[0]) + hw.LowRank(p[1], p[2]) + add(*p), parameters


def of_relatives(reach, together=False):
    """Relative keys and values of one or several heads, alone or beside other terms; `width` is that of q and v."""

    def make(b, h, lq, lk, width):
        parameters = [draw(h, 2 * reach + 1, width), draw(1, 2 * reach + 3, width)]
        if not together:
            return lambda keys, values: (hw.RelativeKeys(keys), hw.RelativeValues(values)), parameters
        add, more = of_all(b, h, lq, lk)
        return lambda keys, values, *p: (hw.RelativeKeys(keys) + add(*p), hw.RelativeValues(values)), parameters + more

    return make


KINDS = {
    "none": lambda b, h, lq, lk: (lambda: None, []),
    "toeplitz": lambda b, h, lq, lk: (hw.Toeplitz, [draw(1, h, lq + lk - 1)]),
    "toeplitz of each sequence": lambda b, h, lq, lk: (hw.Toeplitz, [draw(b, 1, lq + lk - 1)]),
    "low rank": lambda b, h, lq, lk: (hw.LowRank, [0.5 * draw(1, h, lq, 5), 0.5 * draw(1, h, lk, 5)]),
    "toeplitz and low rank": lambda b, h, lq, lk: (
        lambda t, left, right: hw.Toeplitz(t) + hw.LowRank(left, right),
        [draw(1, 1, lq + lk - 1), 0.5 * draw(1, h, lq, 5), 0.5 * draw(1, 1, lk, 5)],
    ),
    "clipped": lambda b, h, lq, lk: (lambda table: hw.Toeplitz.clipped(table, lq, lk), [draw(1, h, 9)]),
    "segments": of_segments,
    "two segments": lambda b, h, lq, lk: (segments(0, ids(2, b, lq), ids(2, b, lk)), [draw(h, 2, 2)]),
    "clipped and two segments": of_clipped_and_segments,
    "sum": of_all,
    "relative keys": lambda b, h, lq, lk, d: (lambda t: hw.RelativeKeys(t, q_start=3), [draw(1, 9, d)]),
    "relative values": lambda b, h, lq, lk, d: (lambda t: (None, hw.RelativeValues(t)), [draw(h, 1, d)]),
    "relative keys and values": of_relatives(4),
    "relative keys, full reach": of_relatives(60),
    "relative, reach 16": of_relatives(16),
    "relative, reach 28": of_relatives(28),
    "everything": of_relatives(3, together=True),
}


def made(kind, batch, heads, q_len, k_len, width):
    """A function from parameters to a bias, or to a bias and a value bias; and the parameters."""
    sizes = (batch, heads, q_len, k_len)
    return KINDS[kind](*sizes, width) if "relative" in kind or kind == "everything" else KINDS[kind](*sizes)


def outcome(backend, dtype, make, parameters, inputs, upstream, **options):
    """Output and all gradients in float64. Parameters of a bias stay float32 beside half-precision q, k, v."""
    own = torch.promote_types(dtype, torch.float32)
    inputs = [t.to(dtype).requires_grad_() for t in inputs]
    parameters = [t.to(own).requires_grad_() for t in parameters]
    bias = make(*parameters)
    bias, value_bias = bias if isinstance(bias, tuple) else (bias, None)
    output = hw.attention(*inputs, bias, value_bias, backend=backend, **options)
    wanted = [*inputs, *parameters]
    grads = torch.autograd.grad(output, wanted, upstream.to(dtype), allow_unused=True)
    return [output.double(), *(torch.zeros_like(t) if g is None else g for g, t in zip(grads, wanted, strict=True))]


def check(kind, dtype, batch, heads, groups, q_len, k_len, width, **options):
    make, parameters = made(kind, batch, heads, q_len, k_len, width)
    inputs = [draw(batch, heads, q_len, width)] + [draw(batch, heads // groups, k_len, width) for _ in range(2)]
    upstream = draw(batch, heads, q_len, width)
    # Rounding the inputs is nobody's error: all three start from the same numbers.
    inputs, upstream = [t.to(dtype).double() for t in inputs], upstream.to(dtype).double()
    parameters = [t.float().double() for t in parameters]
    runs = {
        name: outcome(backend, kept, make, parameters, inputs, upstream, **options)
        for name, backend, kept in (
            ("truth", "eager", torch.float64), ("eager", "eager", dtype), ("fused", "triton", dtype)
        )
    }  # fmt: skip
    step = torch.finfo(dtype).eps
    # A gradient may be a sum of many that cancel: what is left is the rounding of grad . v in float32, and in half
    # precision that of each score's gradient before it enters a product.
    summed = torch.finfo(torch.float32).eps * upstream.norm() * inputs[2].norm(dim=-1).max()
    if dtype != torch.float32:
        relative = "relative" in kind or kind == "everything"
        rounding = step * inputs[0].norm(dim=-1).max() if relative else torch.finfo(torch.float16).eps
        summed = summed + rounding * of_scores(make, parameters, inputs, upstream, **options).norm()
    missed = {}
    for index, (truth, eager, fused) in enumerate(zip(runs["truth"], runs["eager"], runs["fused"], strict=True)):
        assert torch.isfinite(fused).all(), f"number {index} is not finite"
        allowed = (2 if index == 0 else 3) * (eager.double() - truth).norm() + step * truth.norm() + summed
        error = (fused.double() - truth).norm()
        if not error <= allowed:
            missed[index] = f"number {index}: error {error:.2e}, allowed {allowed:.2e}"
    assert not missed, missed


def of_scores(make, parameters, inputs, upstream, **options):
    """The gradient of every score, in float64."""
    bias = make(*parameters)
    bias, value_bias = bias if isinstance(bias, tuple) else (bias, None)
    nothing = torch.zeros(
        *inputs[0].shape[:3], inputs[1].shape[2], dtype=torch.float64, device=DEVICE, requires_grad=True
    )
    added = hw.Dense(nothing) if bias is None else bias + hw.Dense(nothing)
    output = hw.attention(*inputs, added, value_bias, backend="eager", **options)
    return torch.autograd.grad(output, nothing, upstream)[0]


def masks(batch, q_len, k_len):
    free = torch.rand(batch, 1, q_len, k_len, device=DEVICE) > 0.4
    free[0, 0, 0] = False
    documents = (ids(3, batch, q_len).sort().values, ids(3, batch, k_len).sort().values)
    lengths = torch.randint(k_len + 1, (batch,), device=DEVICE)
    lengths[0] = 0
    return {
        "nothing": {},
        "causal": {"causal": True},
        "lengths": {"lengths": lengths},
        "mask": {"mask": free},
        "documents": {"documents": documents},
        "all": {"causal": True, "lengths": lengths, "mask": free, "documents": documents, "scale": 0.3},
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind(kind, dtype):
    check(kind, dtype, 2, 4, 2, 40, 33, 16)


SHORT_KINDS = ["none", "toeplitz", "low rank", "toeplitz and low rank"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", SHORT_KINDS)
@pytest.mark.parametrize(("q_len", "k_len"), [(40, 33), (64, 64)])
def test_one_tile(one_tile, kind, dtype, q_len, k_len):
    check(kind, dtype, 5, 4, 2, q_len, k_len, 16)


@pytest.mark.parametrize("masking", ["causal", "lengths", "mask", "documents", "all"])
def test_one_tile_with_masks(one_tile, masking):
    check("toeplitz and low rank", DTYPES[0], 3, 2, 1, 37, 50, 16, **masks(3, 37, 50)[masking])


@pytest.mark.skipif(not CUDA, reason="interpreted, half precision and large tiles say nothing more")
@pytest.mark.parametrize("length", [16, 65, 100, 128])
@pytest.mark.parametrize("kind", SHORT_KINDS)
def test_one_tile_of_every_size(one_tile, kind, length):
    check(kind, torch.bfloat16, 40, 12, 1, length, length, 64)


@pytest.mark.parametrize("masking", ["causal", "lengths", "mask", "documents", "all"])
@pytest.mark.parametrize("kind", ["toeplitz", "sum", "everything"])
def test_every_mask(kind, masking):
    check(kind, DTYPES[0], 2, 2, 1, 37, 50, 16, **masks(2, 37, 50)[masking])


@pytest.mark.skipif(not CUDA, reason="the Hopper kernels are CUDA")
@pytest.mark.parametrize("masking", ["nothing", "causal", "lengths"])
@pytest.mark.parametrize(("q_len", "k_len"), [(64, 64), (130, 300), (300, 130), (1, 200), (257, 257)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_width_64_with_a_toeplitz_bias(dtype, q_len, k_len, masking):
    check("toeplitz", dtype, 3, 4, 2, q_len, k_len, 64, **masks(3, q_len, k_len)[masking])


@pytest.mark.skipif(not CUDA, reason="the Hopper kernels are CUDA")
@pytest.mark.parametrize("masking", ["nothing", "causal", "lengths"])
@pytest.mark.parametrize("kind", ["toeplitz", "low rank", "none", "clipped and two segments"])
@pytest.mark.parametrize(("batch", "q_len", "k_len"), [(1, 1500, 1500), (5, 700, 900), (1, 70, 3000), (2, 3000, 70)])
def test_width_64_where_blocks_of_threads_share_keys(batch, q_len, k_len, kind, masking):
    check(kind, torch.bfloat16, batch, 2, 2, q_len, k_len, 64, **masks(batch, q_len, k_len)[masking])


@pytest.mark.skipif(not CUDA, reason="the Hopper kernels are CUDA")
@pytest.mark.parametrize("masking", ["nothing", "causal", "lengths"])
@pytest.mark.parametrize(("q_len", "k_len"), [(64, 64), (130, 300), (300, 130), (1, 200), (700, 700), (1, 2), (5, 4)])
@pytest.mark.parametrize("kind", ["none", "clipped", "two segments", "clipped and two segments"])
def test_width_64_with_constant_tiles_segments_or_nothing(kind, q_len, k_len, masking):
    check(kind, torch.bfloat16, 3, 4, 2, q_len, k_len, 64, **masks(3, q_len, k_len)[masking])


@pytest.mark.skipif(not CUDA, reason="the Hopper kernels are CUDA")
@pytest.mark.parametrize("masking", ["nothing", "causal", "lengths"])
@pytest.mark.parametrize("kind", ["toeplitz", "none", "two segments"])
@pytest.mark.parametrize(("q_len", "k_len"), [(200, 300), (300, 60), (130, 128)])
def test_width_64_of_many_sequences(q_len, k_len, kind, masking):
    check(kind, torch.bfloat16, 90, 4, 2, q_len, k_len, 64, **masks(90, q_len, k_len)[masking])


@pytest.mark.skipif(not CUDA, reason="the Hopper kernels are CUDA")
@pytest.mark.parametrize("kind", ["toeplitz", "none", "relative, reach 16"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rise", [-4.0, 4.0])
def test_width_64_where_scores_rise_along_the_keys(rise, dtype, kind):
    """By hundreds, or fall: weights are measured from the right score, and tiles that were weighed too high again."""
    make, parameters = made(kind, 2, 2, 300, 700, 64)
    inputs, upstream = [draw(2, 2, 300, 64), draw(2, 2, 700, 64), draw(2, 2, 700, 64)], draw(2, 2, 300, 64)
    inputs[0][..., 0] = 8.0
    inputs[1][..., 0] = torch.linspace(0, rise * 100, 700, device=DEVICE)
    inputs = [t.to(dtype) for t in inputs]
    truth, eager, fused = (
        outcome(backend, kept, make, parameters, inputs, upstream)
        for backend, kept in (("eager", torch.float64), ("eager", dtype), ("triton", dtype))
    )
    assert all(torch.isfinite(found).all() for found in fused)
    if "relative" in kind:  # all but one weight is nothing, and every gradient of a score cancels: see FEWEST_KEYS
        truth, eager, fused = truth[:1], eager[:1], fused[:1]
    for right, near, found in zip(truth, eager, fused, strict=True):
        allowed = 3 * (near.double() - right).norm() + 0.02 * right.double().norm()
        assert (found.double() - right).norm() <= allowed


@pytest.mark.skipif(not CUDA, reason="the Hopper kernels are CUDA")
@pytest.mark.parametrize("length", [300, 2500])
@pytest.mark.parametrize("kind", ["toeplitz", "clipped and two segments"])
def test_width_64_gives_the_same_bits_in_ten_runs(kind, length):
    make, parameters = KINDS[kind](2, 2, length, length)
    inputs, upstream = [draw(2, 2, length, 64) for _ in range(3)], draw(2, 2, length, 64)
    runs = [outcome("triton", torch.bfloat16, make, parameters, inputs, upstream) for _ in range(10)]
    for run in runs[1:]:
        for one, other in zip(runs[0], run, strict=True):
            assert torch.equal(one, other)


@pytest.mark.skipif(not CUDA, reason="the Hopper kernels are CUDA")
def test_width_64_at_an_odd_address():
    """Views whose first number lies 2 bytes behind a multiple of 16 are copied, not misread."""
    numbers = [draw(2 * 2 * 150 * 64).to(torch.bfloat16) for _ in range(3)]
    results = []
    for shift in (0, 1):
        views = [torch.cat([t.new_zeros(shift), t])[shift:].view(2, 2, 150, 64).requires_grad_() for t in numbers]
        values = torch.linspace(-1, 1, 299, device=DEVICE)[None, None]
        output = hw.attention(*views, hw.Toeplitz(values), backend="triton")
        results.append([output, *torch.autograd.grad(output.float().square().sum(), views)])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


RELATIVES = {"relative keys", "relative values", "relative keys and values", "relative, reach 16", "relative, reach 28"}


@pytest.mark.skipif(not CUDA, reason="the Hopper kernels are CUDA")
@pytest.mark.parametrize("masking", ["nothing", "causal", "lengths"])
@pytest.mark.parametrize(("q_len", "k_len"), [(64, 64), (130, 300), (300, 130), (1, 200), (700, 700), (40, 1), (1, 2)])
@pytest.mark.parametrize("kind", sorted(RELATIVES))
def test_width_64_with_relative_keys_and_values(kind, q_len, k_len, masking):
    dtype = torch.float16 if kind == "relative keys and values" else torch.bfloat16
    check(kind, dtype, 3, 4, 2, q_len, k_len, 64, **masks(3, q_len, k_len)[masking])


@pytest.mark.skipif(not CUDA, reason="the Hopper kernels are CUDA")
@pytest.mark.parametrize("masking", ["nothing", "causal", "lengths"])
@pytest.mark.parametrize(("q_len", "k_len"), [(64, 64), (130, 300), (300, 130), (1, 200), (512, 512), (1, 2), (5, 4)])
@pytest.mark.parametrize("kind", ["low rank", "toeplitz and low rank"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_width_64_with_a_matrix(kind, dtype, q_len, k_len, masking):
    check(kind, dtype, 3, 4, 2, q_len, k_len, 64, **masks(3, q_len, k_len)[masking])


@pytest.mark.skipif(not CUDA, reason="the Hopper kernels are CUDA")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_width_64_with_more_relative_values_than_float16_counts(dtype):
    """All weights are alike: those beyond the reach sum to more than float16 holds."""
    k, v = (draw(1, 1, 140_000, 64).to(dtype) for _ in range(2))
    q, table = torch.zeros_like(k[:, :, :64]), draw(1, 9, 64).to(dtype)
    found, truth = (
        hw.attention(q.to(kept), k.to(kept), v.to(kept), None, hw.RelativeValues(table.to(kept)), backend=backend)
        for backend, kept in (("triton", dtype), ("eager", torch.float64))
    )
    assert (found.double() - truth).norm() <= 3 * torch.finfo(dtype).eps * truth.norm()


MANY_SCORES = {"low rank 64": (64, False), "toeplitz and low rank 5": (5, True)}


def of_many_scores(kind, q_len, k_len, monkeypatch):
    """A low-rank bias, perhaps beside a Toeplitz one, that is not made a matrix: parameters, and what they make."""
    from headway.attention.triton import hopper

    monkeypatch.setattr(hopper, "MOST_SCORES", 0)
    rank, toeplitz = MANY_SCORES[kind]
    parameters = [0.5 * draw(1, 4, q_len, rank), 0.5 * draw(1, 1, k_len, rank), draw(1, 4, q_len + k_len - 1)]
    if toeplitz:
        return lambda left, right, values: hw.LowRank(left, right) + hw.Toeplitz(values), parameters
    return hw.LowRank, parameters[:2]


@pytest.mark.skipif(not CUDA, reason="the Hopper kernels are CUDA")
@pytest.mark.parametrize("masking", ["nothing", "causal", "lengths"])
@pytest.mark.parametrize(("q_len", "k_len"), [(64, 64), (130, 300), (300, 130), (1, 200), (700, 700)])
@pytest.mark.parametrize("kind", MANY_SCORES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_width_64_with_factors(kind, dtype, q_len, k_len, masking, monkeypatch):
    make, parameters = of_many_scores(kind, q_len, k_len, monkeypatch)
    inputs = [draw(3, 4, q_len, 64).to(dtype), *(draw(3, 2, k_len, 64).to(dtype) for _ in range(2))]
    options = masks(3, q_len, k_len)[masking]
    truth, eager, fused = (
        hw.attention(*(t.to(kept) for t in inputs), make(*(t.to(own) for t in parameters)), backend=backend, **options)
        for backend, kept, own in (
            ("eager", torch.float64, torch.float64), ("eager", dtype, torch.float32), ("triton", dtype, torch.float32)
        )
    )  # fmt: skip
    allowed = 2 * (eager.double() - truth).norm() + torch.finfo(dtype).eps * truth.norm()
    assert (fused.double() - truth).norm() <= allowed


@pytest.mark.skipif(not CUDA, reason="the Hopper kernels are CUDA")
@pytest.mark.parametrize("batch", [2, 6])
@pytest.mark.parametrize("kind", ["low rank", "toeplitz", "none", "two segments", "clipped and two segments"])
def test_width_64_with_dropout_is_as_in_the_other_kernels(kind, batch, monkeypatch):
    """The same random numbers drop the same weights in both families of kernels."""
    from headway.attention.triton import hopper

    make, parameters = made(kind, batch, 4, 200, 200, 64)
    inputs, upstream = [draw(batch, 4, 200, 64) for _ in range(3)], draw(batch, 4, 200, 64)
    found = []
    for takes in (hopper.takes, lambda *_: False):
        monkeypatch.setattr(hopper, "takes", takes)
        torch.manual_seed(3)
        found.append(outcome("triton", torch.bfloat16, make, parameters, inputs, upstream, dropout=0.3))
    for ours, others in zip(*found, strict=True):
        assert (ours.double() - others.double()).norm() <= 0.01 * others.double().norm()


@pytest.mark.skipif(not CUDA, reason="the Hopper kernels are CUDA")
@pytest.mark.parametrize("kind", sorted(RELATIVES))
def test_width_64_with_relatives_and_dropout_is_as_in_the_other_kernels(kind, monkeypatch):
    """The same random numbers drop the same weights in both families of kernels."""
    make, parameters = made(kind, 2, 4, 200, 200, 64)
    inputs, upstream = [draw(2, 4, 200, 64) for _ in range(3)], draw(2, 4, 200, 64)
    found = []
    for hopper in (True, False):
        if not hopper:
            monkeypatch.setattr(importlib.import_module("headway.attention.triton"), "_is_relative", lambda *_: False)
        torch.manual_seed(3)
        found.append(outcome("triton", torch.bfloat16, make, parameters, inputs, upstream, dropout=0.3))
    for ours, others in zip(*found, strict=True):
        assert (ours.double() - others.double()).norm() <= 0.01 * others.double().norm()


def test_strided_inputs_are_read_in_place():
    """q, k and v as views of one projection, (B, L, 3, H, D), and a gradient with rows before heads."""
    width = 64 if CUDA else 16
    projected = draw(2, 40, 3, 2, width).to(DTYPES[0])
    upstream = draw(2, 40, 2, width).to(DTYPES[0])
    results = []
    for strided in (True, False):
        x = projected.clone().requires_grad_()
        q, k, v = x.permute(2, 0, 3, 1, 4).unbind(0)
        grad = upstream.transpose(1, 2)
        if not strided:
            q, k, v, grad = (t.contiguous() for t in (q, k, v, grad))
        values = torch.linspace(-1, 1, 79, device=DEVICE)[None, None].requires_grad_()
        output = hw.attention(q, k, v, hw.Toeplitz(values), backend="triton")
        assert output.transpose(1, 2).is_contiguous()  # rows before heads, as a model reads it
        results.append([output, *torch.autograd.grad(output, [x, values], grad)])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ["toeplitz", "relative keys and values"])
@pytest.mark.parametrize(("q_len", "k_len"), [(1, 1), (1, 50), (33, 1), (64, 64)])
def test_odd_lengths(q_len, k_len, kind):
    check(kind, DTYPES[0], 1, 2, 1, q_len, k_len, 16, causal=q_len <= k_len)


@pytest.mark.parametrize("width", [16, 24, 64, 80, 128, 256] if CUDA else [24])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_head_widths(width, dtype):
    check("sum", dtype, 1, 2, 1, 70 if CUDA else 17, 70 if CUDA else 17, width)


@pytest.mark.parametrize("masking", ["nothing", "all"])
@pytest.mark.parametrize(
    "kind", ["none", "toeplitz", "two segments", "low rank", "sum", "relative keys and values", "everything"]
)
@given(data=st.data())
@settings(
    max_examples=40 if CUDA else 1,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_random_shapes(kind, masking, data):
    longest = 300 if CUDA else 40
    q_len, k_len = (data.draw(st.integers(1, longest)) for _ in range(2))
    groups, batch = data.draw(st.sampled_from([1, 2])), data.draw(st.integers(1, 5))
    check(kind, DTYPES[0], batch, 2 * groups, groups, q_len, k_len, 64 if CUDA else 16,
          **masks(batch, q_len, k_len)[masking])  # fmt: skip


def test_two_runs_give_the_same_bits():
    make, parameters = KINDS["sum"](3, 2, 50, 50)
    inputs, upstream = [draw(3, 2, 50, 16) for _ in range(3)], draw(3, 2, 50, 16)
    first, second = (outcome("triton", DTYPES[0], make, parameters, inputs, upstream) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


def test_a_row_that_sees_nothing_is_zero():
    make, parameters = KINDS["toeplitz"](2, 2, 20, 20)
    inputs, upstream = [draw(2, 2, 20, 16) for _ in range(3)], draw(2, 2, 20, 16)
    lengths = torch.tensor([0, 20], device=DEVICE)
    output, dq, dk, dv, _ = outcome("triton", DTYPES[0], make, parameters, inputs, upstream, lengths=lengths)
    for t in (output, dq, dk, dv):
        assert (t[0] == 0).all()
        assert (t[1] != 0).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16] if CUDA else [torch.float32], ids=str)
@pytest.mark.parametrize("kind", ["toeplitz", "low rank"])
def test_dropout_is_reproducible_and_gradients_use_the_same_weights(kind, dtype):
    """The values are the identity, so that the output is the weights after dropout, from which the formula follows."""
    q_len, n, chance = (100, 64, 0.4) if CUDA else (20, 32, 0.4)
    own = torch.promote_types(dtype, torch.float32)
    make, parameters = made(kind, 1, 2, q_len, n, n)
    parameters = [t.to(own).requires_grad_() for t in parameters]
    q, k = (draw(2, 2, length, n).to(dtype).requires_grad_() for length in (q_len, n))
    v = torch.eye(n, device=DEVICE, dtype=dtype).expand(2, 2, n, n).contiguous().requires_grad_()
    upstream = draw(2, 2, q_len, n).to(dtype)

    def run():
        torch.manual_seed(7)
        return hw.attention(q, k, v, make(*parameters), dropout=chance, backend="triton")

    weights = run()
    assert torch.equal(weights, run())
    kept = weights != 0
    assert abs(kept.double().mean().item() - (1 - chance)) < 0.03
    inputs = [t.detach().double().requires_grad_() for t in (q, k, v, *parameters)]
    scores = inputs[0] @ inputs[1].mT * n**-0.5 + make(*inputs[3:]).bind(q_len, n).dense()
    expected = (scores.softmax(-1) * kept / (1 - chance)) @ inputs[2]
    tolerance = 2e-5 if dtype == torch.float32 else 1e-2
    pairs = zip(
        [weights, *torch.autograd.grad(weights, [q, k, v, *parameters], upstream)],
        [expected, *torch.autograd.grad(expected, inputs, upstream.double())],
        strict=True,
    )
    for ours, truth in pairs:
        assert (ours.double() - truth).norm() <= tolerance * truth.norm()


@pytest.mark.parametrize("kind", ["toeplitz", "sum", "everything"])
def test_what_the_compiler_is_told_is_so(kind, monkeypatch):
    """Shapes, strides and dtypes that torch.compile plans with are those of the operators' results."""
    from headway.attention.triton import op

    real = {name: getattr(op, name) for name in ("fused", "fused_backward")}
    calls = []

    def recorded(name):
        def run(*arguments):
            calls.append((name, arguments))
            return real[name](*arguments)

        return run

    for name in real:
        monkeypatch.setattr(op, name, recorded(name))
    make, parameters = made(kind, 2, 4, 20, 24, 16)
    # Slices, as an encoding takes them from its table: not contiguous.
    parameters = [torch.cat([t, t], -1).to(torch.float32)[..., : t.shape[-1]].requires_grad_() for t in parameters]
    q, k, v = (draw(2, heads, length, 16).float().requires_grad_() for heads, length in ((4, 20), (2, 24), (2, 24)))
    bias = make(*parameters)
    bias, value_bias = bias if isinstance(bias, tuple) else (bias, None)
    output = hw.attention(q, k, v, bias, value_bias, backend="triton")
    torch.autograd.grad(output, [q, k, v, *parameters], draw(*output.shape).float())
    assert [name for name, _ in calls] == ["fused", "fused_backward"]
    for name, arguments in calls:
        given = [t.detach() if isinstance(t, torch.Tensor) else t for t in arguments]
        outcomes = real[name](*given)
        with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
            planned = real[name](*(mode.from_tensor(t) if isinstance(t, torch.Tensor) else t for t in given))
        for one, other in zip(outcomes, planned, strict=True):
            assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)


def test_second_derivative_is_refused():
    q, k, v = (draw(1, 1, 8, 16).float().requires_grad_() for _ in range(3))
    values = draw(1, 1, 15).float().requires_grad_()
    output = hw.attention(q, k, v, hw.Toeplitz(values), backend="triton")
    (first,) = torch.autograd.grad(output.sum(), values, create_graph=True)
    with pytest.raises(NotImplementedError, match="eager"):
        first.sum().backward()


cuda_only = pytest.mark.skipif(not CUDA, reason="needs a GPU")


@cuda_only
def test_auto_takes_the_fused_kernels():
    q = torch.randn(1, 2, 64, 64, device=DEVICE, dtype=torch.bfloat16)
    told = hw.explain(q, q, q, hw.Toeplitz(torch.zeros(1, 2, 127, device=DEVICE)))
    assert told.backend == "triton"


@pytest.mark.skipif(not CUDA, reason="the Hopper kernels are CUDA")
def test_auto_takes_the_fused_kernels_without_a_bias_where_they_are_faster():
    def backend(length, dropout=0.0, width=64, needs_grad=True):
        q = torch.randn(1, 2, length, width, device=DEVICE, dtype=torch.bfloat16, requires_grad=needs_grad)
        return hw.explain(q, q, q, dropout=dropout).backend

    assert backend(512) == backend(4096, dropout=0.1) == backend(512, needs_grad=False) == "triton"
    assert backend(4096) == backend(128, needs_grad=False) == backend(512, width=128) == "sdpa"


@cuda_only
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own code
def test_compiled_whole_with_changing_lengths():
    values = torch.randn(1, 2, 2 * 96 - 1, device=DEVICE, requires_grad=True)

    @torch.compile(fullgraph=True, dynamic=True)
    def run(q, n):
        return hw.attention(q, q, q, hw.Toeplitz(values[..., 96 - n : 96 + n - 1]), causal=True, backend="triton")

    for n in (96, 64, 80):
        q = torch.randn(1, 2, n, 32, device=DEVICE)
        expected = hw.attention(q, q, q, hw.Toeplitz(values[..., 96 - n : 96 + n - 1]), causal=True, backend="eager")
        torch.testing.assert_close(run(q, n), expected, rtol=1e-4, atol=1e-4)


@cuda_only
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own code
@pytest.mark.parametrize("parts", ["keys and values", "keys", "low rank", "clipped offsets", "segments", "none"])
def test_trains_compiled_whole_at_width_64(parts):
    """Kernels are chosen while the compiler looks on, which must not break its graph."""
    q, k, v = (torch.randn(2, 2, 80, 64, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    table = torch.randn(1, 9, 64, device=DEVICE, requires_grad=True)
    lengths, halves = torch.tensor([80, 33], device=DEVICE), (torch.arange(80, device=DEVICE) > 30).long()[None]

    def run(q, k, v, table):
        clipped = torch.arange(-79, 80, device=DEVICE).clamp(-4, 4) + 4
        bias = {
            "low rank": lambda: hw.LowRank(q[:1], k[:1]),
            "clipped offsets": lambda: hw.Toeplitz(table[:, :, 0][:, clipped][None]),
            "segments": lambda: (
                hw.Toeplitz.clipped(table[:, :, 0][None], 80, 80) + hw.SegmentTable(table[:, :2, :2], halves, halves)
            ),
            "none": lambda: None,
        }.get(parts, lambda: hw.RelativeKeys(table))()
        value_bias = hw.RelativeValues(table) if parts == "keys and values" else None
        return hw.attention(q, k, v, bias, value_bias, lengths=lengths)

    wanted = [q, k, v, *([table] if parts not in ("low rank", "none") else [])]
    expected = torch.autograd.grad(run(q, k, v, table).square().sum(), wanted)
    found = torch.autograd.grad(torch.compile(run, fullgraph=True)(q, k, v, table).square().sum(), wanted)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2 * float(theirs.abs().max()))


@cuda_only
def test_captured_in_a_graph():
    q = torch.randn(1, 2, 128, 64, device=DEVICE, dtype=torch.bfloat16)
    bias = hw.Toeplitz(torch.randn(1, 2, 255, device=DEVICE))
    expected = hw.attention(q, q, q, bias, backend="triton")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        hw.attention(q, q, q, bias, backend="triton")
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = hw.attention(q, q, q, bias, backend="triton")
    output.zero_()
    graph.replay()
    assert torch.equal(output, expected)


@cuda_only
def test_memory_at_131072_tokens():
    n, heads = 131_072, 12
    q, k, v = (torch.randn(1, heads, n, 64, device=DEVICE, dtype=torch.bfloat16).requires_grad_() for _ in range(3))
    values = torch.randn(1, heads, 2 * n - 1, device=DEVICE, requires_grad=True)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    output = hw.attention(q, k, v, hw.Toeplitz(values), backend="triton")
    output.backward(torch.ones_like(output))
    torch.cuda.synchronize()
    extra = torch.cuda.max_memory_allocated() - before
    own = 5 * q.numel() * q.element_size()  # the output, its gradient, and the gradients of q, k, v
    assert extra - own < 2 * 2**30
    assert all(torch.isfinite(t.grad).all() for t in (q, k, v, values))
