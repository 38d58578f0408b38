"""What the tests of the fused kernels share: biases of every kind, masks, and the comparison with the formula.

The error budget is measured: against float64, at most twice (gradients: three times) the error of the eager path in the
same dtype, plus one rounding step of that dtype and one of the float32 products that are summed.
"""

from __future__ import annotations

import torch

import headway as hw

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
DTYPES = [torch.bfloat16, torch.float16, torch.float32] if CUDA else [torch.float32]


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


def of_relatives(reach, together=False, begin=0):
    """Relative keys and values of one or several heads, alone or beside other terms; `width` is that of q and v.

    Values reach further by one, and the kernels with them.
    """

    def make(b, h, lq, lk, width):
        parameters = [draw(h, 2 * reach + 1, width), draw(1, 2 * reach + 3, width)]
        if not together:
            return lambda keys, values: (hw.RelativeKeys(keys, begin), hw.RelativeValues(values, begin)), parameters
        add, more = of_all(b, h, lq, lk)
        return lambda keys, values, *p: (hw.RelativeKeys(keys) + add(*p), hw.RelativeValues(values)), parameters + more

    return make


def of_products(of_queries=False, of_keys=False, together=False):
    """Products of vectors of queries and of keys with vectors of offsets: all rows of a table, some offsets without."""

    def make(b, h, lq, lk):
        rows, others = (torch.cat([torch.arange(-1, 7, device=DEVICE), ids(8, lq + lk - 9) - 1]) for _ in range(2))
        parameters = [0.5 * draw(b, h, lq, 5), draw(1, 7, 5), 0.5 * draw(b, 1, lk, 20), draw(h, 7, 20)]
        parameters = [*(parameters[:2] if of_queries else ()), *(parameters[2:] if of_keys else ())]
        add, more = of_all(b, h, lq, lk) if together else (None, [])
        more += [0.5 * draw(1, h, lq, 3), draw(h, 7, 3)] if together else []

        def products(*p):
            terms = [hw.RelativeProducts(p[0], p[1], rows)] if of_queries else []
            terms += [hw.RelativeProducts(p[-2], p[-1], others, True)] if of_keys else []
            return terms[0] if len(terms) == 1 else terms[0] + terms[1]

        def bias(*p):
            if not together:
                return products(*p)
            own = p[: -len(more)]
            return products(*own) + add(*p[len(own) : -2]) + hw.RelativeProducts(p[-2], p[-1], others)

        return bias, parameters + more

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
    "dense": lambda b, h, lq, lk: (hw.Dense, [draw(1, h, lq, lk)]),
    "dense and others": lambda b, h, lq, lk: (
        lambda matrix, t, left, right: hw.Dense(matrix) + hw.Toeplitz(t) + hw.LowRank(left, right),
        [50 + draw(1, 1, lq, lk), draw(1, h, lq + lk - 1), 0.5 * draw(1, h, lq, 5), 0.5 * draw(1, 1, lk, 5)],
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
    "relative, reach 16": of_relatives(15),
    "relative, reach 17": of_relatives(16),
    "relative, reach 28": of_relatives(27),
    "everything": of_relatives(3, together=True),
    "products of queries": of_products(of_queries=True),
    "products of keys": of_products(of_keys=True),
    "products of both": of_products(True, True),
    "products and others": of_products(True, True, together=True),
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
    relative = "relative" in kind or "products" in kind or kind == "everything"
    summed = rounding_of_sums(dtype, relative, make, parameters, inputs, upstream, **options)
    missed = {}
    for index, (truth, eager, fused) in enumerate(zip(runs["truth"], runs["eager"], runs["fused"], strict=True)):
        assert torch.isfinite(fused).all(), f"number {index} is not finite"
        allowed = times(index) * (eager.double() - truth).norm() + step * truth.norm() + summed
        error = (fused.double() - truth).norm()
        if not error <= allowed:
            missed[index] = f"number {index}: error {error:.2e}, allowed {allowed:.2e}"
    assert not missed, missed


def times(index):
    """How many times the error of eager is allowed: for the output (number 0), and for gradients."""
    return 2 if index == 0 else 3


def rounding_of_sums(dtype, relative, make, parameters, inputs, upstream, **options):
    """The error that rounding may leave in a gradient however small the gradient is.

    A gradient may be a sum of many that cancel: what is left is the rounding of grad . v in float32, and in half
    precision that of each score's gradient before it enters a product.
    """
    summed = torch.finfo(torch.float32).eps * upstream.norm() * inputs[2].norm(dim=-1).max()
    if dtype != torch.float32:
        rounding = torch.finfo(dtype).eps * inputs[0].norm(dim=-1).max() if relative else torch.finfo(torch.float16).eps
        summed = summed + rounding * of_scores(make, parameters, inputs, upstream, **options).norm()
    return summed


def check_packed(kind, dtype, batch, heads, length, width, **options):
    """Gradients in one tensor are the same bits as those of q, k and v apart."""
    make, parameters = made(kind, batch, heads, length, length, width)
    qkv = draw(batch, length, 3, heads, width).to(dtype).requires_grad_()
    parameters = [t.float().requires_grad_() for t in parameters]
    upstream = draw(batch, heads, length, width).to(dtype)
    found = []
    for packed in (True, False):
        bias = make(*parameters)
        bias, value_bias = bias if isinstance(bias, tuple) else (bias, None)
        torch.manual_seed(1)
        if packed:
            output = hw.self_attention(qkv, bias, value_bias, backend="triton", **options)
        else:
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            output = hw.attention(q, k, v, bias, value_bias, backend="triton", **options)
        found.append([output, *torch.autograd.grad(output, [qkv, *parameters], upstream)])
    for together, apart in zip(*found, strict=True):
        assert torch.equal(together, apart)


def of_scores(make, parameters, inputs, upstream, **options):
    """The gradient of every score, in float64."""
    bias = make(*parameters)
    bias, value_bias = bias if isinstance(bias, tuple) else (bias, None)
    q, k = inputs[:2]
    nothing = torch.zeros(*q.shape[:3], k.shape[2], dtype=torch.float64, device=q.device, requires_grad=True)
    added = hw.Dense(nothing) if bias is None else bias + hw.Dense(nothing)
    output = hw.attention(*inputs, added, value_bias, backend="eager", **options)
    return torch.autograd.grad(output, nothing, upstream)[0]


def masks(batch, q_len, k_len):
    free = torch.rand(batch, 1, q_len, k_len, device=DEVICE) > 0.4
    free[0, 0, 0] = False
    documents = (ids(3, batch, q_len).sort().values, ids(3, batch, k_len).sort().values)
    lengths = torch.randint(k_len + 1, (batch,), device=DEVICE)
    lengths[0] = 0
    with torch.random.fork_rng():  # so that tests without these draw the same numbers as ever
        of_keys = torch.rand(batch, 1, 1, k_len, device=DEVICE) > 0.4
        of_keys[0] = False
        ends = torch.randint(1, k_len + 1, (batch, 1, 1, 1), device=DEVICE)
        suffix = torch.arange(k_len, device=DEVICE) < ends
        in_pieces = ids(4, batch, q_len), ids(4, batch, k_len)
    return {
        "nothing": {},
        "causal": {"causal": True},
        "lengths": {"lengths": lengths},
        "mask": {"mask": free},
        "keys": {"mask": of_keys},
        "padding": {"mask": suffix},
        "keys of all, causal": {"mask": of_keys[-1:], "causal": True},
        "keys and lengths": {"mask": of_keys, "lengths": lengths},
        "documents": {"documents": documents},
        "documents, causal": {"documents": tuple(t[-1:] for t in documents), "causal": True},
        "documents and keys": {
            "documents": in_pieces,
            "mask": of_keys,
            "lengths": lengths,
        },
        "all": {"causal": True, "lengths": lengths, "mask": free, "documents": documents, "scale": 0.3},
    }
