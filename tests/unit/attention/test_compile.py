"""Under `torch.compile` and autocast: the same values and the same gradients, in one graph."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.testing import assert_close

import headway as hw
from headway.attention import call as call_module
from headway.attention import triton as triton_module
from headway.attention.request import checked

B, H, L, D = 2, 2, 9, 4
BACKENDS = ["eager", "sdpa", "blockwise", "auto"]


@pytest.fixture(autouse=True)
def _fresh():
    torch.manual_seed(0)
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def learned(*shape):
    return torch.randn(*shape, requires_grad=True)


def compiled(function):
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def layer(backend, **options):
    """Attention whose bias is built from parameters on the way, as an encoding does."""

    def run(q, k, v, values, table, ids):
        bias = hw.Toeplitz(values) + hw.SegmentTable(table, ids, ids)
        return hw.attention(q, k, v, bias, causal=True, backend=backend, **options)

    return run


def arguments():
    ids = torch.randint(3, (B, L))
    return [*(learned(B, H, L, D) for _ in range(3)), learned(1, H, 2 * L - 1), learned(H, 3, 3), ids]


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_is_the_same(backend):
    given = arguments()
    plain, fast = layer(backend), compiled(layer(backend))
    upstream = torch.randn(B, H, L, D)
    want, got = plain(*given), fast(*given)
    assert_close(got, want)
    for mine, theirs in zip(
        torch.autograd.grad(got, given[:-1], upstream), torch.autograd.grad(want, given[:-1], upstream), strict=True
    ):
        assert theirs.abs().sum() > 0
        assert_close(mine, theirs)
    with torch.no_grad():
        assert_close(fast(*given), want.detach())


@pytest.mark.parametrize("backend", ["eager", "blockwise"])
def test_every_kind_compiles_in_one_graph(backend):
    labels = torch.randint(3, (B, L, L))
    mask = torch.rand(B, 1, L, L) > 0.3

    def run(q, k, v, left, right, keys, edges, vectors, joined, lengths):
        bias = hw.LowRank(left, right) + hw.RelativeKeys(keys) + hw.EdgeKeys(edges, labels) + hw.Dense(left @ right.mT)
        value_bias = hw.RelativeValues(vectors) + hw.EdgeValues(joined, labels)
        return hw.attention(
            q, k, v, bias, value_bias, mask=mask, lengths=lengths, documents=labels[:, 0], backend=backend
        )

    given = [
        *(learned(B, H, L, D) for _ in range(3)),
        learned(1, H, L, 2),
        learned(1, H, L, 2),
        *(learned(H, 3, D) for _ in range(4)),
    ]
    lengths = torch.tensor([3, L])
    want, got = run(*given, lengths), compiled(run)(*given, lengths)
    assert_close(got, want)
    grads = (torch.autograd.grad(output.square().sum(), given) for output in (got, want))
    for mine, theirs in zip(*grads, strict=True):
        assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_other_lengths_need_no_other_code():
    """Dynamic shapes: one function, several lengths."""
    fast = torch.compile(layer("blockwise"), fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (5, 8, 13):
        q, values, ids = learned(B, H, length, D), learned(1, H, 2 * length - 1), torch.randint(3, (B, length))
        table = learned(H, 3, 3)
        assert_close(fast(q, q, q, values, table, ids), layer("blockwise")(q, q, q, values, table, ids))


def test_parameters_of_fixed_size_fit_sizes_that_may_change():
    """With dynamic=True heads and batch are symbols, too, beside a module's parameters, whose sizes are numbers."""
    table = torch.nn.Parameter(torch.randn(1, H, 7))

    def run(q, mask, documents):
        bias = hw.Toeplitz.clipped(table, q.shape[2], q.shape[2])
        return hw.attention(q, q, q, bias, mask=mask, documents=documents, backend="eager")

    fast = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (3, 8, 13):
        mask, documents = torch.rand(1, 1, length, length) > 0.3, torch.zeros(1, length, dtype=torch.long)
        q = learned(1, H, length, D)
        assert_close(fast(q, mask, documents), run(q, mask, documents))


def test_auto_chooses_the_same_when_compiled(monkeypatch):
    monkeypatch.setattr(call_module, "SHORT", 0)
    given = arguments()
    assert hw.explain(*given[:3], hw.Toeplitz(given[3])).backend == "blockwise"
    assert_close(compiled(layer("auto"))(*given), layer("eager")(*given))


def test_short_sequences_compile_the_formula():
    """What runs uncompiled would be opaque to the compiler, so it takes the oracle, which it can fuse."""
    given = arguments()
    assert hw.explain(*given[:3], hw.Toeplitz(given[3])).backend == "matrix"
    assert_close(compiled(layer("auto"))(*given), layer("matrix")(*given))
    with pytest.raises(Exception, match=r"torch\.compile does to the formula"):
        compiled(layer("matrix"))(*given)


@pytest.mark.parametrize("backend", ["eager", "blockwise"])
def test_dropout_compiles(backend):
    fast = compiled(layer(backend, dropout=0.5))
    given = arguments()
    first, second = fast(*given), fast(*given)
    assert torch.isfinite(first).all()
    assert not torch.equal(first, second)  # the seed is drawn at each call, not once for the graph
    (grad,) = torch.autograd.grad(first.sum(), given[:1])
    assert torch.isfinite(grad).all() and grad.abs().sum() > 0


@pytest.mark.parametrize("backend", ["eager", "matrix", "blockwise"])
def test_the_backward_pass_may_run_under_autocast(backend):
    given = arguments()
    want = torch.autograd.grad(layer(backend)(*given).square().sum(), given[:-1])
    with torch.autocast("cpu", torch.bfloat16):
        got = torch.autograd.grad(layer(backend)(*given).float().square().sum(), given[:-1])
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype == torch.float32
        assert_close(mine, theirs, rtol=0.1, atol=0.05 * float(theirs.abs().max()))


@pytest.mark.parametrize("with_compile", [False, True], ids=["plain", "compiled"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast(backend, with_compile):
    """The output in bfloat16, close to float32; parameters get gradients in their own precision."""
    given = arguments()
    run = layer(backend)
    want = run(*given)
    run = compiled(run) if with_compile else run
    with torch.autocast("cpu", torch.bfloat16):
        got = run(*given)
    assert got.dtype == torch.bfloat16
    assert_close(got.float(), want, rtol=0.03, atol=0.03)
    assert not torch.equal(got.float(), want)
    upstream = torch.randn(B, H, L, D)
    grads = torch.autograd.grad(got, given[:-1], upstream.bfloat16())
    for mine, theirs in zip(grads, torch.autograd.grad(want, given[:-1], upstream), strict=True):
        assert mine.dtype == torch.float32
        assert_close(mine, theirs, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_leaves_double_alone(backend):
    q = torch.randn(B, H, L, D, dtype=torch.float64)
    want = hw.attention(q, q, q, backend=backend)
    with torch.autocast("cpu", torch.bfloat16):
        got = hw.attention(q, q, q, backend=backend)
    assert got.dtype == torch.float64
    assert_close(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("width", "graphs"), [(64, 2), (128, 2), (16, 4)])
def test_choosing_kernels_cuts_few_graphs(monkeypatch, width, graphs):
    """A choice that looks at a length makes a graph for either answer, and torch stops after eight.

    Narrow heads take the Triton kernels for one tile, from 16 queries and keys to 128.
    """
    pytest.importorskip("triton")
    from headway.attention.triton import hopper

    monkeypatch.setattr(triton_module, "INTERPRETED", True)
    monkeypatch.setattr(hopper, "takes", lambda *tensors: True)
    counter = CompileCounter()
    nothing = dict.fromkeys(("bias", "value_bias", "mask", "lengths", "documents", "scale"))

    def chosen(q, k):
        request = checked(q, k, k, **nothing, causal=False, dropout=0.0)
        choice = triton_module.plan(request).kernels
        return q * 2 if call_module._is_faster_without_bias(request, choice) else q * 3

    run = torch.compile(chosen, backend=counter, dynamic=True)
    for batch, q_len, k_len in [(2, 5, 9), (300, 9, 5), (7, 60, 33), (4, 90, 100), (4, 100, 90), (4096, 17, 16)]:
        run(torch.zeros(batch, 2, q_len, width, requires_grad=True), torch.zeros(batch, 2, k_len, width))
    assert counter.frame_count <= graphs
