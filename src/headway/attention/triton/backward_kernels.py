"""The backward kernels: delta; gradients of q and the left factor; gradients of k, v and the right one.

Like the forward kernel they are one family for all biases and masks. Programs own what they write.
"""

import triton
import triton.language as tl

from headway.attention.triton.tiles import (
    LOG2E,
    VARYING,
    allowed_tile,
    document_span,
    far_sums,
    kept,
    key_limits,
    least_and_greatest,
    load_columns,
    load_noise,
    load_rows,
    near_band,
    relative_tile,
    score_tile,
)


@triton.jit(do_not_specialize=["q_len"])  # one kernel for all lengths
def delta_kernel(
    out_ptr, rest_ptr, grad_ptr, delta_ptr, grad_stride_b, grad_stride_h, grad_stride, heads, q_len,
    REST: tl.constexpr, BLOCK: tl.constexpr, WIDTH_V: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """delta_i = out_i . grad_i, the sum over keys of weight times gradient; `rest` is what rounding took from out."""
    blocks = tl.cdiv(q_len, BLOCK)
    pair = (tl.program_id(0) // blocks).to(tl.int64)
    b, h = pair // heads, pair % heads
    offs = (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    offs_v = tl.arange(0, BLOCK_V)
    inside = offs[:, None] < q_len
    if WIDTH_V < BLOCK_V:
        inside &= offs_v[None, :] < WIDTH_V
    out_at = ((b * q_len + offs) * heads + h)[:, None] * WIDTH_V + offs_v[None, :]
    out = tl.load(out_ptr + out_at, mask=inside, other=0.0).to(tl.float32)
    if REST:
        out += tl.load(rest_ptr + out_at, mask=inside, other=0.0).to(tl.float32)
    grad_ptrs = grad_ptr + b * grad_stride_b + h * grad_stride_h + offs[:, None] * grad_stride + offs_v[None, :]
    grad = tl.load(grad_ptrs, mask=inside, other=0.0).to(tl.float32)
    tl.store(delta_ptr + pair * q_len + offs, tl.sum(out * grad, 1), mask=offs < q_len)


@triton.jit(do_not_specialize=VARYING)
def query_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, grad_weights_ptr, lse_ptr, delta_ptr, dq_ptr, dleft_ptr, drows_ptr,
    q_stride_b, q_stride_h, q_stride, k_stride_b, k_stride_h, k_stride, v_stride_b, v_stride_h, v_stride,
    grad_stride_b, grad_stride_h, grad_stride,
    toe_ptr, toe_stride_b, toe_stride_h, toe_width, toe_shift,
    left_ptr, left_stride_b, left_stride_h, right_ptr, right_stride_b, right_stride_h,
    rows_ptr, rows_stride_h, rows_count, reach, rows_shift,
    lengths_ptr, q_docs_ptr, q_docs_stride, k_docs_ptr, k_docs_stride,
    mask_ptr, mask_stride_b, mask_stride_h, mask_stride_q,
    scale, dropout, noise_ptr, heads, groups, q_len, k_len,
    TOEPLITZ: tl.constexpr, LOW_RANK: tl.constexpr, RELATIVE: tl.constexpr, WEIGHTS: tl.constexpr,
    CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, DOCUMENTS: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr, EDGES: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Gradients of q and of the left factor: a program owns a block of queries and goes over the keys."""
    blocks_q = tl.cdiv(q_len, BLOCK_Q)
    start_q = (tl.program_id(0) % blocks_q) * BLOCK_Q
    if CAUSAL:
        start_q = (blocks_q - 1) * BLOCK_Q - start_q
    pair = (tl.program_id(0) // blocks_q).to(tl.int64)
    b, h = pair // heads, pair % heads
    q_ptr += b * q_stride_b + h * q_stride_h
    k_ptr += b * k_stride_b + h // groups * k_stride_h
    v_ptr += b * v_stride_b + h // groups * v_stride_h
    grad_ptr += b * grad_stride_b + h * grad_stride_h
    toe_ptr += b * toe_stride_b + h * toe_stride_h
    left_ptr += b * left_stride_b + h * left_stride_h
    right_ptr += b * right_stride_b + h * right_stride_h
    q_docs_ptr += b * q_docs_stride
    k_docs_ptr += b * k_docs_stride
    mask_ptr += b * mask_stride_b + h * mask_stride_h
    rows_at = h * rows_stride_h + b * q_len * rows_count
    rows_ptr += rows_at
    grad_weights_ptr += rows_at
    drows_ptr += rows_at
    length = k_len
    if LENGTHS:
        length = tl.load(lengths_ptr + b).to(tl.int32)

    offs_q = start_q + tl.arange(0, BLOCK_Q)
    offs_d, offs_v, offs_r = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V), tl.arange(0, BLOCK_R)
    q_tile = load_rows(q_ptr, offs_q, offs_d, q_len, q_stride, True)
    grad_tile = load_rows(grad_ptr, offs_q, offs_v, q_len, grad_stride, True)
    lse = tl.load(lse_ptr + pair * q_len + offs_q, mask=offs_q < q_len, other=float("inf"))
    delta = tl.load(delta_ptr + pair * q_len + offs_q, mask=offs_q < q_len, other=0.0)
    dq = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    if DROPOUT:
        q_noise = load_noise(noise_ptr, pair, q_len, k_len, True, offs_q)
    left_tile = q_tile
    if LOW_RANK:
        left_tile = load_rows(left_ptr, offs_q, offs_r, q_len, BLOCK_R, True)
        dleft = tl.zeros([BLOCK_Q, BLOCK_R], tl.float32)
    factor = scale * LOG2E
    stop, whole = key_limits(start_q, q_len, k_len, length, BLOCK_Q, BLOCK_K, CAUSAL)
    begin_k = 0
    if DOCUMENTS or MASK:
        whole = 0
    if DOCUMENTS:
        low, high = least_and_greatest(q_docs_ptr, offs_q, q_len)
        begin_k, end_k = document_span(k_docs_ptr, k_len, low, high, 1024)
        begin_k, stop = begin_k // BLOCK_K * BLOCK_K, tl.minimum(stop, end_k)
        whole = begin_k
    if RELATIVE:
        far_left, far_right = tl.zeros([BLOCK_Q], tl.float32), tl.zeros([BLOCK_Q], tl.float32)
    for checked in tl.static_range(2 if EDGES else 1):
        begin, end = (begin_k, whole) if checked == 0 else (whole, stop)
        for start_k in range(begin, end, BLOCK_K):
            start_k = tl.multiple_of(start_k, BLOCK_K)
            offs_k = start_k + tl.arange(0, BLOCK_K)
            k_tile = load_columns(k_ptr, offs_k, offs_d, k_len, k_stride, checked == 1)
            v_tile = load_columns(v_ptr, offs_k, offs_v, k_len, v_stride, checked == 1)
            right_tile = k_tile
            if LOW_RANK:
                right_tile = load_columns(right_ptr, offs_k, offs_r, k_len, BLOCK_R, checked == 1)
            s = score_tile(
                q_tile, k_tile, left_tile, right_tile, toe_ptr, toe_width, toe_shift,
                rows_ptr, rows_count, rows_shift, reach, start_q, start_k, offs_q, offs_k, q_len, factor,
                TOEPLITZ, LOW_RANK, RELATIVE, False, PRECISION, BLOCK_Q, BLOCK_K,
            )  # fmt: skip
            p = tl.exp2(s - lse[:, None])
            if checked == 1:
                ok = allowed_tile(
                    offs_q[:, None] < q_len, offs_q[:, None], offs_k[None, :], q_len, k_len, length,
                    q_docs_ptr, k_docs_ptr, mask_ptr, mask_stride_q, CAUSAL, DOCUMENTS, MASK,
                )  # fmt: skip
                p = tl.where(ok, p, 0.0)
            dp = tl.dot(grad_tile, v_tile, input_precision=PRECISION)
            if WEIGHTS:
                dp += relative_tile(
                    grad_weights_ptr, start_q, start_k, offs_q[:, None], offs_k[None, :], q_len,
                    rows_count, rows_shift, reach, BLOCK_Q, BLOCK_K,
                )  # fmt: skip
            if DROPOUT:
                k_noise = load_noise(noise_ptr, pair, q_len, k_len, False, offs_k)
                dp *= kept(q_noise[:, None], k_noise[None, :], dropout)
            ds = p * (dp - delta[:, None])
            dq = tl.dot(ds.to(k_tile.dtype), tl.trans(k_tile), dq, input_precision=PRECISION)
            if LOW_RANK:
                dleft = tl.dot(ds.to(right_tile.dtype), tl.trans(right_tile), dleft, input_precision=PRECISION)
            if RELATIVE:
                to_left, to_right = far_sums(
                    ds, start_q, start_k, offs_q[:, None], offs_k[None, :], rows_shift, reach, BLOCK_Q, BLOCK_K
                )
                far_left, far_right = far_left + to_left, far_right + to_right
                near, _ = near_band(start_q, start_k, rows_shift, reach, BLOCK_Q, BLOCK_K)
                if near:  # an offset within reach is one score of its row
                    offset = offs_k[None, :] - offs_q[:, None] - rows_shift
                    within = (
                        (offset > -reach) & (offset < reach) & (offs_q[:, None] < q_len) & (offs_k[None, :] < k_len)
                    )
                    ptrs = drows_ptr + offs_q.to(tl.int64)[:, None] * rows_count + offset + reach
                    tl.store(ptrs, ds.to(drows_ptr.dtype.element_ty), mask=within)
    rows = offs_q[:, None] < q_len
    if RELATIVE:
        row_ptrs = drows_ptr + offs_q.to(tl.int64) * rows_count
        tl.store(row_ptrs, far_left.to(drows_ptr.dtype.element_ty), mask=offs_q < q_len)
        tl.store(row_ptrs + 2 * reach, far_right.to(drows_ptr.dtype.element_ty), mask=offs_q < q_len)
    dq_ptrs = dq_ptr + ((b * q_len + offs_q) * heads + h)[:, None] * BLOCK_D + offs_d[None, :]  # (B, Lq, H, D)
    tl.store(dq_ptrs, (dq * scale).to(dq_ptr.dtype.element_ty), mask=rows)
    if LOW_RANK:
        dleft_ptrs = dleft_ptr + (pair * q_len + offs_q)[:, None] * BLOCK_R + offs_r[None, :]
        tl.store(dleft_ptrs, dleft.to(dleft_ptr.dtype.element_ty), mask=rows)


@triton.jit(do_not_specialize=VARYING)
def key_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, grad_weights_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, dright_ptr,
    q_stride_b, q_stride_h, q_stride, k_stride_b, k_stride_h, k_stride, v_stride_b, v_stride_h, v_stride,
    grad_stride_b, grad_stride_h, grad_stride,
    toe_ptr, toe_stride_b, toe_stride_h, toe_width, toe_shift,
    left_ptr, left_stride_b, left_stride_h, right_ptr, right_stride_b, right_stride_h,
    rows_ptr, rows_stride_h, rows_count, reach, rows_shift,
    lengths_ptr, q_docs_ptr, q_docs_stride, k_docs_ptr, k_docs_stride,
    mask_ptr, mask_stride_b, mask_stride_h, mask_stride_q,
    scale, dropout, noise_ptr, heads, groups, q_len, k_len,
    TOEPLITZ: tl.constexpr, LOW_RANK: tl.constexpr, RELATIVE: tl.constexpr, WEIGHTS: tl.constexpr,
    CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, DOCUMENTS: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr, EDGES: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Gradients of k, v and the right factor, per query head: a program owns a block of keys, tiles are transposed."""
    blocks_k = tl.cdiv(k_len, BLOCK_K)
    start_k = (tl.program_id(0) % blocks_k) * BLOCK_K
    pair = (tl.program_id(0) // blocks_k).to(tl.int64)
    b, h = pair // heads, pair % heads
    q_ptr += b * q_stride_b + h * q_stride_h
    k_ptr += b * k_stride_b + h // groups * k_stride_h
    v_ptr += b * v_stride_b + h // groups * v_stride_h
    grad_ptr += b * grad_stride_b + h * grad_stride_h
    lse_ptr += pair * q_len
    delta_ptr += pair * q_len
    toe_ptr += b * toe_stride_b + h * toe_stride_h
    left_ptr += b * left_stride_b + h * left_stride_h
    right_ptr += b * right_stride_b + h * right_stride_h
    q_docs_ptr += b * q_docs_stride
    k_docs_ptr += b * k_docs_stride
    mask_ptr += b * mask_stride_b + h * mask_stride_h
    rows_at = h * rows_stride_h + b * q_len * rows_count
    rows_ptr += rows_at
    grad_weights_ptr += rows_at
    length = k_len
    if LENGTHS:
        length = tl.load(lengths_ptr + b).to(tl.int32)

    offs_k = start_k + tl.arange(0, BLOCK_K)
    offs_d, offs_v, offs_r = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V), tl.arange(0, BLOCK_R)
    k_tile = load_rows(k_ptr, offs_k, offs_d, k_len, k_stride, True)
    v_tile = load_rows(v_ptr, offs_k, offs_v, k_len, v_stride, True)
    dk = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
    if DROPOUT:
        k_noise = load_noise(noise_ptr, pair, q_len, k_len, False, offs_k)
    right_tile = k_tile
    if LOW_RANK:
        right_tile = load_rows(right_ptr, offs_k, offs_r, k_len, BLOCK_R, True)
        dright = tl.zeros([BLOCK_K, BLOCK_R], tl.float32)
    factor = scale * LOG2E
    first = 0
    unchecked = q_len // BLOCK_Q * BLOCK_Q  # from `border` up to here the tiles need no check
    border = 0
    if CAUSAL:
        shift = k_len - q_len
        first = tl.maximum(start_k - shift, 0) // BLOCK_Q * BLOCK_Q
        border = tl.minimum(tl.cdiv(tl.maximum(start_k + BLOCK_K - 1 - shift, 0), BLOCK_Q) * BLOCK_Q, q_len)
        border = tl.maximum(border, first)
    if DOCUMENTS or MASK or start_k + BLOCK_K > length:
        border = q_len
    unchecked = tl.maximum(unchecked, border)
    last = q_len
    if DOCUMENTS:
        low, high = least_and_greatest(k_docs_ptr, offs_k, k_len)
        first_q, stop_q = document_span(q_docs_ptr, q_len, low, high, 1024)
        first = tl.maximum(first, first_q // BLOCK_Q * BLOCK_Q)
        border = tl.minimum(border, stop_q)
        unchecked, last = border, border
    if start_k >= length:
        first, border, unchecked, last = 0, 0, 0, 0
    for part in tl.static_range(3 if EDGES else 1):  # unchecked, then the checked ones before and after
        begin, end = (border, unchecked) if part == 0 else ((first, border) if part == 1 else (unchecked, last))
        for start_q in range(begin, end, BLOCK_Q):
            start_q = tl.multiple_of(start_q, BLOCK_Q)
            offs_q = start_q + tl.arange(0, BLOCK_Q)
            q_tile = load_columns(q_ptr, offs_q, offs_d, q_len, q_stride, part != 0)
            grad_tile = load_rows(grad_ptr, offs_q, offs_v, q_len, grad_stride, part != 0)
            if part == 0:
                lse, delta = tl.load(lse_ptr + offs_q), tl.load(delta_ptr + offs_q)
            else:
                lse = tl.load(lse_ptr + offs_q, mask=offs_q < q_len, other=float("inf"))
                delta = tl.load(delta_ptr + offs_q, mask=offs_q < q_len, other=0.0)
            left_tile = q_tile
            if LOW_RANK:
                left_tile = load_columns(left_ptr, offs_q, offs_r, q_len, BLOCK_R, part != 0)
            s = score_tile(  # (BLOCK_K, BLOCK_Q)
                k_tile, q_tile, right_tile, left_tile, toe_ptr, toe_width, toe_shift,
                rows_ptr, rows_count, rows_shift, reach, start_q, start_k, offs_q, offs_k, q_len, factor,
                TOEPLITZ, LOW_RANK, RELATIVE, True, PRECISION, BLOCK_Q, BLOCK_K,
            )  # fmt: skip
            p = tl.exp2(s - lse[None, :])
            if part != 0:
                ok = allowed_tile(
                    offs_q[None, :] < q_len, offs_q[None, :], offs_k[:, None], q_len, k_len, length,
                    q_docs_ptr, k_docs_ptr, mask_ptr, mask_stride_q, CAUSAL, DOCUMENTS, MASK,
                )  # fmt: skip
                p = tl.where(ok, p, 0.0)
            dp = tl.dot(v_tile, tl.trans(grad_tile), input_precision=PRECISION)
            if WEIGHTS:
                dp += relative_tile(
                    grad_weights_ptr, start_q, start_k, offs_q[None, :], offs_k[:, None], q_len,
                    rows_count, rows_shift, reach, BLOCK_Q, BLOCK_K,
                )  # fmt: skip
            weight = p
            if DROPOUT:
                q_noise = load_noise(noise_ptr, pair, q_len, k_len, True, offs_q)
                keep = kept(q_noise[None, :], k_noise[:, None], dropout)
                weight = p * keep
                dp *= keep
            dv = tl.dot(weight.to(grad_tile.dtype), grad_tile, dv, input_precision=PRECISION)
            ds = p * (dp - delta[None, :])
            dk = tl.dot(ds.to(q_tile.dtype), tl.trans(q_tile), dk, input_precision=PRECISION)
            if LOW_RANK:
                dright = tl.dot(ds.to(left_tile.dtype), tl.trans(left_tile), dright, input_precision=PRECISION)
    rows = offs_k[:, None] < k_len
    at = ((b * k_len + offs_k) * heads + h)[:, None]  # (B, Lk, H, D)
    dk_ptrs = dk_ptr + at * BLOCK_D + offs_d[None, :]
    tl.store(dk_ptrs, (dk * scale).to(dk_ptr.dtype.element_ty), mask=rows)
    dv_ptrs = dv_ptr + at * BLOCK_V + offs_v[None, :]
    tl.store(dv_ptrs, dv.to(dv_ptr.dtype.element_ty), mask=rows)
    if LOW_RANK:
        dright_ptrs = dright_ptr + (pair * k_len + offs_k)[:, None] * BLOCK_R + offs_r[None, :]
        tl.store(dright_ptrs, dright.to(dright_ptr.dtype.element_ty), mask=rows)
