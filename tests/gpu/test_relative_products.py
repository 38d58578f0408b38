"""Products of vectors of queries and keys with vectors of offsets, in the kernels of Triton against the formula."""

from __future__ import annotations

import os

import pytest
import torch
from call_drawing import drawn_calls
from call_judging import attempt
from oracle import CUDA, DEVICE, DTYPES, check, draw, ids, masks, outcome
from random_calls import replay_command

import headway as hw

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
KINDS = ["products of queries", "products of keys", "products of both", "products and others"]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("small_tiles"),
    pytest.mark.skipif(not (CUDA or INTERPRETED), reason="no GPU, and TRITON_INTERPRET is not 1"),
    pytest.mark.filterwarnings("ignore:.*no current CUDA context.*:UserWarning"),
]


@pytest.mark.parametrize(
    "masking", ["all", *(pytest.param(m, marks=pytest.mark.slow) for m in ("causal", "lengths", "mask", "documents"))]
)
@pytest.mark.parametrize("kind", KINDS if CUDA else KINDS[-1:])
def test_masks(kind, masking):
    check(kind, DTYPES[0], 2, 2, 1, 37, 50, 16, **masks(2, 37, 50)[masking])


@pytest.mark.parametrize("masking", ["nothing", "causal"])
def test_a_mask_of_keys(masking):
    mask = torch.rand(2, 1, 1, 40, device=DEVICE) > 0.3
    check("products of both", DTYPES[0], 2, 2, 1, 40, 40, 16, mask=mask, **masks(2, 40, 40)[masking])


@pytest.mark.parametrize(("q_len", "k_len"), [(1, 40), (40, 1), (16, 16), (20, 50), (50, 20)])
def test_lengths_that_differ(q_len, k_len):
    for kind in KINDS if CUDA else KINDS[2:3]:
        check(kind, DTYPES[-1], 2, 2, 2, q_len, k_len, 24)


def pairs_of(kind, heads, q_len, k_len, width):
    """A function from q, k and parameters to a bias, and the parameters; vectors may be q and k themselves."""
    every = q_len + k_len - 1
    rows = (torch.arange(1 - q_len, k_len, device=DEVICE).clamp(-20, 19) + 20).contiguous()
    scale = (3 * width) ** -0.5
    if kind == "DeBERTa":

        def bias(q, k, c2p, p2c):
            of_queries = hw.RelativeProducts(q, c2p.to(q.dtype) * scale, rows)
            return of_queries + hw.RelativeProducts(k, p2c.to(k.dtype) * scale, rows, of_keys=True)

        return bias, [draw(heads, 40, width), draw(heads, 40, width)]
    if kind == "Transformer-XL":

        def bias(q, k, v, of_offsets):
            return hw.RelativeProducts.of_every_offset((q + v.to(q.dtype)) * scale, of_offsets.to(q.dtype))

        return bias, [draw(1, heads, 1, width), draw(heads, every, width)]
    if kind == "WavLM":
        gates = draw(2, heads, q_len, 1)
        return lambda q, k, table: hw.RelativeProducts(gates.to(q.dtype), table.to(q.dtype), rows), [draw(heads, 40, 1)]
    assert kind == "Inkling"
    clipped = {"left": 20, "zero_beyond": True}
    make = lambda q, k, v, t: hw.RelativeProducts.clipped(v, t, q_len, k_len, **clipped)  # noqa: E731
    return make, [0.3 * draw(2, heads, q_len, 16), draw(1, 21, 16)]


MODELS = ["DeBERTa", "Transformer-XL", "WavLM", "Inkling"]
SIZES = [(40, 37, 16)] if not CUDA else [(40, 37, 16), (200, 200, 64), (512, 512, 64), (300, 170, 80), (190, 200, 128)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("q_len", "k_len", "width"), SIZES)
@pytest.mark.parametrize("kind", MODELS)
def test_as_models_have_them(kind, q_len, k_len, width, dtype):
    """At most twice the error of eager attention in the same dtype, three times that of its gradients."""
    heads = 2
    make, parameters = pairs_of(kind, heads, q_len, k_len, width)
    own = [draw(2, heads, length, width).to(dtype).double() for length in (q_len, k_len, k_len)]
    parameters = [t.to(dtype).double() for t in parameters]
    upstream = draw(2, heads, q_len, width).to(dtype).double()
    found = []
    for backend, kept in (("eager", torch.float64), ("eager", dtype), ("triton", dtype)):
        leaves = [t.to(kept).requires_grad_() for t in (*own, *parameters)]
        q, k, v, *rest = leaves
        output = hw.attention(q, k, v, make(q, k, *rest), backend=backend, causal=kind == "Inkling")
        found.append([output, *torch.autograd.grad(output, leaves, upstream.to(kept))])
    for index, (truth, eager, fused) in enumerate(zip(*found, strict=True)):
        allowed = (2 if index == 0 else 3) * (eager.double() - truth).norm()
        error = (fused.double() - truth).norm()
        assert error <= allowed + torch.finfo(dtype).eps * truth.norm(), (index, error, allowed)


@pytest.mark.slow  # where kernels are interpreted
@pytest.mark.parametrize("kind", KINDS[2:])
def test_the_same_bits_again(kind):
    from oracle import made

    make, parameters = made(kind, 2, 2, 40, 50, 16)
    inputs, upstream = [draw(2, 2, length, 16) for length in (40, 50, 50)], draw(2, 2, 40, 16)
    runs = [outcome("triton", DTYPES[0], make, parameters, inputs, upstream) for _ in range(2)]
    for one, other in zip(*runs, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "rows", ["buckets", *(pytest.param(r, marks=pytest.mark.slow) for r in ("clipped", "zero beyond", "every offset"))]
)
def test_drawn_calls_with_dropout(rows):
    """Weights that dropout keeps are found first; so are gradients of vectors and tables that sequences share."""
    fixed = {"backend": "triton", "dtype": "float32", "width": 16, "v_width": 16, "dropout": 0.3, "batch": 2,
             "heads": 2, "key_heads": 1, "q_len": 18, "k_len": 20, "grads": "all", "values": [],
             "terms": ["products", "products"]}  # fmt: skip
    for spec in drawn_calls(5, 0, 0, fixed, DEVICE)[: 4 if CUDA else 1]:
        for term, of_keys in zip(spec["terms"], (False, True), strict=True):
            term |= {"rows": rows, "of_keys": of_keys, "vectors_width": 5}
        failures = attempt(spec, DEVICE).failures
        assert not failures, f"{failures}\n{replay_command(spec, DEVICE)}"


def test_what_stands_beside_products():
    q = draw(1, 2, 20, 16).float()
    products = hw.RelativeProducts.of_every_offset(q, draw(2, 39, 16).float())
    refused = {
        "Dense": (products + hw.Dense(draw(1, 2, 20, 20).float()), None),
        "RelativeValues": (products, hw.RelativeValues(draw(2, 3, 16).float())),
    }
    for pair in refused.values():
        with pytest.raises(NotImplementedError, match="RelativeProducts without Dense and RelativeValues beside them"):
            hw.attention(q, q, q, *pair, backend="triton")
    wide = draw(1, 1, 20, 250).float()
    bias = products + hw.RelativeProducts.of_every_offset(wide, draw(1, 39, 250).float())
    with pytest.raises(NotImplementedError, match="up to 256 columns together, and got 266"):
        hw.attention(q, q, q, bias, backend="triton")
    bias = hw.RelativeProducts.of_every_offset(wide, draw(1, 39, 250).float())
    with pytest.raises(
        NotImplementedError, match="in float32 it takes RelativeProducts of widths up to 128, and got 250"
    ):
        hw.attention(q, q, q, bias, backend="triton")


def test_no_second_derivative():
    q, table = draw(1, 1, 20, 16).float().requires_grad_(), draw(1, 39, 16).float().requires_grad_()
    output = hw.attention(q, q, q, hw.RelativeProducts.of_every_offset(q, table), backend="triton")
    (grad,) = torch.autograd.grad(output.sum(), table, create_graph=True)
    with pytest.raises(NotImplementedError, match="no second derivative"):
        grad.sum().backward()


@pytest.mark.skipif(not CUDA, reason="memory of a GPU")
def test_memory_is_linear():
    most = []
    for length in (2048, 8192):
        q, k, v = (draw(1, 4, length, 64).bfloat16().requires_grad_() for _ in range(3))
        table, rows = draw(4, 512, 64).bfloat16().requires_grad_(), ids(512, 2 * length - 1)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        bias = hw.RelativeProducts(q, table, rows) + hw.RelativeProducts(k, table, rows, of_keys=True)
        hw.attention(q, k, v, bias, backend="triton").sum().backward()
        most.append(torch.cuda.max_memory_allocated() - before)
    assert most[1] <= 5 * most[0]
