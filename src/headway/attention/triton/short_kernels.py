"""Attention whose whole score matrix is one tile: a program goes over the sequences of the batch with one bias tile.

At these lengths (up to 128) the bias of a head is a small matrix. It is loaded once, serves every sequence, and its
gradient is summed over the batch in registers. The backward pass makes each score once and takes all gradients from it;
row sums are exact because the row is there, so nothing of the forward pass but one number per row is needed.
"""

import triton
import triton.language as tl

from headway.attention.triton.tiles import LOG2E, allowed_tile, kept, load_columns, load_rows


@triton.jit
def short_forward_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, bias_ptr, bias_stride_h,
    lengths_ptr, q_docs_ptr, q_docs_stride, k_docs_ptr, k_docs_stride,
    mask_ptr, mask_stride_b, mask_stride_h, mask_stride_q,
    scale, dropout, seed_ptr, heads, groups, q_len, k_len, width, v_width, batch, chunks,
    BIAS: tl.constexpr, CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, DOCUMENTS: tl.constexpr, MASK: tl.constexpr,
    DROPOUT: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr,
    EDGES: tl.constexpr,  # whether some pair of the tile may not attend
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    h, chunk = tl.program_id(0) % heads, tl.program_id(0) // heads
    blocks_q = tl.cdiv(q_len, BLOCK_Q)
    start_q = (chunk % blocks_q) * BLOCK_Q
    chunk = chunk // blocks_q
    offs_q, offs_k = start_q + tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_K)
    offs_d, offs_v = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    factor = scale * LOG2E
    inside = (offs_q[:, None] < q_len) & (offs_k[None, :] < k_len)
    if BIAS:
        bias_ptrs = bias_ptr + h * bias_stride_h + offs_q[:, None] * k_len + offs_k[None, :]
        bias = tl.load(bias_ptrs, mask=inside, other=0.0)
    seed = 0
    if DROPOUT:
        seed = tl.load(seed_ptr)
    for index in range(batch * chunk // chunks, batch * (chunk + 1) // chunks):
        b = tl.cast(index, tl.int64)
        pair = b * heads + h
        pair_k = b * (heads // groups) + h // groups
        q_tile = load_rows(q_ptr + pair * q_len * width, offs_q, offs_d, q_len, width, width, WHOLE)
        k_tile = load_columns(k_ptr + pair_k * k_len * width, offs_k, offs_d, k_len, width, width, WHOLE)
        v_tile = load_rows(v_ptr + pair_k * k_len * v_width, offs_k, offs_v, k_len, v_width, v_width, WHOLE)
        s = tl.dot(q_tile, k_tile, input_precision=PRECISION) * factor
        if BIAS:
            s += bias
        if EDGES:
            length = k_len
            if LENGTHS:
                length = tl.load(lengths_ptr + b).to(tl.int32)
            ok = allowed_tile(
                inside, offs_q[:, None], offs_k[None, :], q_len, k_len, length,
                q_docs_ptr + b * q_docs_stride, k_docs_ptr + b * k_docs_stride,
                mask_ptr + b * mask_stride_b + h * mask_stride_h, mask_stride_q, CAUSAL, DOCUMENTS, MASK,
            )  # fmt: skip
            s = tl.where(ok, s, float("-inf"))
        top = tl.max(s, 1)
        if EDGES:
            top = tl.where(top == float("-inf"), 0.0, top)
        p = tl.exp2(s - top[:, None])
        total = tl.sum(p, 1)
        seen = total > 0
        safe = tl.where(seen, total, 1.0)
        if DROPOUT:
            p *= kept(seed, pair, offs_q[:, None], offs_k[None, :], k_len, dropout)
        acc = tl.dot(p.to(v_tile.dtype), v_tile, input_precision=PRECISION) / safe[:, None]
        out_ptrs = out_ptr + pair * q_len * v_width + offs_q[:, None] * v_width + offs_v[None, :]
        in_out = (offs_q[:, None] < q_len) & (offs_v[None, :] < v_width)
        tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=in_out)
        lse = tl.where(seen, top + tl.log2(safe), float("inf"))
        tl.store(lse_ptr + pair * q_len + offs_q, lse, mask=offs_q < q_len)


@triton.jit
def short_backward_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, dq_ptr, dk_ptr, dv_ptr, dbias_ptr, bias_ptr, bias_stride_h,
    lengths_ptr, q_docs_ptr, q_docs_stride, k_docs_ptr, k_docs_stride,
    mask_ptr, mask_stride_b, mask_stride_h, mask_stride_q,
    scale, dropout, seed_ptr, heads, groups, q_len, k_len, width, v_width, batch, chunks,
    BIAS: tl.constexpr, LEARNED: tl.constexpr, CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, DOCUMENTS: tl.constexpr,
    MASK: tl.constexpr, DROPOUT: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr, EDGES: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """All gradients; tiles are transposed, (BLOCK_K, BLOCK_Q), so that no product's result is transposed."""
    h, chunk = tl.program_id(0) % heads, tl.program_id(0) // heads
    offs_q, offs_k = tl.arange(0, BLOCK_Q), tl.arange(0, BLOCK_K)
    offs_d, offs_v = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    factor = scale * LOG2E
    inside = (offs_q[None, :] < q_len) & (offs_k[:, None] < k_len)
    at = offs_q[None, :] * k_len + offs_k[:, None]
    if BIAS:
        bias = tl.load(bias_ptr + h * bias_stride_h + at, mask=inside, other=0.0)
    if LEARNED:
        dbias = tl.zeros([BLOCK_K, BLOCK_Q], tl.float32)
    seed = 0
    if DROPOUT:
        seed = tl.load(seed_ptr)
    for index in range(batch * chunk // chunks, batch * (chunk + 1) // chunks):
        b = tl.cast(index, tl.int64)
        pair = b * heads + h
        pair_k = b * (heads // groups) + h // groups
        q_tile = load_columns(q_ptr + pair * q_len * width, offs_q, offs_d, q_len, width, width, WHOLE)
        k_tile = load_rows(k_ptr + pair_k * k_len * width, offs_k, offs_d, k_len, width, width, WHOLE)
        v_tile = load_rows(v_ptr + pair_k * k_len * v_width, offs_k, offs_v, k_len, v_width, v_width, WHOLE)
        grad_tile = load_rows(grad_ptr + pair * q_len * v_width, offs_q, offs_v, q_len, v_width, v_width, WHOLE)
        lse = tl.load(lse_ptr + pair * q_len + offs_q, mask=offs_q < q_len, other=float("inf"))
        s = tl.dot(k_tile, q_tile, input_precision=PRECISION) * factor
        if BIAS:
            s += bias
        p = tl.exp2(s - lse[None, :])
        if EDGES:
            length = k_len
            if LENGTHS:
                length = tl.load(lengths_ptr + b).to(tl.int32)
            ok = allowed_tile(
                inside, offs_q[None, :], offs_k[:, None], q_len, k_len, length,
                q_docs_ptr + b * q_docs_stride, k_docs_ptr + b * k_docs_stride,
                mask_ptr + b * mask_stride_b + h * mask_stride_h, mask_stride_q, CAUSAL, DOCUMENTS, MASK,
            )  # fmt: skip
            p = tl.where(ok, p, 0.0)
        dp = tl.dot(v_tile, tl.trans(grad_tile), input_precision=PRECISION)
        weight = p
        if DROPOUT:
            keep = kept(seed, pair, offs_q[None, :], offs_k[:, None], k_len, dropout)
            weight = p * keep
            dp *= keep
        dv = tl.dot(weight.to(grad_tile.dtype), grad_tile, input_precision=PRECISION)
        ds = p * (dp - tl.sum(p * dp, 0)[None, :])
        if LEARNED:
            dbias += ds
        half = ds.to(q_tile.dtype)
        dk = tl.dot(half, tl.trans(q_tile), input_precision=PRECISION) * scale
        dq = tl.dot(tl.trans(k_tile), half, input_precision=PRECISION) * scale  # (BLOCK_D, BLOCK_Q)
        rows = offs_k[:, None] < k_len
        dv_ptrs = dv_ptr + pair * k_len * v_width + offs_k[:, None] * v_width + offs_v[None, :]
        tl.store(dv_ptrs, dv.to(dv_ptr.dtype.element_ty), mask=rows & (offs_v[None, :] < v_width))
        dk_ptrs = dk_ptr + pair * k_len * width + offs_k[:, None] * width + offs_d[None, :]
        tl.store(dk_ptrs, dk.to(dk_ptr.dtype.element_ty), mask=rows & (offs_d[None, :] < width))
        dq_ptrs = dq_ptr + pair * q_len * width + offs_q[None, :] * width + offs_d[:, None]
        tl.store(dq_ptrs, dq.to(dq_ptr.dtype.element_ty), mask=(offs_q[None, :] < q_len) & (offs_d[:, None] < width))
    if LEARNED:
        row = (chunk * heads + h).to(tl.int64) * q_len * k_len
        tl.store(dbias_ptr + row + at, dbias, mask=inside)
