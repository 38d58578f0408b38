"""Attention with products of vectors of queries and keys with those of offsets: forward, and backward but for offsets.

QUERIES and KEYS say which of the two terms there are. Beside them a Toeplitz bias and a low-rank one may stand, and
every mask. A program owns the rows of its tiles, as many as columns or twice as many. Where its rows have vectors, the
products with a block of offsets that several tiles share are made once, and kept for the next tiles.
"""

import triton
import triton.language as tl

from headway.attention.triton.product_tiles import (
    first_offset,
    is_ahead,
    kept_for_next,
    offset_columns,
    offset_rows,
    steps_ago,
    turned,
    turned_back,
)
from headway.attention.triton.tiles import (
    LOG2E,
    VARYING,
    allowed_tile,
    document_span,
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
    q_ptr, k_ptr, v_ptr, out_ptr, rest_ptr, lse_ptr,
    q_stride_b, q_stride_h, q_stride, k_stride_b, k_stride_h, k_stride, v_stride_b, v_stride_h, v_stride,
    qv_ptr, qv_stride_b, qv_stride_h, qv_stride, qw_ptr, qw_stride_h,
    kv_ptr, kv_stride_b, kv_stride_h, kv_stride, kw_ptr, kw_stride_h,
    toe_ptr, toe_stride_b, toe_stride_h, toe_width, toe_shift,
    left_ptr, left_stride_b, left_stride_h, right_ptr, right_stride_b, right_stride_h,
    lengths_ptr, q_docs_ptr, q_docs_stride, k_docs_ptr, k_docs_stride,
    mask_ptr, mask_stride_b, mask_stride_h, mask_stride_q,
    scale, dropout, noise_ptr, heads, groups, q_len, k_len,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, SAME_QUERIES: tl.constexpr, SAME_KEYS: tl.constexpr,
    TOEPLITZ: tl.constexpr, LOW_RANK: tl.constexpr,
    CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, DOCUMENTS: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr, REST: tl.constexpr, EDGES: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_QW: tl.constexpr, BLOCK_KW: tl.constexpr,
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
    qv_ptr += b * qv_stride_b + h * qv_stride_h
    kv_ptr += b * kv_stride_b + h * kv_stride_h
    qw_ptr += h * qw_stride_h
    kw_ptr += h * kw_stride_h
    toe_ptr += b * toe_stride_b + h * toe_stride_h
    left_ptr += b * left_stride_b + h * left_stride_h
    right_ptr += b * right_stride_b + h * right_stride_h
    q_docs_ptr += b * q_docs_stride
    k_docs_ptr += b * k_docs_stride
    mask_ptr += b * mask_stride_b + h * mask_stride_h
    length = k_len
    if LENGTHS:
        length = tl.load(lengths_ptr + b).to(tl.int32)

    row, column = tl.arange(0, BLOCK_Q)[:, None], tl.arange(0, BLOCK_K)[None, :]
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
    stop, _ = key_limits(start_q, q_len, k_len, length, BLOCK_Q, BLOCK_K, CAUSAL)
    begin = 0
    if DOCUMENTS:
        low, high = least_and_greatest(q_docs_ptr, offs_q, q_len)
        begin, end = document_span(k_docs_ptr, k_len, low, high, 1024)
        begin, stop = begin // BLOCK_K * BLOCK_K, tl.minimum(stop, end)
    RATIO: tl.constexpr = BLOCK_Q // BLOCK_K
    from_q = first_offset(q_len) - start_q  # key 0 stands at this row of the tables of offsets
    if QUERIES:
        qv_tile = q_tile
        if not SAME_QUERIES:
            qv_tile = load_rows(qv_ptr, offs_q, tl.arange(0, BLOCK_QW), q_len, qv_stride, True)
        before = offset_columns(qw_ptr, from_q + begin - BLOCK_K, BLOCK_QW, BLOCK_K)
        past = tl.dot(qv_tile, before, input_precision=PRECISION)
        last_new = past
        if RATIO == 2:
            before = offset_columns(qw_ptr, from_q + begin - 2 * BLOCK_K, BLOCK_QW, BLOCK_K)
            of_before = tl.dot(qv_tile, before, input_precision=PRECISION)
            past = tl.where(steps_ago(row, column, False, BLOCK_K) == 1, past, of_before)
    for start_k in range(begin, stop, BLOCK_K):
        start_k = tl.multiple_of(start_k, BLOCK_K)
        offs_k = start_k + tl.arange(0, BLOCK_K)
        k_tile = load_columns(k_ptr, offs_k, offs_d, k_len, k_stride, EDGES)
        right_tile = k_tile
        if LOW_RANK:
            right_tile = load_columns(right_ptr, offs_k, offs_r, k_len, BLOCK_R, EDGES)
        products = tl.zeros([BLOCK_Q, BLOCK_K], tl.float32)
        if KEYS:
            kv_tile = k_tile
            if not SAME_KEYS:
                kv_tile = load_columns(kv_ptr, offs_k, tl.arange(0, BLOCK_KW), k_len, kv_stride, EDGES)
            kw_ahead = offset_rows(kw_ptr, from_q + start_k, BLOCK_KW, BLOCK_Q)
            kw_behind = offset_rows(kw_ptr, from_q + start_k - BLOCK_Q, BLOCK_KW, BLOCK_Q)
            of_ahead = tl.dot(kw_ahead, kv_tile, input_precision=PRECISION)
            of_behind = tl.dot(kw_behind, kv_tile, input_precision=PRECISION)
            merged = tl.where(is_ahead(column, row, True, BLOCK_Q), of_ahead, of_behind)
            products += turned(merged, True, False, BLOCK_Q, BLOCK_K)
        if QUERIES:
            qw_tile = offset_columns(qw_ptr, from_q + start_k, BLOCK_QW, BLOCK_K)
            new = tl.dot(qv_tile, qw_tile, input_precision=PRECISION)
            steps = steps_ago(row, column, False, BLOCK_K)
            products += turned(tl.where(steps == 0, new, past), False, False, BLOCK_Q, BLOCK_K)
            past = kept_for_next(new, last_new, steps, RATIO)
            last_new = new
        s = LOG2E * products + score_tile(
            q_tile, k_tile, left_tile, right_tile, toe_ptr, toe_width, toe_shift,
            q_ptr, 0, 0, 0, start_q, start_k, offs_q, offs_k, q_len, factor,
            TOEPLITZ, LOW_RANK, False, False, PRECISION, BLOCK_Q, BLOCK_K,
        )  # fmt: skip
        if EDGES:
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
        v_tile = load_rows(v_ptr, offs_k, offs_v, k_len, v_stride, EDGES)
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


@triton.jit(do_not_specialize=VARYING)
def query_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, delta_ptr, dq_ptr, dleft_ptr, dqv_ptr,
    q_stride_b, q_stride_h, q_stride, k_stride_b, k_stride_h, k_stride, v_stride_b, v_stride_h, v_stride,
    grad_stride_b, grad_stride_h, grad_stride,
    qv_ptr, qv_stride_b, qv_stride_h, qv_stride, qw_ptr, qw_stride_h,
    kv_ptr, kv_stride_b, kv_stride_h, kv_stride, kw_ptr, kw_stride_h,
    toe_ptr, toe_stride_b, toe_stride_h, toe_width, toe_shift,
    left_ptr, left_stride_b, left_stride_h, right_ptr, right_stride_b, right_stride_h,
    lengths_ptr, q_docs_ptr, q_docs_stride, k_docs_ptr, k_docs_stride,
    mask_ptr, mask_stride_b, mask_stride_h, mask_stride_q,
    scale, dropout, noise_ptr, heads, groups, q_len, k_len,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, SAME_QUERIES: tl.constexpr, SAME_KEYS: tl.constexpr,
    TOEPLITZ: tl.constexpr, LOW_RANK: tl.constexpr,
    CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, DOCUMENTS: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr, EDGES: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_QW: tl.constexpr, BLOCK_KW: tl.constexpr,
):  # fmt: skip
    """Gradients of q, of the queries' vectors and of the left factor: a program owns a block of queries."""
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
    qv_ptr += b * qv_stride_b + h * qv_stride_h
    kv_ptr += b * kv_stride_b + h * kv_stride_h
    qw_ptr += h * qw_stride_h
    kw_ptr += h * kw_stride_h
    toe_ptr += b * toe_stride_b + h * toe_stride_h
    left_ptr += b * left_stride_b + h * left_stride_h
    right_ptr += b * right_stride_b + h * right_stride_h
    q_docs_ptr += b * q_docs_stride
    k_docs_ptr += b * k_docs_stride
    mask_ptr += b * mask_stride_b + h * mask_stride_h
    length = k_len
    if LENGTHS:
        length = tl.load(lengths_ptr + b).to(tl.int32)

    row, column = tl.arange(0, BLOCK_Q)[:, None], tl.arange(0, BLOCK_K)[None, :]
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
    stop, _ = key_limits(start_q, q_len, k_len, length, BLOCK_Q, BLOCK_K, CAUSAL)
    begin = 0
    if DOCUMENTS:
        low, high = least_and_greatest(q_docs_ptr, offs_q, q_len)
        begin, end = document_span(k_docs_ptr, k_len, low, high, 1024)
        begin, stop = begin // BLOCK_K * BLOCK_K, tl.minimum(stop, end)
    RATIO: tl.constexpr = BLOCK_Q // BLOCK_K
    from_q = first_offset(q_len) - start_q
    if QUERIES:
        qv_tile = q_tile
        if not SAME_QUERIES:
            qv_tile = load_rows(qv_ptr, offs_q, tl.arange(0, BLOCK_QW), q_len, qv_stride, True)
        before = offset_columns(qw_ptr, from_q + begin - BLOCK_K, BLOCK_QW, BLOCK_K)
        past = tl.dot(qv_tile, before, input_precision=PRECISION)
        last_new = past
        if RATIO == 2:
            before = offset_columns(qw_ptr, from_q + begin - 2 * BLOCK_K, BLOCK_QW, BLOCK_K)
            of_before = tl.dot(qv_tile, before, input_precision=PRECISION)
            past = tl.where(steps_ago(row, column, False, BLOCK_K) == 1, past, of_before)
        dqv = tl.zeros([BLOCK_Q, BLOCK_QW], tl.float32)
        earlier = tl.zeros([BLOCK_Q, BLOCK_K], qv_tile.dtype)  # gradients of merged products, of the tiles before
        last_later = earlier
    for start_k in range(begin, stop, BLOCK_K):
        start_k = tl.multiple_of(start_k, BLOCK_K)
        offs_k = start_k + tl.arange(0, BLOCK_K)
        k_tile = load_columns(k_ptr, offs_k, offs_d, k_len, k_stride, EDGES)
        v_tile = load_columns(v_ptr, offs_k, offs_v, k_len, v_stride, EDGES)
        right_tile = k_tile
        if LOW_RANK:
            right_tile = load_columns(right_ptr, offs_k, offs_r, k_len, BLOCK_R, EDGES)
        products = tl.zeros([BLOCK_Q, BLOCK_K], tl.float32)
        if KEYS:
            kv_tile = k_tile
            if not SAME_KEYS:
                kv_tile = load_columns(kv_ptr, offs_k, tl.arange(0, BLOCK_KW), k_len, kv_stride, EDGES)
            kw_ahead = offset_rows(kw_ptr, from_q + start_k, BLOCK_KW, BLOCK_Q)
            kw_behind = offset_rows(kw_ptr, from_q + start_k - BLOCK_Q, BLOCK_KW, BLOCK_Q)
            of_ahead = tl.dot(kw_ahead, kv_tile, input_precision=PRECISION)
            of_behind = tl.dot(kw_behind, kv_tile, input_precision=PRECISION)
            merged = tl.where(is_ahead(column, row, True, BLOCK_Q), of_ahead, of_behind)
            products += turned(merged, True, False, BLOCK_Q, BLOCK_K)
        if QUERIES:
            qw_tile = offset_columns(qw_ptr, from_q + start_k, BLOCK_QW, BLOCK_K)
            new = tl.dot(qv_tile, qw_tile, input_precision=PRECISION)
            steps = steps_ago(row, column, False, BLOCK_K)
            products += turned(tl.where(steps == 0, new, past), False, False, BLOCK_Q, BLOCK_K)
            past = kept_for_next(new, last_new, steps, RATIO)
            last_new = new
        s = LOG2E * products + score_tile(
            q_tile, k_tile, left_tile, right_tile, toe_ptr, toe_width, toe_shift,
            q_ptr, 0, 0, 0, start_q, start_k, offs_q, offs_k, q_len, factor,
            TOEPLITZ, LOW_RANK, False, False, PRECISION, BLOCK_Q, BLOCK_K,
        )  # fmt: skip
        p = tl.exp2(s - lse[:, None])
        if EDGES:
            ok = allowed_tile(
                offs_q[:, None] < q_len, offs_q[:, None], offs_k[None, :], q_len, k_len, length,
                q_docs_ptr, k_docs_ptr, mask_ptr, mask_stride_q, CAUSAL, DOCUMENTS, MASK,
            )  # fmt: skip
            p = tl.where(ok, p, 0.0)
        dp = tl.dot(grad_tile, v_tile, input_precision=PRECISION)
        if DROPOUT:
            k_noise = load_noise(noise_ptr, pair, q_len, k_len, False, offs_k)
            dp *= kept(q_noise[:, None], k_noise[None, :], dropout)
        ds = p * (dp - delta[:, None])
        dq = tl.dot(ds.to(k_tile.dtype), tl.trans(k_tile), dq, input_precision=PRECISION)
        if LOW_RANK:
            dleft = tl.dot(ds.to(right_tile.dtype), tl.trans(right_tile), dleft, input_precision=PRECISION)
        if QUERIES:
            # This tile is the last with the block that was new RATIO tiles ago: now its gradient is complete.
            later = turned_back(ds.to(qv_tile.dtype), False, False, BLOCK_Q, BLOCK_K)
            steps = RATIO - steps_ago(row, column, False, BLOCK_K)
            whole = tl.where(steps == 0, later, earlier)
            qw_behind = offset_rows(qw_ptr, from_q + start_k - BLOCK_Q, BLOCK_QW, BLOCK_K)
            dqv = tl.dot(whole, qw_behind, dqv, input_precision=PRECISION)
            earlier = kept_for_next(later, last_later, steps, RATIO)
            last_later = later
    rows = offs_q[:, None] < q_len
    if QUERIES:
        end = begin + tl.cdiv(tl.maximum(stop - begin, 0), BLOCK_K) * BLOCK_K
        for _ in tl.static_range(RATIO):  # the blocks that no tile was the last with
            steps = RATIO - steps_ago(row, column, False, BLOCK_K)
            zero = tl.zeros_like(earlier)
            whole = tl.where(steps == 0, zero, earlier)
            qw_behind = offset_rows(qw_ptr, from_q + end - BLOCK_Q, BLOCK_QW, BLOCK_K)
            dqv = tl.dot(whole, qw_behind, dqv, input_precision=PRECISION)
            earlier = kept_for_next(zero, last_later, steps, RATIO)
            last_later = zero
            end += BLOCK_K
        dqv_ptrs = dqv_ptr + (pair * q_len + offs_q)[:, None] * BLOCK_QW + tl.arange(0, BLOCK_QW)[None, :]
        tl.store(dqv_ptrs, dqv.to(dqv_ptr.dtype.element_ty), mask=rows)
    dq_ptrs = dq_ptr + ((b * q_len + offs_q) * heads + h)[:, None] * BLOCK_D + offs_d[None, :]  # (B, Lq, H, D)
    tl.store(dq_ptrs, (dq * scale).to(dq_ptr.dtype.element_ty), mask=rows)
    if LOW_RANK:
        dleft_ptrs = dleft_ptr + (pair * q_len + offs_q)[:, None] * BLOCK_R + offs_r[None, :]
        tl.store(dleft_ptrs, dleft.to(dleft_ptr.dtype.element_ty), mask=rows)


@triton.jit(do_not_specialize=VARYING)
def key_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, dright_ptr, dkv_ptr,
    q_stride_b, q_stride_h, q_stride, k_stride_b, k_stride_h, k_stride, v_stride_b, v_stride_h, v_stride,
    grad_stride_b, grad_stride_h, grad_stride,
    qv_ptr, qv_stride_b, qv_stride_h, qv_stride, qw_ptr, qw_stride_h,
    kv_ptr, kv_stride_b, kv_stride_h, kv_stride, kw_ptr, kw_stride_h,
    toe_ptr, toe_stride_b, toe_stride_h, toe_width, toe_shift,
    left_ptr, left_stride_b, left_stride_h, right_ptr, right_stride_b, right_stride_h,
    lengths_ptr, q_docs_ptr, q_docs_stride, k_docs_ptr, k_docs_stride,
    mask_ptr, mask_stride_b, mask_stride_h, mask_stride_q,
    scale, dropout, noise_ptr, heads, groups, q_len, k_len,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, SAME_QUERIES: tl.constexpr, SAME_KEYS: tl.constexpr,
    TOEPLITZ: tl.constexpr, LOW_RANK: tl.constexpr,
    CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, DOCUMENTS: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr, EDGES: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_QW: tl.constexpr, BLOCK_KW: tl.constexpr,
):  # fmt: skip
    """Gradients of k, v, the keys' vectors and the right factor, per query head: a program owns a block of keys.

    Tiles are transposed. Offsets fall as the program goes along the queries: what is behind one tile is ahead of the
    next.
    """
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
    qv_ptr += b * qv_stride_b + h * qv_stride_h
    kv_ptr += b * kv_stride_b + h * kv_stride_h
    qw_ptr += h * qw_stride_h
    kw_ptr += h * kw_stride_h
    toe_ptr += b * toe_stride_b + h * toe_stride_h
    left_ptr += b * left_stride_b + h * left_stride_h
    right_ptr += b * right_stride_b + h * right_stride_h
    q_docs_ptr += b * q_docs_stride
    k_docs_ptr += b * k_docs_stride
    mask_ptr += b * mask_stride_b + h * mask_stride_h
    length = k_len
    if LENGTHS:
        length = tl.load(lengths_ptr + b).to(tl.int32)

    row, column = tl.arange(0, BLOCK_K)[:, None], tl.arange(0, BLOCK_Q)[None, :]
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
    begin, stop = 0, q_len
    if CAUSAL:
        begin = tl.maximum(start_k - (k_len - q_len), 0) // BLOCK_Q * BLOCK_Q
    if DOCUMENTS:
        low, high = least_and_greatest(k_docs_ptr, offs_k, k_len)
        first_q, stop = document_span(q_docs_ptr, q_len, low, high, 1024)
        begin = tl.maximum(begin, first_q // BLOCK_Q * BLOCK_Q)
    if start_k >= length:
        stop = begin
    RATIO: tl.constexpr = BLOCK_K // BLOCK_Q
    from_k = first_offset(q_len) + start_k  # query 0 stands at this row of the tables of offsets
    if KEYS:
        kv_tile = k_tile
        if not SAME_KEYS:
            kv_tile = load_rows(kv_ptr, offs_k, tl.arange(0, BLOCK_KW), k_len, kv_stride, True)
        before = offset_columns(kw_ptr, from_k - begin, BLOCK_KW, BLOCK_Q)
        past = tl.dot(kv_tile, before, input_precision=PRECISION)
        last_new = past
        if RATIO == 2:
            before = offset_columns(kw_ptr, from_k - begin + BLOCK_Q, BLOCK_KW, BLOCK_Q)
            of_before = tl.dot(kv_tile, before, input_precision=PRECISION)
            past = tl.where(steps_ago(row, column, True, BLOCK_Q) == 1, past, of_before)
        dkv = tl.zeros([BLOCK_K, BLOCK_KW], tl.float32)
        earlier = tl.zeros([BLOCK_K, BLOCK_Q], kv_tile.dtype)  # gradients of merged products, of the tiles before
        last_later = earlier
    for start_q in range(begin, stop, BLOCK_Q):
        start_q = tl.multiple_of(start_q, BLOCK_Q)
        offs_q = start_q + tl.arange(0, BLOCK_Q)
        q_tile = load_columns(q_ptr, offs_q, offs_d, q_len, q_stride, EDGES)
        grad_tile = load_rows(grad_ptr, offs_q, offs_v, q_len, grad_stride, EDGES)
        lse = tl.load(lse_ptr + offs_q, mask=offs_q < q_len, other=float("inf"))
        delta = tl.load(delta_ptr + offs_q, mask=offs_q < q_len, other=0.0)
        left_tile = q_tile
        if LOW_RANK:
            left_tile = load_columns(left_ptr, offs_q, offs_r, q_len, BLOCK_R, EDGES)
        products = tl.zeros([BLOCK_K, BLOCK_Q], tl.float32)
        if QUERIES:
            qv_tile = q_tile
            if not SAME_QUERIES:
                qv_tile = load_columns(qv_ptr, offs_q, tl.arange(0, BLOCK_QW), q_len, qv_stride, EDGES)
            qw_ahead = offset_rows(qw_ptr, from_k - start_q, BLOCK_QW, BLOCK_K)
            qw_behind = offset_rows(qw_ptr, from_k - start_q - BLOCK_K, BLOCK_QW, BLOCK_K)
            of_ahead = tl.dot(qw_ahead, qv_tile, input_precision=PRECISION)
            of_behind = tl.dot(qw_behind, qv_tile, input_precision=PRECISION)
            merged = tl.where(is_ahead(column, row, False, BLOCK_K), of_ahead, of_behind)
            products += turned(merged, False, True, BLOCK_K, BLOCK_Q)
        if KEYS:
            kw_tile = offset_columns(kw_ptr, from_k - start_q - BLOCK_Q, BLOCK_KW, BLOCK_Q)
            new = tl.dot(kv_tile, kw_tile, input_precision=PRECISION)
            steps = steps_ago(row, column, True, BLOCK_Q)
            products += turned(tl.where(steps == 0, new, past), True, True, BLOCK_K, BLOCK_Q)
            past = kept_for_next(new, last_new, steps, RATIO)
            last_new = new
        s = LOG2E * products + score_tile(  # (keys, queries)
            k_tile, q_tile, right_tile, left_tile, toe_ptr, toe_width, toe_shift,
            q_ptr, 0, 0, 0, start_q, start_k, offs_q, offs_k, q_len, factor,
            TOEPLITZ, LOW_RANK, False, True, PRECISION, BLOCK_Q, BLOCK_K,
        )  # fmt: skip
        p = tl.exp2(s - lse[None, :])
        if EDGES:
            ok = allowed_tile(
                offs_q[None, :] < q_len, offs_q[None, :], offs_k[:, None], q_len, k_len, length,
                q_docs_ptr, k_docs_ptr, mask_ptr, mask_stride_q, CAUSAL, DOCUMENTS, MASK,
            )  # fmt: skip
            p = tl.where(ok, p, 0.0)
        dp = tl.dot(v_tile, tl.trans(grad_tile), input_precision=PRECISION)
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
        if KEYS:
            later = turned_back(ds.to(kv_tile.dtype), True, True, BLOCK_K, BLOCK_Q)
            steps = RATIO - steps_ago(row, column, True, BLOCK_Q)
            whole = tl.where(steps == 0, later, earlier)
            kw_ahead = offset_rows(kw_ptr, from_k - start_q + BLOCK_K - BLOCK_Q, BLOCK_KW, BLOCK_Q)
            dkv = tl.dot(whole, kw_ahead, dkv, input_precision=PRECISION)
            earlier = kept_for_next(later, last_later, steps, RATIO)
            last_later = later
    rows = offs_k[:, None] < k_len
    if KEYS:
        end = begin + tl.cdiv(tl.maximum(stop - begin, 0), BLOCK_Q) * BLOCK_Q
        for _ in tl.static_range(RATIO):
            steps = RATIO - steps_ago(row, column, True, BLOCK_Q)
            zero = tl.zeros_like(earlier)
            whole = tl.where(steps == 0, zero, earlier)
            kw_ahead = offset_rows(kw_ptr, from_k - end + BLOCK_K - BLOCK_Q, BLOCK_KW, BLOCK_Q)
            dkv = tl.dot(whole, kw_ahead, dkv, input_precision=PRECISION)
            earlier = kept_for_next(zero, last_later, steps, RATIO)
            last_later = zero
            end += BLOCK_Q
        dkv_ptrs = dkv_ptr + (pair * k_len + offs_k)[:, None] * BLOCK_KW + tl.arange(0, BLOCK_KW)[None, :]
        tl.store(dkv_ptrs, dkv.to(dkv_ptr.dtype.element_ty), mask=rows)
    at = ((b * k_len + offs_k) * heads + h)[:, None]  # (B, Lk, H, D)
    dk_ptrs = dk_ptr + at * BLOCK_D + offs_d[None, :]
    tl.store(dk_ptrs, (dk * scale).to(dk_ptr.dtype.element_ty), mask=rows)
    dv_ptrs = dv_ptr + at * BLOCK_V + offs_v[None, :]
    tl.store(dv_ptrs, dv.to(dv_ptr.dtype.element_ty), mask=rows)
    if LOW_RANK:
        dright_ptrs = dright_ptr + (pair * k_len + offs_k)[:, None] * BLOCK_R + offs_r[None, :]
        tl.store(dright_ptrs, dright.to(dright_ptr.dtype.element_ty), mask=rows)
