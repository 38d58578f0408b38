"""The forward kernel. One family for all biases: what a kind contributes is switched on by constants, masks likewise.

Scores are kept in units of log 2, so that exp2 is the only exponential. All programs own what they write: no atomics,
and two runs give the same bits.
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
    score_tile,
)


@triton.jit(do_not_specialize=VARYING)
def forward_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, rest_ptr, lse_ptr, weights_ptr,
    q_stride_b, q_stride_h, q_stride, k_stride_b, k_stride_h, k_stride, v_stride_b, v_stride_h, v_stride,
    toe_ptr, toe_stride_b, toe_stride_h, toe_width, toe_shift,
    left_ptr, left_stride_b, left_stride_h, right_ptr, right_stride_b, right_stride_h,
    rows_ptr, rows_stride_h, rows_count, reach, rows_shift,
    lengths_ptr, q_docs_ptr, q_docs_stride, k_docs_ptr, k_docs_stride,
    mask_ptr, mask_stride_b, mask_stride_h, mask_stride_q,
    scale, dropout, noise_ptr, heads, groups, q_len, k_len,
    TOEPLITZ: tl.constexpr, LOW_RANK: tl.constexpr, RELATIVE: tl.constexpr, WEIGHTS: tl.constexpr,
    CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, DOCUMENTS: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr, REST: tl.constexpr, EDGES: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    blocks_q = tl.cdiv(q_len, BLOCK_Q)
    start_q = (tl.program_id(0) % blocks_q) * BLOCK_Q
    if CAUSAL:
        start_q = (blocks_q - 1) * BLOCK_Q - start_q  # the longest rows first
    pair = (tl.program_id(0) // blocks_q).to(tl.int64)  # batch * heads
    b, h = pair // heads, pair % heads
    q_ptr += b * q_stride_b + h * q_stride_h
    k_ptr += b * k_stride_b + h // groups * k_stride_h
    v_ptr += b * v_stride_b + h // groups * v_stride_h
    toe_ptr += b * toe_stride_b + h * toe_stride_h
    left_ptr += b * left_stride_b + h * left_stride_h
    right_ptr += b * right_stride_b + h * right_stride_h
    q_docs_ptr += b * q_docs_stride
    k_docs_ptr += b * k_docs_stride
    mask_ptr += b * mask_stride_b + h * mask_stride_h
    if RELATIVE:
        rows_ptr += h * rows_stride_h + b * q_len * rows_count
    length = k_len
    if LENGTHS:
        length = tl.load(lengths_ptr + b).to(tl.int32)

    offs_q = start_q + tl.arange(0, BLOCK_Q)
    offs_d, offs_v, offs_r = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V), tl.arange(0, BLOCK_R)
    q_tile = load_rows(q_ptr, offs_q, offs_d, q_len, q_stride, True)
    left_tile = q_tile
    if LOW_RANK:
        left_tile = load_rows(left_ptr, offs_q, offs_r, q_len, BLOCK_R, True)
    if DROPOUT:
        q_noise = load_noise(noise_ptr, pair, q_len, k_len, True, offs_q)
    factor = scale * LOG2E
    top = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, BLOCK_V], tl.float32)
    stop, whole = key_limits(start_q, q_len, k_len, length, BLOCK_Q, BLOCK_K, CAUSAL)
    begin_k = 0
    if DOCUMENTS or MASK:
        whole = 0
    if DOCUMENTS:
        low, high = least_and_greatest(q_docs_ptr, offs_q, q_len)
        begin_k, end_k = document_span(k_docs_ptr, k_len, low, high, 1024)
        begin_k, stop = begin_k // BLOCK_K * BLOCK_K, tl.minimum(stop, end_k)
        whole = begin_k
    if WEIGHTS:
        far_left, far_right = tl.zeros([BLOCK_Q], tl.float32), tl.zeros([BLOCK_Q], tl.float32)
    for checked in tl.static_range(2 if EDGES else 1):  # first the tiles that need no check, then the others
        begin, end = (begin_k, whole) if checked == 0 else (whole, stop)
        for start_k in range(begin, end, BLOCK_K):
            start_k = tl.multiple_of(start_k, BLOCK_K)
            offs_k = start_k + tl.arange(0, BLOCK_K)
            k_tile = load_columns(k_ptr, offs_k, offs_d, k_len, k_stride, checked == 1)
            right_tile = k_tile
            if LOW_RANK:
                right_tile = load_columns(right_ptr, offs_k, offs_r, k_len, BLOCK_R, checked == 1)
            s = score_tile(
                q_tile, k_tile, left_tile, right_tile, toe_ptr, toe_width, toe_shift,
                rows_ptr, rows_count, rows_shift, reach, start_q, start_k, offs_q, offs_k, q_len, factor,
                TOEPLITZ, LOW_RANK, RELATIVE, False, PRECISION, BLOCK_Q, BLOCK_K,
            )  # fmt: skip
            if checked == 1:
                ok = allowed_tile(
                    offs_q[:, None] < q_len, offs_q[:, None], offs_k[None, :], q_len, k_len, length,
                    q_docs_ptr, k_docs_ptr, mask_ptr, mask_stride_q, CAUSAL, DOCUMENTS, MASK,
                )  # fmt: skip
                s = tl.where(ok, s, float("-inf"))
            new_top = tl.maximum(top, tl.max(s, 1))
            safe = tl.where(new_top == float("-inf"), 0.0, new_top)
            p = tl.exp2(s - safe[:, None])
            shrink = tl.exp2(top - safe)
            total = total * shrink + tl.sum(p, 1)
            if DROPOUT:
                k_noise = load_noise(noise_ptr, pair, q_len, k_len, False, offs_k)
                p *= kept(q_noise[:, None], k_noise[None, :], dropout)
            if WEIGHTS:
                to_left, to_right = far_sums(
                    p, start_q, start_k, offs_q[:, None], offs_k[None, :], rows_shift, reach, BLOCK_Q, BLOCK_K
                )
                far_left, far_right = far_left * shrink + to_left, far_right * shrink + to_right
            v_tile = load_rows(v_ptr, offs_k, offs_v, k_len, v_stride, checked == 1)
            acc = acc * shrink[:, None]
            rounded = p.to(v_tile.dtype)
            acc = tl.dot(rounded, v_tile, acc, input_precision=PRECISION)
            if REST:  # gradients that nearly cancel must not see how weights were rounded
                lost = (p - rounded.to(tl.float32)).to(v_tile.dtype)
                acc = tl.dot(lost, v_tile, acc, input_precision=PRECISION)
            top = new_top
    seen = total > 0
    total = tl.where(seen, total, 1.0)
    acc = acc / total[:, None]
    lse = tl.where(seen, top + tl.log2(total), float("inf"))
    out_at = ((b * q_len + offs_q) * heads + h)[:, None] * BLOCK_V + offs_v[None, :]  # (B, Lq, H, Dv)
    in_out = offs_q[:, None] < q_len
    stored = acc.to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + out_at, stored, mask=in_out)
    if REST:
        tl.store(rest_ptr + out_at, (acc - stored.to(tl.float32)).to(rest_ptr.dtype.element_ty), mask=in_out)
    tl.store(lse_ptr + pair * q_len + offs_q, lse, mask=offs_q < q_len)
    if WEIGHTS:
        # The weight of each offset within reach is one score: made again, now that the denominators are known.
        kind = weights_ptr.dtype.element_ty
        row_ptrs = weights_ptr + h * rows_stride_h + (b * q_len + offs_q) * rows_count
        tl.store(row_ptrs, (far_left / total).to(kind), mask=offs_q < q_len)
        tl.store(row_ptrs + 2 * reach, (far_right / total).to(kind), mask=offs_q < q_len)
        first = tl.maximum(start_q + rows_shift - reach + 1, begin_k) // BLOCK_K * BLOCK_K
        for start_k in range(first, tl.minimum(stop, start_q + BLOCK_Q + rows_shift + reach), BLOCK_K):
            offs_k = start_k + tl.arange(0, BLOCK_K)
            k_tile = load_columns(k_ptr, offs_k, offs_d, k_len, k_stride, True)
            right_tile = k_tile
            if LOW_RANK:
                right_tile = load_columns(right_ptr, offs_k, offs_r, k_len, BLOCK_R, True)
            s = score_tile(
                q_tile, k_tile, left_tile, right_tile, toe_ptr, toe_width, toe_shift,
                rows_ptr, rows_count, rows_shift, reach, start_q, start_k, offs_q, offs_k, q_len, factor,
                TOEPLITZ, LOW_RANK, RELATIVE, False, PRECISION, BLOCK_Q, BLOCK_K,
            )  # fmt: skip
            p = tl.exp2(s - lse[:, None])
            if DROPOUT:
                k_noise = load_noise(noise_ptr, pair, q_len, k_len, False, offs_k)
                p *= kept(q_noise[:, None], k_noise[None, :], dropout)
            ok = allowed_tile(
                offs_q[:, None] < q_len, offs_q[:, None], offs_k[None, :], q_len, k_len, length,
                q_docs_ptr, k_docs_ptr, mask_ptr, mask_stride_q, CAUSAL, DOCUMENTS, MASK,
            )  # fmt: skip
            offset = offs_k[None, :] - offs_q[:, None] - rows_shift
            within = (offset > -reach) & (offset < reach)
            tl.store(row_ptrs[:, None] + offset + reach, p.to(kind), mask=ok & within)
