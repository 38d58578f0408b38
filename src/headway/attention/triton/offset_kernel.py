"""The gradients of what a bias holds for each offset: of vectors of offsets, and of a Toeplitz bias beside them."""

import triton
import triton.language as tl

from headway.attention.triton.product_tiles import (
    first_offset,
    is_ahead,
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
    kept,
    least_and_greatest,
    load_columns,
    load_noise,
    load_rows,
    score_tile,
)


@triton.jit(do_not_specialize=VARYING)
def offset_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, delta_ptr, dqw_ptr, dkw_ptr, sums_ptr,
    q_stride_b, q_stride_h, q_stride, k_stride_b, k_stride_h, k_stride, v_stride_b, v_stride_h, v_stride,
    grad_stride_b, grad_stride_h, grad_stride,
    qv_ptr, qv_stride_b, qv_stride_h, qv_stride, qw_ptr, qw_stride_h,
    kv_ptr, kv_stride_b, kv_stride_h, kv_stride, kw_ptr, kw_stride_h,
    toe_ptr, toe_stride_b, toe_stride_h, toe_width, toe_shift,
    left_ptr, left_stride_b, left_stride_h, right_ptr, right_stride_b, right_stride_h,
    lengths_ptr, q_docs_ptr, q_docs_stride, k_docs_ptr, k_docs_stride,
    mask_ptr, mask_stride_b, mask_stride_h, mask_stride_q,
    scale, dropout, noise_ptr, heads, groups, q_len, k_len, batch, together, chunks,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, SAME_QUERIES: tl.constexpr, SAME_KEYS: tl.constexpr,
    TOEPLITZ: tl.constexpr, LOW_RANK: tl.constexpr,
    OF_QUERIES: tl.constexpr, OF_KEYS: tl.constexpr, OF_VALUES: tl.constexpr,  # which gradients are wanted
    CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, DOCUMENTS: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr, EDGES: tl.constexpr, BLOCK: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_QW: tl.constexpr, BLOCK_KW: tl.constexpr,
):  # fmt: skip
    """A program owns a diagonal of tiles, which all have the same offsets, and adds them up over the batch.

    It writes the gradients of the block of offsets ahead of its tiles, and of the one behind; the block ahead of one
    diagonal is behind the next. Tiles are transposed: rows are keys.
    """
    blocks_q, blocks_k = tl.cdiv(q_len, BLOCK), tl.cdiv(k_len, BLOCK)
    diagonals = blocks_q + blocks_k - 1
    diagonal = tl.program_id(0) // chunks  # key block - query block + blocks_q - 1
    chunk = tl.program_id(0) % chunks
    h, group = tl.program_id(1), tl.program_id(2)  # group: `together` sequences that share one Toeplitz bias
    gap = diagonal - (blocks_q - 1)
    first_q = tl.maximum(-gap, 0)
    along = tl.minimum(blocks_q - 1, blocks_k - 1 - gap) - first_q + 1  # tiles on this diagonal
    row, column = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    offs, offs_qw, offs_kw = tl.arange(0, BLOCK), tl.arange(0, BLOCK_QW), tl.arange(0, BLOCK_KW)
    offs_d, offs_v, offs_r = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V), tl.arange(0, BLOCK_R)
    factor = scale * LOG2E
    toe_ptr += group.to(tl.int64) * toe_stride_b + h * toe_stride_h
    at = first_offset(q_len) + gap * BLOCK
    if QUERIES:
        qw_ahead = offset_rows(qw_ptr + h * qw_stride_h, at, BLOCK_QW, BLOCK)
        qw_behind = offset_rows(qw_ptr + h * qw_stride_h, at - BLOCK, BLOCK_QW, BLOCK)
    if KEYS:
        kw_ahead = offset_columns(kw_ptr + h * kw_stride_h, at, BLOCK_KW, BLOCK)
        kw_behind = offset_columns(kw_ptr + h * kw_stride_h, at - BLOCK, BLOCK_KW, BLOCK)
    if OF_QUERIES:
        dqw_ahead = tl.zeros([BLOCK, BLOCK_QW], tl.float32)
        dqw_behind = tl.zeros([BLOCK, BLOCK_QW], tl.float32)
    if OF_KEYS:  # transposed
        dkw_ahead = tl.zeros([BLOCK_KW, BLOCK], tl.float32)
        dkw_behind = tl.zeros([BLOCK_KW, BLOCK], tl.float32)
    if OF_VALUES:
        scores = tl.zeros([BLOCK, BLOCK], tl.float32)
    work = together * along
    begin, end = work * chunk // chunks, work * (chunk + 1) // chunks
    if CAUSAL and gap * BLOCK > BLOCK - 1 + k_len - q_len:
        end = begin
    for item in range(begin, end):
        b = (group * together + item // along).to(tl.int64)
        start_q = (first_q + item % along) * BLOCK
        start_k = start_q + gap * BLOCK
        offs_q, offs_k = start_q + offs, start_k + offs
        pair = b * heads + h
        length = k_len
        if LENGTHS:
            length = tl.load(lengths_ptr + b).to(tl.int32)
        meets = True
        if DOCUMENTS:
            q_low, q_high = least_and_greatest(q_docs_ptr + b * q_docs_stride, offs_q, q_len)
            k_low, k_high = least_and_greatest(k_docs_ptr + b * k_docs_stride, offs_k, k_len)
            meets = (q_low <= k_high) & (k_low <= q_high)
        if meets:
            k_of, v_of = (
                k_ptr + b * k_stride_b + h // groups * k_stride_h,
                v_ptr + b * v_stride_b + h // groups * v_stride_h,
            )
            q_of, grad_of = q_ptr + b * q_stride_b + h * q_stride_h, grad_ptr + b * grad_stride_b + h * grad_stride_h
            k_tile = load_rows(k_of, offs_k, offs_d, k_len, k_stride, EDGES)
            v_tile = load_rows(v_of, offs_k, offs_v, k_len, v_stride, EDGES)
            q_tile = load_columns(q_of, offs_q, offs_d, q_len, q_stride, EDGES)
            grad_tile = load_columns(grad_of, offs_q, offs_v, q_len, grad_stride, EDGES)
            lse = tl.load(lse_ptr + pair * q_len + offs_q, mask=offs_q < q_len, other=float("inf"))
            delta = tl.load(delta_ptr + pair * q_len + offs_q, mask=offs_q < q_len, other=0.0)
            left_tile, right_tile = q_tile, k_tile
            if LOW_RANK:
                left = left_ptr + b * left_stride_b + h * left_stride_h
                right = right_ptr + b * right_stride_b + h * right_stride_h
                left_tile = load_columns(left, offs_q, offs_r, q_len, BLOCK_R, EDGES)
                right_tile = load_rows(right, offs_k, offs_r, k_len, BLOCK_R, EDGES)
            products = tl.zeros([BLOCK, BLOCK], tl.float32)
            if QUERIES:
                qv_tile = q_tile
                if not SAME_QUERIES:
                    qv_of = qv_ptr + b * qv_stride_b + h * qv_stride_h
                    qv_tile = load_columns(qv_of, offs_q, offs_qw, q_len, qv_stride, EDGES)
                of_ahead = tl.dot(qw_ahead, qv_tile, input_precision=PRECISION)
                of_behind = tl.dot(qw_behind, qv_tile, input_precision=PRECISION)
                merged = tl.where(is_ahead(column, row, False, BLOCK), of_ahead, of_behind)
                products += turned(merged, False, True, BLOCK, BLOCK)
            if KEYS:
                kv_tile = k_tile
                if not SAME_KEYS:
                    kv_of = kv_ptr + b * kv_stride_b + h * kv_stride_h
                    kv_tile = load_rows(kv_of, offs_k, offs_kw, k_len, kv_stride, EDGES)
                of_ahead = tl.dot(kv_tile, kw_ahead, input_precision=PRECISION)
                of_behind = tl.dot(kv_tile, kw_behind, input_precision=PRECISION)
                merged = tl.where((steps_ago(row, column, True, BLOCK) == 1), of_ahead, of_behind)
                products += turned(merged, True, True, BLOCK, BLOCK)
            s = LOG2E * products + score_tile(  # (keys, queries)
                k_tile, q_tile, right_tile, left_tile, toe_ptr, toe_width, toe_shift,
                q_ptr, 0, 0, 0, start_q, start_k, offs_q, offs_k, q_len, factor,
                TOEPLITZ, LOW_RANK, False, True, PRECISION, BLOCK, BLOCK,
            )  # fmt: skip
            p = tl.exp2(s - lse[None, :])
            if EDGES:
                ok = allowed_tile(
                    offs_q[None, :] < q_len, offs_q[None, :], offs_k[:, None], q_len, k_len, length,
                    q_docs_ptr + b * q_docs_stride, k_docs_ptr + b * k_docs_stride,
                    mask_ptr + b * mask_stride_b + h * mask_stride_h, mask_stride_q, CAUSAL, DOCUMENTS, MASK,
                )  # fmt: skip
                p = tl.where(ok, p, 0.0)
            dp = tl.dot(v_tile, grad_tile, input_precision=PRECISION)
            if DROPOUT:
                q_noise = load_noise(noise_ptr, pair, q_len, k_len, True, offs_q)
                k_noise = load_noise(noise_ptr, pair, q_len, k_len, False, offs_k)
                dp *= kept(q_noise[None, :], k_noise[:, None], dropout)
            ds = p * (dp - delta[None, :])
            if OF_VALUES:
                scores += ds
            if OF_QUERIES:
                back = turned_back(ds.to(qv_tile.dtype), False, True, BLOCK, BLOCK)  # (places, queries)
                ahead, zero = is_ahead(column, row, False, BLOCK), tl.zeros_like(back)
                vectors = tl.trans(qv_tile)
                dqw_ahead = tl.dot(tl.where(ahead, back, zero), vectors, dqw_ahead, input_precision=PRECISION)
                dqw_behind = tl.dot(tl.where(ahead, zero, back), vectors, dqw_behind, input_precision=PRECISION)
            if OF_KEYS:
                back = turned_back(ds.to(kv_tile.dtype), True, True, BLOCK, BLOCK)  # (keys, places)
                ahead, zero = (steps_ago(row, column, True, BLOCK) == 1), tl.zeros_like(back)
                vectors = tl.trans(kv_tile)
                dkw_ahead = tl.dot(vectors, tl.where(ahead, back, zero), dkw_ahead, input_precision=PRECISION)
                dkw_behind = tl.dot(vectors, tl.where(ahead, zero, back), dkw_behind, input_precision=PRECISION)
    result = ((group * heads + h).to(tl.int64) * diagonals + diagonal) * chunks + chunk
    # Each (chunk, 2, places, ...), the block behind first: so the two are in the order of their offsets.
    if OF_QUERIES:
        ptrs = dqw_ptr + (result * 2 * BLOCK + offs)[:, None] * BLOCK_QW + offs_qw[None, :]
        tl.store(ptrs, dqw_behind)
        tl.store(ptrs + BLOCK * BLOCK_QW, dqw_ahead)
    if OF_KEYS:
        ptrs = dkw_ptr + (result * 2 * BLOCK + offs)[None, :] * BLOCK_KW + offs_kw[:, None]
        tl.store(ptrs, dkw_behind)
        tl.store(ptrs + BLOCK * BLOCK_KW, dkw_ahead)
    if OF_VALUES:
        back = turned_back(scores, False, True, BLOCK, BLOCK)
        ahead = is_ahead(column, row, False, BLOCK)
        ptrs = sums_ptr + result * 2 * BLOCK + offs
        tl.store(ptrs, tl.sum(tl.where(ahead, 0.0, back), 1))
        tl.store(ptrs + BLOCK, tl.sum(tl.where(ahead, back, 0.0), 1))
