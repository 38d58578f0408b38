"""Attention whose whole score matrix is one tile: a program goes over the sequences of the batch with one bias tile.

At these lengths (up to 128) the bias of a head is a small matrix. It is loaded once, serves every sequence, and its
gradient is summed over the batch in registers. The backward pass makes each score once and takes all gradients from it;
row sums are exact because the row is there, so nothing of the forward pass but one number per row is needed.
"""

import triton
import triton.language as tl

from headway.attention.triton.tiles import LOG2E, VARYING, allowed_tile, kept, load_columns, load_noise, load_rows


@triton.jit(do_not_specialize=VARYING)
def short_forward_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, bias_ptr, bias_stride_h,
    q_stride_b, q_stride_h, q_stride, k_stride_b, k_stride_h, k_stride, v_stride_b, v_stride_h, v_stride,
    lengths_ptr, q_docs_ptr, q_docs_stride, k_docs_ptr, k_docs_stride,
    mask_ptr, mask_stride_b, mask_stride_h, mask_stride_q,
    scale, dropout, noise_ptr, heads, groups, q_len, k_len, batch, chunks,
    BIAS: tl.constexpr, CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, DOCUMENTS: tl.constexpr, MASK: tl.constexpr,
    DROPOUT: tl.constexpr, PRECISION: tl.constexpr,
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
    for index in range(batch * chunk // chunks, batch * (chunk + 1) // chunks):
        b = tl.cast(index, tl.int64)
        pair = b * heads + h
        q_of = q_ptr + b * q_stride_b + h * q_stride_h
        k_of, v_of = (
            k_ptr + b * k_stride_b + h // groups * k_stride_h,
            v_ptr + b * v_stride_b + h // groups * v_stride_h,
        )
        q_tile = load_rows(q_of, offs_q, offs_d, q_len, q_stride, EDGES)
        k_tile = load_columns(k_of, offs_k, offs_d, k_len, k_stride, EDGES)
        v_tile = load_rows(v_of, offs_k, offs_v, k_len, v_stride, EDGES)
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
            q_noise = load_noise(noise_ptr, pair, q_len, k_len, True, offs_q)
            k_noise = load_noise(noise_ptr, pair, q_len, k_len, False, offs_k)
            p *= kept(q_noise[:, None], k_noise[None, :], dropout)
        acc = tl.dot(p.to(v_tile.dtype), v_tile, input_precision=PRECISION) / safe[:, None]
        out_ptrs = out_ptr + ((b * q_len + offs_q) * heads + h)[:, None] * BLOCK_V + offs_v[None, :]
        tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=offs_q[:, None] < q_len)
        lse = tl.where(seen, top + tl.log2(safe), float("inf"))
        tl.store(lse_ptr + pair * q_len + offs_q, lse, mask=offs_q < q_len)


@triton.jit(do_not_specialize=VARYING)
def short_backward_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, dq_ptr, dk_ptr, dv_ptr, dbias_ptr, bias_ptr, bias_stride_h,
    q_stride_b, q_stride_h, q_stride, k_stride_b, k_stride_h, k_stride, v_stride_b, v_stride_h, v_stride,
    grad_stride_b, grad_stride_h, grad_stride,
    lengths_ptr, q_docs_ptr, q_docs_stride, k_docs_ptr, k_docs_stride,
    mask_ptr, mask_stride_b, mask_stride_h, mask_stride_q,
    scale, dropout, noise_ptr, heads, groups, q_len, k_len, batch, chunks,
    BIAS: tl.constexpr, LEARNED: tl.constexpr, CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, DOCUMENTS: tl.constexpr,
    MASK: tl.constexpr, DROPOUT: tl.constexpr, PRECISION: tl.constexpr, EDGES: tl.constexpr,
    HALVES: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """All gradients; tiles are transposed, (BLOCK_K, HALF), so that no product's result is transposed.

    Queries are taken in one or two halves: two need fewer registers at a time.
    """
    h, chunk = tl.program_id(0) % heads, tl.program_id(0) // heads
    HALF: tl.constexpr = BLOCK_Q // HALVES
    offs_k, half_columns = tl.arange(0, BLOCK_K), tl.arange(0, HALF)
    offs_d, offs_v = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    factor = scale * LOG2E
    bias_ptr += h * bias_stride_h
    dbias_ptr += (chunk * heads + h).to(tl.int64) * q_len * k_len
    dbias_0 = tl.zeros([BLOCK_K, HALF], tl.float32)
    dbias_1 = tl.zeros([BLOCK_K, HALF], tl.float32)
    in_k = offs_k[:, None] < k_len
    for index in range(batch * chunk // chunks, batch * (chunk + 1) // chunks):
        b = tl.cast(index, tl.int64)
        pair = b * heads + h
        q_of, grad_of = q_ptr + b * q_stride_b + h * q_stride_h, grad_ptr + b * grad_stride_b + h * grad_stride_h
        k_of, v_of = (
            k_ptr + b * k_stride_b + h // groups * k_stride_h,
            v_ptr + b * v_stride_b + h // groups * v_stride_h,
        )
        length = k_len
        if LENGTHS:
            length = tl.load(lengths_ptr + b).to(tl.int32)
        k_tile = load_rows(k_of, offs_k, offs_d, k_len, k_stride, EDGES)
        v_tile = load_rows(v_of, offs_k, offs_v, k_len, v_stride, EDGES)
        dk = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
        dv = tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
        for half in tl.static_range(HALVES):
            offs_q = half * HALF + half_columns
            inside = (offs_q[None, :] < q_len) & in_k
            q_tile = load_columns(q_of, offs_q, offs_d, q_len, q_stride, EDGES)
            grad_tile = load_rows(grad_of, offs_q, offs_v, q_len, grad_stride, EDGES)
            lse = tl.load(lse_ptr + pair * q_len + offs_q, mask=offs_q < q_len, other=float("inf"))
            s = tl.dot(k_tile, q_tile, input_precision=PRECISION) * factor
            if BIAS:  # (Lk, Lq)
                s += tl.load(bias_ptr + offs_k[:, None] * q_len + offs_q[None, :], mask=inside, other=0.0)
            p = tl.exp2(s - lse[None, :])
            if EDGES:
                ok = allowed_tile(
                    inside, offs_q[None, :], offs_k[:, None], q_len, k_len, length,
                    q_docs_ptr + b * q_docs_stride, k_docs_ptr + b * k_docs_stride,
                    mask_ptr + b * mask_stride_b + h * mask_stride_h, mask_stride_q, CAUSAL, DOCUMENTS, MASK,
                )  # fmt: skip
                p = tl.where(ok, p, 0.0)
            dp = tl.dot(v_tile, tl.trans(grad_tile), input_precision=PRECISION)
            weight = p
            if DROPOUT:
                q_noise = load_noise(noise_ptr, pair, q_len, k_len, True, offs_q)
                k_noise = load_noise(noise_ptr, pair, q_len, k_len, False, offs_k)
                keep = kept(q_noise[None, :], k_noise[:, None], dropout)
                weight = p * keep
                dp *= keep
            dv = tl.dot(weight.to(grad_tile.dtype), grad_tile, dv, input_precision=PRECISION)
            ds = p * (dp - tl.sum(p * dp, 0)[None, :])
            if LEARNED:
                if half == 0:
                    dbias_0 += ds
                else:
                    dbias_1 += ds
            rounded = ds.to(q_tile.dtype)
            dk = tl.dot(rounded, tl.trans(q_tile), dk, input_precision=PRECISION)
            dq = tl.dot(tl.trans(k_tile), rounded, input_precision=PRECISION) * scale  # (BLOCK_D, HALF)
            dq_ptrs = dq_ptr + ((b * q_len + offs_q) * heads + h)[None, :] * BLOCK_D + offs_d[:, None]
            tl.store(dq_ptrs, dq.to(dq_ptr.dtype.element_ty), mask=offs_q[None, :] < q_len)
        at = ((b * k_len + offs_k) * heads + h)[:, None]
        dv_ptrs = dv_ptr + at * BLOCK_V + offs_v[None, :]
        tl.store(dv_ptrs, dv.to(dv_ptr.dtype.element_ty), mask=in_k)
        dk_ptrs = dk_ptr + at * BLOCK_D + offs_d[None, :]
        tl.store(dk_ptrs, (dk * scale).to(dk_ptr.dtype.element_ty), mask=in_k)
    if LEARNED:
        for half in tl.static_range(HALVES):
            offs_q = half * HALF + half_columns
            ptrs = dbias_ptr + offs_k[:, None] * q_len + offs_q[None, :]
            tl.store(ptrs, dbias_0 if half == 0 else dbias_1, mask=in_k & (offs_q[None, :] < q_len))
