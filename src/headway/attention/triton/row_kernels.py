"""The product of rows that backward passes need: of the output with its gradient."""

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
