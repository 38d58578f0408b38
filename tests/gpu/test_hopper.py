"""The CUDA kernels for Hopper against the formula, in half precision: head width 64, then what is taken of others."""

from __future__ import annotations

import threading

import pytest
import torch
from oracle import CUDA, DEVICE, KINDS, check, check_packed, draw, made, masks, of_relatives, outcome

import headway as hw

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("small_tiles"),
    pytest.mark.skipif(not CUDA, reason="the Hopper kernels are CUDA"),
]


@pytest.mark.parametrize("masking", ["nothing", "causal", "lengths"])
@pytest.mark.parametrize(("q_len", "k_len"), [(64, 64), (130, 300), (300, 130), (1, 200), (257, 257)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_width_64_with_a_toeplitz_bias(dtype, q_len, k_len, masking):
    check("toeplitz", dtype, 3, 4, 2, q_len, k_len, 64, **masks(3, q_len, k_len)[masking])


@pytest.mark.parametrize("masking", ["nothing", "causal", "lengths"])
@pytest.mark.parametrize("kind", ["toeplitz", "low rank", "none", "clipped and two segments"])
@pytest.mark.parametrize(("batch", "q_len", "k_len"), [(1, 1500, 1500), (5, 700, 900), (1, 70, 3000), (2, 3000, 70)])
def test_width_64_where_blocks_of_threads_share_keys(batch, q_len, k_len, kind, masking):
    check(kind, torch.bfloat16, batch, 2, 2, q_len, k_len, 64, **masks(batch, q_len, k_len)[masking])


@pytest.mark.parametrize("masking", ["nothing", "causal", "lengths"])
@pytest.mark.parametrize(("q_len", "k_len"), [(64, 64), (130, 300), (300, 130), (1, 200), (700, 700), (1, 2), (5, 4)])
@pytest.mark.parametrize("kind", ["none", "clipped", "two segments", "clipped and two segments"])
def test_width_64_with_clipped_offsets_segments_or_nothing(kind, q_len, k_len, masking):
    check(kind, torch.bfloat16, 3, 4, 2, q_len, k_len, 64, **masks(3, q_len, k_len)[masking])


@pytest.mark.parametrize("masking", ["nothing", "causal", "lengths"])
@pytest.mark.parametrize("kind", ["toeplitz", "none", "two segments"])
@pytest.mark.parametrize(("q_len", "k_len"), [(200, 300), (300, 60), (130, 128), (3, 193), (64, 400), (100, 300)])
def test_width_64_of_many_sequences(q_len, k_len, kind, masking):
    check(kind, torch.bfloat16, 90, 4, 2, q_len, k_len, 64, **masks(90, q_len, k_len)[masking])


@pytest.mark.parametrize("wanted", ["output", "gradients"])
@pytest.mark.parametrize("kind", ["toeplitz", "none", "relative, reach 16"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rise", [-4.0, 4.0])
def test_width_64_where_scores_rise_along_the_keys(rise, dtype, kind, wanted):
    """By hundreds, or fall: weights are measured from the right score, and tiles that were weighed too high again."""
    make, parameters = made(kind, 2, 2, 300, 700, 64)
    inputs, upstream = [draw(2, 2, 300, 64), draw(2, 2, 700, 64), draw(2, 2, 700, 64)], draw(2, 2, 300, 64)
    inputs[0][..., 0] = 8.0
    inputs[1][..., 0] = torch.linspace(0, rise * 100, 700, device=DEVICE)
    inputs = [t.to(dtype) for t in inputs]
    runs = [
        outcome(backend, kept, make, parameters, inputs, upstream)
        for backend, kept in (("eager", torch.float64), ("eager", dtype), ("triton", dtype))
    ]
    for right, near, found in zip(*(run[:1] if wanted == "output" else run[1:] for run in runs), strict=True):
        assert torch.isfinite(found).all()
        allowed = 3 * (near.double() - right).norm() + 0.02 * right.double().norm()
        assert (found.double() - right).norm() <= allowed


TILE_KINDS = ["none", "toeplitz", "low rank", "toeplitz and low rank", "clipped", "dense", "dense and others"]


@pytest.mark.parametrize("masking", ["nothing", "causal", "lengths"])
@pytest.mark.parametrize(
    ("batch", "q_len", "k_len"),
    [
        (40, 128, 128), (90, 128, 128), (5, 33, 101), (5, 128, 20),
        (1, 64, 64), (91, 64, 64), (90, 50, 33), (5, 16, 16), (90, 1, 9), (4, 100, 1),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", TILE_KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_width_64_of_one_tile(one_tile, dtype, kind, batch, q_len, k_len, masking):
    """All queries and keys in one block, which goes over several sequences, up to 64 over two at a time."""
    check(kind, dtype, batch, 4, 2, q_len, k_len, 64, **masks(batch, q_len, k_len)[masking])


@pytest.mark.parametrize("length", [50, 128])
@pytest.mark.parametrize("kind", TILE_KINDS)
def test_width_64_of_one_tile_with_dropout_is_as_in_the_other_kernels(one_tile, kind, length, monkeypatch):
    check_families_agree(kind, 90, length, monkeypatch)


@pytest.mark.parametrize("length", [64, 128])
def test_width_64_of_one_tile_gives_the_same_bits_in_ten_runs(one_tile, length):
    make, parameters = made("toeplitz and low rank", 300, 2, length, length, 64)
    inputs, upstream = [draw(300, 2, length, 64) for _ in range(3)], draw(300, 2, length, 64)
    runs = [outcome("triton", torch.bfloat16, make, parameters, inputs, upstream) for _ in range(10)]
    for run in runs[1:]:
        for one, other in zip(runs[0], run, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("length", [300, 2500])
@pytest.mark.parametrize("kind", ["toeplitz", "clipped and two segments", "relative, reach 16"])
def test_width_64_gives_the_same_bits_in_ten_runs(kind, length):
    make, parameters = made(kind, 2, 2, length, length, 64)
    inputs, upstream = [draw(2, 2, length, 64) for _ in range(3)], draw(2, 2, length, 64)
    runs = [outcome("triton", torch.bfloat16, make, parameters, inputs, upstream) for _ in range(10)]
    for run in runs[1:]:
        for one, other in zip(runs[0], run, strict=True):
            assert torch.equal(one, other)


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


@pytest.mark.parametrize("axis", ["batch", "heads", "rows"])
@pytest.mark.parametrize("kind", ["none", "toeplitz", "low rank", "relative, reach 16"])
def test_width_64_of_expanded_tensors(kind, axis):
    """Views that repeat what they show, and gradients that do, are as their copies."""
    size = [2, 2, 150, 64]
    make, parameters = made(kind, *size[:2], 150, *size[2:])
    parameters = [t.float().requires_grad_() for t in parameters]
    bias = make(*parameters)
    biases = bias if isinstance(bias, tuple) else (bias, None)
    short = [1 if name == axis else length for name, length in zip(("batch", "heads", "rows", ""), size, strict=True)]
    numbers = [draw(*short).to(torch.bfloat16).expand(size) for _ in range(4)]
    results = []
    for q, k, v, grad in (numbers, [t.contiguous() for t in numbers]):
        inputs = [t.detach().requires_grad_() for t in (q, k, v)]
        output = hw.attention(*inputs, *biases, backend="triton")
        results.append([output, *torch.autograd.grad(output, [*inputs, *parameters], grad, retain_graph=True)])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


RELATIVES = {
    "relative keys", "relative values", "relative keys and values",
    "relative, reach 16", "relative, reach 17", "relative, reach 28",
}  # fmt: skip


@pytest.mark.parametrize("masking", ["nothing", "causal", "lengths"])
@pytest.mark.parametrize(("q_len", "k_len"), [(64, 64), (130, 300), (300, 130), (1, 200), (700, 700), (40, 1), (1, 2)])
@pytest.mark.parametrize("kind", sorted(RELATIVES))
def test_width_64_with_relative_keys_and_values(kind, q_len, k_len, masking):
    dtype = torch.float16 if kind == "relative keys and values" else torch.bfloat16
    check(kind, dtype, 3, 4, 2, q_len, k_len, 64, **masks(3, q_len, k_len)[masking])


@pytest.mark.parametrize("begin", [-70, 5, 122, 1000])
def test_width_64_with_relatives_of_queries_that_begin_elsewhere(begin, monkeypatch):
    monkeypatch.setitem(KINDS, "relative", of_relatives(15, begin=begin))
    check("relative", torch.bfloat16, 2, 4, 2, 200, 300, 64)


@pytest.mark.parametrize("masking", ["nothing", "causal", "lengths"])
@pytest.mark.parametrize(("q_len", "k_len"), [(64, 64), (130, 300), (300, 130), (1, 200), (512, 512), (1, 2), (5, 4)])
@pytest.mark.parametrize("kind", ["low rank", "toeplitz and low rank", "dense", "dense and others"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_width_64_with_a_matrix(kind, dtype, q_len, k_len, masking):
    check(kind, dtype, 3, 4, 2, q_len, k_len, 64, **masks(3, q_len, k_len)[masking])


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


OTHER_WIDTHS = [32, 80, 96, 128]


@pytest.mark.parametrize("width", OTHER_WIDTHS)
@pytest.mark.parametrize("masking", ["nothing", "causal", "lengths"])
@pytest.mark.parametrize("kind", ["none", "toeplitz", "clipped and two segments"])
@pytest.mark.parametrize(("q_len", "k_len"), [(64, 64), (130, 300), (300, 130), (1, 200), (384, 384), (5, 4)])
def test_other_widths(q_len, k_len, kind, masking, width):
    check(kind, torch.bfloat16, 3, 4, 2, q_len, k_len, width, **masks(3, q_len, k_len)[masking])


@pytest.mark.parametrize("width", [8, 24, 40, 72, 100, 120])
def test_padded_widths(width):
    check("toeplitz", torch.float16, 2, 4, 2, 200, 300, width, causal=True)


@pytest.mark.parametrize("width", OTHER_WIDTHS)
@pytest.mark.parametrize("masking", ["nothing", "causal", "lengths"])
@pytest.mark.parametrize(("batch", "q_len", "k_len"), [(1, 1500, 1500), (5, 700, 900), (1, 70, 3000), (90, 200, 300)])
def test_other_widths_where_blocks_of_threads_share_keys_or_go_over_the_batch(batch, q_len, k_len, masking, width):
    check("toeplitz", torch.float16, batch, 2, 2, q_len, k_len, width, **masks(batch, q_len, k_len)[masking])


@pytest.mark.parametrize("length", [512, 2048])
def test_width_128_with_8_of_32_key_heads(length):
    check("toeplitz", torch.bfloat16, 1, 32, 4, length, length, 128, causal=True)


@pytest.mark.parametrize("width", OTHER_WIDTHS)
@pytest.mark.parametrize("kind", ["toeplitz", "none", "clipped and two segments"])
def test_other_widths_with_dropout_are_as_in_the_other_kernels(kind, width, monkeypatch):
    check_families_agree(kind, 3, 300, monkeypatch, width)


@pytest.mark.parametrize("width", OTHER_WIDTHS)
@pytest.mark.parametrize("length", [300, 2500])
def test_other_widths_give_the_same_bits_in_ten_runs(length, width):
    make, parameters = made("toeplitz", 2, 2, length, length, width)
    inputs, upstream = [draw(2, 2, length, width) for _ in range(3)], draw(2, 2, length, width)
    runs = [outcome("triton", torch.bfloat16, make, parameters, inputs, upstream) for _ in range(10)]
    for run in runs[1:]:
        for one, other in zip(runs[0], run, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("width", OTHER_WIDTHS)
@pytest.mark.parametrize("kind", ["none", "toeplitz", "two segments"])
def test_other_widths_with_gradients_in_one_tensor(kind, width):
    check_packed(kind, torch.bfloat16, 3, 4, 300, width, dropout=0.1)


@pytest.mark.parametrize("width", OTHER_WIDTHS)
@pytest.mark.parametrize("kind", ["dense", "low rank", "toeplitz and low rank", "dense and others"])
def test_inference_at_other_widths(kind, width):
    """With a matrix, which has no gradient there."""
    make, parameters = made(kind, 3, 4, 300, 200, width)
    inputs = [draw(3, heads, length, width).bfloat16() for heads, length in ((4, 300), (2, 200), (2, 200))]
    check_inference(make, parameters, inputs)


@pytest.mark.parametrize("width", OTHER_WIDTHS)
@pytest.mark.parametrize("kind", MANY_SCORES)
def test_other_widths_with_factors(kind, width, monkeypatch):
    make, parameters = of_many_scores(kind, 300, 200, monkeypatch)
    inputs = [draw(3, heads, length, width).bfloat16() for heads, length in ((4, 300), (2, 200), (2, 200))]
    check_inference(make, parameters, inputs)


def check_inference(make, parameters, inputs):
    truth, eager, fused = (
        hw.attention(*(t.to(kept) for t in inputs), make(*(t.to(own) for t in parameters)), backend=backend)
        for backend, kept, own in (
            ("eager", torch.float64, torch.float64),
            ("eager", torch.bfloat16, torch.float32),
            ("triton", torch.bfloat16, torch.float32),
        )
    )
    allowed = 2 * (eager.double() - truth).norm() + torch.finfo(torch.bfloat16).eps * truth.norm()
    assert (fused.double() - truth).norm() <= allowed


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own code
@pytest.mark.parametrize("width", [96, 128])
def test_other_widths_train_compiled_whole(width):
    q, k, v = (torch.randn(2, 2, 200, width, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    values = torch.randn(1, 2, 399, device=DEVICE, requires_grad=True)

    def run(q, k, v, values):
        return hw.attention(q, k, v, hw.Toeplitz(values), causal=True)

    expected = torch.autograd.grad(run(q, k, v, values).square().sum(), (q, k, v, values))
    compiled = torch.compile(run, fullgraph=True)
    found = torch.autograd.grad(compiled(q, k, v, values).square().sum(), (q, k, v, values))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2 * float(theirs.abs().max()))


@pytest.mark.parametrize("batch", [2, 6])
@pytest.mark.parametrize("kind", ["low rank", "toeplitz", "none", "two segments", "clipped and two segments"])
def test_width_64_with_dropout_is_as_in_the_other_kernels(kind, batch, monkeypatch):
    check_families_agree(kind, batch, 200, monkeypatch)


def check_families_agree(kind, batch, length, monkeypatch, width=64):
    """The same random numbers drop the same weights in both families of kernels."""
    from headway.attention.triton import hopper

    make, parameters = made(kind, batch, 4, length, length, width)
    inputs, upstream = [draw(batch, 4, length, width) for _ in range(3)], draw(batch, 4, length, width)
    found = []
    for takes in (hopper.takes, lambda *_: False):
        monkeypatch.setattr(hopper, "takes", takes)
        torch.manual_seed(3)
        found.append(outcome("triton", torch.bfloat16, make, parameters, inputs, upstream, dropout=0.3))
    for ours, others in zip(*found, strict=True):
        assert (ours.double() - others.double()).norm() <= 0.01 * others.double().norm()


@pytest.mark.parametrize("kind", sorted(RELATIVES))
def test_width_64_with_relatives_and_dropout_is_as_in_the_other_kernels(kind, monkeypatch):
    """The same random numbers drop the same weights in both families of kernels."""
    from headway.attention.triton import relative

    make, parameters = made(kind, 2, 4, 200, 200, 64)
    inputs, upstream = [draw(2, 4, 200, 64) for _ in range(3)], draw(2, 4, 200, 64)
    found = []
    for hopper in (True, False):
        if not hopper:
            monkeypatch.setattr(relative, "LONGEST_REACH", -1)
        torch.manual_seed(3)
        found.append(outcome("triton", torch.bfloat16, make, parameters, inputs, upstream, dropout=0.3))
    for ours, others in zip(*found, strict=True):
        assert (ours.double() - others.double()).norm() <= 0.01 * others.double().norm()


@pytest.mark.parametrize("masking", ["nothing", "lengths"])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("length", [64, 130, 300])
@pytest.mark.parametrize("kind", ["none", "toeplitz", "low rank", "two segments", "relative, reach 16"])
def test_width_64_with_gradients_in_one_tensor(kind, length, dropout, masking):
    options = masks(3, length, length)[masking]
    check_packed(kind, torch.bfloat16, 3, 4, length, 64, dropout=dropout, **options)


@pytest.mark.parametrize("kind", TILE_KINDS)
@pytest.mark.parametrize("length", [64, 101, 128])
def test_width_64_of_one_tile_with_gradients_in_one_tensor(one_tile, kind, length):
    check_packed(kind, torch.bfloat16, 40, 4, length, 64, dropout=0.1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own code
def test_compiled_whole_with_gradients_in_one_tensor():
    qkv = torch.randn(2, 200, 3, 2, 64, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    values = torch.randn(1, 2, 399, device=DEVICE, requires_grad=True)

    def run(qkv, values):
        return hw.self_attention(qkv, hw.Toeplitz(values))

    expected = torch.autograd.grad(run(qkv, values).square().sum(), (qkv, values))
    found = torch.autograd.grad(torch.compile(run, fullgraph=True)(qkv, values).square().sum(), (qkv, values))
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2 * float(theirs.abs().max()))


@pytest.mark.parametrize("learned", ["all", "dense", "toeplitz", "nothing"])
@pytest.mark.parametrize("length", [100, 200])
def test_width_64_with_gradients_of_some_parts(one_tile, length, learned):
    """What is fixed gets no gradient, and the others' are the same."""
    inputs, upstream = [draw(3, 2, length, 64).bfloat16() for _ in range(3)], draw(3, 2, length, 64).bfloat16()
    matrix, values = draw(1, 2, length, length).float(), draw(1, 1, 2 * length - 1).float()
    found = []
    for backend, dtype in (("triton", torch.bfloat16), ("eager", torch.float64)):
        q, k, v = (t.to(dtype).requires_grad_() for t in inputs)
        dense, toeplitz = (t.to(torch.promote_types(dtype, torch.float32)) for t in (matrix, values))
        wanted = [q, k, v]
        for name, part in (("dense", dense), ("toeplitz", toeplitz)):
            if learned in (name, "all"):
                wanted.append(part.requires_grad_())
        output = hw.attention(q, k, v, hw.Dense(dense) + hw.Toeplitz(toeplitz), backend=backend)
        found.append([output, *torch.autograd.grad(output, wanted, upstream.to(dtype))])
    for ours, theirs in zip(*found, strict=True):
        assert (ours.double() - theirs).norm() <= 0.01 * theirs.norm()


@pytest.mark.parametrize("length", [100, 200])
def test_width_64_in_a_thread_that_has_launched_nothing(one_tile, length):
    """Such a thread has no CUDA context yet; autograd's is one, where attention is the last thing that was called."""
    qkv = torch.randn(2, length, 3, 2, 64, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
    upstream = torch.randn(2, 2, length, 64, device=DEVICE, dtype=torch.bfloat16)
    found = []

    def run():
        output = hw.self_attention(qkv, backend="triton")
        found.extend((output, torch.autograd.grad(output, qkv, upstream)[0]))

    run()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[1], found[3])


def test_auto_takes_the_fused_kernels_without_a_bias_where_they_are_faster():
    def backend(length, dropout=0.0, width=64, needs_grad=True, batch=1):
        q = torch.randn(batch, 2, length, width, device=DEVICE, dtype=torch.bfloat16, requires_grad=needs_grad)
        return hw.explain(q, q, q, dropout=dropout).backend

    assert backend(512) == backend(4096, dropout=0.1) == backend(512, needs_grad=False) == "triton"
    assert backend(4096) == backend(128, needs_grad=False) == backend(512, width=128) == "sdpa"
    assert backend(64, needs_grad=False) == "sdpa"
    assert backend(64, needs_grad=False, batch=2048) == "triton"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own code
@pytest.mark.parametrize(
    "parts", ["keys and values", "keys", "low rank", "dense", "clipped offsets", "segments", "none"]
)
def test_trains_compiled_whole_at_width_64(parts):
    """Kernels are chosen while the compiler looks on, which must not break its graph."""
    q, k, v = (torch.randn(2, 2, 80, 64, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
    table = torch.randn(1, 9, 64, device=DEVICE, requires_grad=True)
    lengths, halves = torch.tensor([80, 33], device=DEVICE), (torch.arange(80, device=DEVICE) > 30).long()[None]

    def run(q, k, v, table):
        clipped = torch.arange(-79, 80, device=DEVICE).clamp(-4, 4) + 4
        bias = {
            "low rank": lambda: hw.LowRank(q[:1], k[:1]),
            "dense": lambda: hw.Dense(q[:1].float().sum(-1, keepdim=True) * k[:1].float().mean(-1)[:, :, None]),
            "clipped offsets": lambda: hw.Toeplitz(table[:, :, 0][:, clipped][None]),
            "segments": lambda: (
                hw.Toeplitz.clipped(table[:, :, 0][None], 80, 80) + hw.SegmentTable(table[:, :2, :2], halves, halves)
            ),
            "none": lambda: None,
        }.get(parts, lambda: hw.RelativeKeys(table))()
        value_bias = hw.RelativeValues(table) if parts == "keys and values" else None
        return hw.attention(q, k, v, bias, value_bias, lengths=lengths)

    wanted = [q, k, v, *([table] if parts not in ("low rank", "dense", "none") else [])]
    expected = torch.autograd.grad(run(q, k, v, table).square().sum(), wanted)
    found = torch.autograd.grad(torch.compile(run, fullgraph=True)(q, k, v, table).square().sum(), wanted)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-2 * float(theirs.abs().max()))
