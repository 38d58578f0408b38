"""The fused kernels against the formula: on a GPU, or interpreted on the CPU (TRITON_INTERPRET=1)."""

from __future__ import annotations

import importlib
import os

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import CUDA, DEVICE, DTYPES, KINDS, check, check_packed, draw, made, masks, outcome
from torch.utils._pytree import tree_map_only

import headway as hw
from headway.attention.masking import Masking

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("small_tiles"),
    pytest.mark.skipif(not (CUDA or INTERPRETED), reason="no GPU, and TRITON_INTERPRET is not 1"),
    pytest.mark.filterwarnings("ignore:.*no current CUDA context.*:UserWarning"),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "dense" not in kind])
def test_every_kind(kind, dtype):
    check(kind, dtype, 2, 4, 2, 40, 33, 16)


SHORT_KINDS = ["none", "toeplitz", "low rank", "toeplitz and low rank", "dense", "dense and others"]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", SHORT_KINDS)
@pytest.mark.parametrize(("q_len", "k_len"), [(40, 33), (64, 64)])
def test_one_tile(one_tile, kind, dtype, q_len, k_len):
    check(kind, dtype, 5, 4, 2, q_len, k_len, 16)


@pytest.mark.parametrize("masking", ["causal", "lengths", "mask", "documents", "all"])
def test_one_tile_with_masks(one_tile, masking):
    check("toeplitz and low rank", DTYPES[0], 3, 2, 1, 37, 50, 16, **masks(3, 37, 50)[masking])


@pytest.mark.parametrize("masking", ["causal", "lengths", "mask"])
@pytest.mark.parametrize(("length", "width"), [(40, 16), (100, 64), (200, 64)])
def test_numbers_that_no_query_sees_take_no_digits_from_others(one_tile, length, width, masking):
    """Rows of a dense bias lose their largest number before they become float16: not one that is behind a mask."""
    if length > 128 and (masking == "mask" or not CUDA):
        pytest.skip("kernels of the Triton family take no dense bias")
    seen = torch.rand(1, 1, length, length, device=DEVICE) > 0.3
    seen[..., 0] = True
    hidden, options = {
        "causal": (torch.ones_like(seen).triu(1), {"causal": True}),
        "lengths": (torch.arange(length, device=DEVICE) >= 30, {"lengths": torch.tensor([30, 20], device=DEVICE)}),
        "mask": (~seen, {"mask": seen & (torch.rand(2, 1, 1, length, device=DEVICE) > 0.1)}),
    }[masking]
    matrix = draw(1, 2, length, length).float() + 1e5 * hidden
    inputs, upstream = [draw(2, 2, length, width).half() for _ in range(3)], draw(2, 2, length, width).half()
    found = [
        outcome(backend, dtype, hw.Dense, [matrix], inputs, upstream, **options)
        for backend, dtype in (("triton", torch.float16), ("eager", torch.float64))
    ]
    for ours, right in zip(*found, strict=True):
        assert (ours.double() - right).norm() <= 0.01 * right.norm()


def test_what_layers_share_where_its_own_kernels_do_not_take_the_call(one_tile):
    """The Triton kernels read the matrix itself, and its rows lose their largest number there too."""
    from headway.attention.triton.multiplied import Multiplied

    matrix = 3000 + draw(1, 2, 40, 40).float()
    inputs, upstream = [draw(2, 2, 40, 16).half() for _ in range(3)], draw(2, 2, 40, 16).half()
    found = outcome("triton", torch.float16, lambda t: Multiplied(t, (torch.empty(0),)), [matrix], inputs, upstream)
    right = outcome("eager", torch.float64, hw.Dense, [matrix], inputs, upstream)
    for ours, theirs in zip(found, right, strict=True):
        assert (ours.double() - theirs).norm() <= 0.01 * theirs.norm()


@pytest.mark.parametrize("most", [-1e9, -torch.finfo(torch.float32).max])
def test_a_row_of_the_lowest_numbers(one_tile, most):
    """What all keys share changes no weight, and no gradient either."""
    matrix = draw(1, 2, 40, 40).float()
    matrix[:, :, 3] = most
    inputs, upstream = [draw(2, 2, 40, 16).float() for _ in range(3)], draw(2, 2, 40, 16).float()
    found = outcome("triton", torch.float32, hw.Dense, [matrix], inputs, upstream)
    level = matrix.clone()
    level[:, :, 3] = 0
    right = outcome("eager", torch.float64, hw.Dense, [level], inputs, upstream)
    for mine, theirs in zip(found, right, strict=True):
        assert (mine.double() - theirs).norm() <= 1e-3 * theirs.norm()


@pytest.mark.skipif(not CUDA, reason="interpreted, half precision and large tiles say nothing more")
@pytest.mark.parametrize("length", [16, 65, 100, 128])
@pytest.mark.parametrize("kind", SHORT_KINDS)
def test_one_tile_of_every_size(one_tile, kind, length):
    check(kind, torch.bfloat16, 40, 12, 1, length, length, 64)


@pytest.mark.parametrize(("q_len", "k_len", "rank"), [(64, 64, 64), (130, 70, 5), (33, 128, 100)])
@pytest.mark.parametrize("kinds", ["toeplitz", "low rank", "dense", "toeplitz, low rank", "toeplitz, low rank, dense"])
def test_tables_of_a_matrix(kinds, q_len, k_len, rank):
    """One kernel makes what the formulas make."""
    from headway.attention.triton.matrices import matrix_tables
    from headway.attention.triton.tables import Parts, bias_matrix, highest, in_fragments

    parts = Parts()
    if "toeplitz" in kinds:
        parts = parts._replace(values=draw(1, 3, q_len + k_len - 1).float())
    if "low rank" in kinds:
        left, right = 0.3 * draw(1, 3, q_len, rank).float(), 0.3 * draw(1, 1, rank, k_len).float().mT  # strided
        parts = parts._replace(left=left, right=right)
    if "dense" in kinds:
        heads = 1 if "low rank" in kinds else 3
        parts = parts._replace(matrix=300 + draw(1, heads, q_len, k_len + 3).float()[..., 2:-1])  # strided
    peaks = None
    if parts.matrix is not None:
        peaks = highest(parts.matrix, Masking(q_len=q_len, k_len=k_len))
    matrix = bias_matrix(parts, k_len, True, peaks)
    rows, columns = matrix_tables(*parts, peaks, q_len, k_len, columns=True)
    torch.testing.assert_close(rows, in_fragments(matrix), rtol=2e-3, atol=2e-3)
    torch.testing.assert_close(columns, in_fragments(matrix.mT), rtol=2e-3, atol=2e-3)
    (alone,) = matrix_tables(*parts, peaks, q_len, k_len, columns=False)
    assert torch.equal(alone, rows)


@pytest.mark.parametrize("kind", ["toeplitz", "low rank", "dense"])
def test_tables_of_a_matrix_show_that_it_diverged(kind):
    """A clamp takes NaN for any number unless it is told not to."""
    from headway.attention.triton.matrices import matrix_tables
    from headway.attention.triton.tables import Parts

    factor, peaks = draw(1, 1, 20, 4).float(), torch.zeros(1, 1, 20, device=DEVICE) if kind == "dense" else None
    parts, diverged = {
        "toeplitz": (Parts(values=(values := draw(1, 1, 39).float())), values),
        "low rank": (Parts(left=factor, right=factor.clone()), factor),
        "dense": (Parts(matrix=(matrix := draw(1, 1, 20, 20).float())), matrix),
    }[kind]
    diverged.view(-1)[5] = torch.nan
    (rows,) = matrix_tables(*parts, peaks, 20, 20, columns=False)
    assert rows.isnan().any()


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["none", "toeplitz", "low rank", "relative keys and values", "everything"])
def test_gradients_in_one_tensor(kind, dropout):
    check_packed(kind, torch.float32, 2, 2, 40, 16, causal=True, dropout=dropout)


@pytest.mark.parametrize("kind", SHORT_KINDS)
def test_one_tile_with_gradients_in_one_tensor(one_tile, kind):
    check_packed(kind, torch.float32, 2, 2, 33, 16)


@pytest.mark.parametrize("masking", ["causal", "lengths", "mask", "documents", "all"])
@pytest.mark.parametrize("kind", ["toeplitz", "sum", "everything"])
def test_every_mask(kind, masking):
    check(kind, DTYPES[0], 2, 2, 1, 37, 50, 16, **masks(2, 37, 50)[masking])


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
        given = tree_map_only(torch.Tensor, torch.Tensor.detach, arguments)
        outcomes = real[name](*given)
        with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
            planned = real[name](*tree_map_only(torch.Tensor, mode.from_tensor, given))
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


@pytest.mark.parametrize("width", [16, 64])
@pytest.mark.parametrize("length", [20, 200])
def test_lengths_beyond_the_keys_are_all_of_them(one_tile, length, width, monkeypatch):
    """On a GPU nobody reads lengths, so that kernels must not."""
    monkeypatch.setattr(importlib.import_module("headway.attention.request"), "may_read", lambda lengths: False)
    dtype = torch.bfloat16 if CUDA else torch.float32
    q, k, v = (draw(2, 2, length, width).to(dtype) for _ in range(3))
    bias = hw.Toeplitz(draw(1, 2, 2 * length - 1).float())
    found = [
        hw.attention(q, k, v, bias, lengths=torch.tensor([most, 9], device=DEVICE), backend="triton")
        for most in (length, length + 40)
    ]
    torch.testing.assert_close(*found, rtol=0, atol=0)
