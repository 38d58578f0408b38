"""Products of rows that backward passes need: of the output with its gradient, and of numbers of places with rows."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["q_len"])  # one kernel for all lengths
def delta_kernel(
    out_ptr, rest_ptr, grad_ptr, delta_ptr, grad_stride_b, grad_stride_h, grad_stride, heads, q_len,
    REST: tl.constexpr, V_WIDTH: tl.constexpr, BLOCK: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """delta_i = out_i . grad_i, the sum over keys of weight times gradient; `rest` is what rounding took from out."""
    blocks = tl.cdiv(q_len, BLOCK)
    pair = (tl.program_id(0) // blocks).to(tl.int64)
    b, h = pair // heads, pair % heads
    offs = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    offs_v = tl.arange(0, BLOCK_V)
    inside = (offs[:, None] < q_len) & (offs_v[None, :] < V_WIDTH)
    out_at = ((b * q_len + offs) * heads + h)[:, None] * V_WIDTH + offs_v[None, :]
    out = tl.load(out_ptr + out_at, mask=inside, other=0.0).to(tl.float32)
    if REST:
        out += tl.load(rest_ptr + out_at, mask=inside, other=0.0).to(tl.float32)
    grad_ptrs = grad_ptr + b * grad_stride_b + h * grad_stride_h + offs[:, None] * grad_stride + offs_v[None, :]
    grad = tl.load(grad_ptrs, mask=inside, other=0.0).to(tl.float32)
    tl.store(delta_ptr + pair * q_len + offs, tl.sum(out * grad, 1), mask=offs < q_len)


@triton.jit(do_not_specialize=["rows", "length", "chunks"])
def meet_kernel(
    places_ptr, x_ptr, sums_ptr,  # (H, rows, COUNT), (B, H, L, WIDTH), (H, chunks, WIDTH, WIDTH)
    x_stride_b, x_stride_h, x_stride, rows, length, chunks,
    COUNT: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """For each head the sum over a chunk of rows of (numbers of places) x (row of x): gradients of relative tables."""
    chunk, h = tl.program_id(0), tl.program_id(1).to(tl.int64)
    blocks = tl.cdiv(rows, BLOCK)
    x_ptr += h * x_stride_h
    places_ptr += h * rows * COUNT
    column = tl.arange(0, WIDTH)
    acc = tl.zeros([WIDTH, WIDTH], tl.float32)
    for block in range(blocks * chunk // chunks, blocks * (chunk + 1) // chunks):
        row = block * BLOCK + tl.arange(0, BLOCK)
        at = (row // length).to(tl.int64) * x_stride_b + (row % length).to(tl.int64) * x_stride
        x = tl.load(x_ptr + at[:, None] + column[None, :], mask=row[:, None] < rows, other=0.0)
        ptrs = places_ptr + row.to(tl.int64)[None, :] * COUNT + column[:, None]
        places = tl.load(ptrs, mask=(row[None, :] < rows) & (column[:, None] < COUNT), other=0.0)
        acc = tl.dot(places, x, acc)
    to = sums_ptr + ((h * chunks + chunk) * WIDTH + column[:, None]) * WIDTH + column[None, :]
    tl.store(to, acc)
