"""The gradient of a Toeplitz bias, where no Hopper kernel makes it beside the others."""

import triton
import triton.language as tl

from headway.attention.triton.tiles import (
    LOG2E,
    VARYING,
    allowed_tile,
    diagonal_sums,
    kept,
    least_and_greatest,
    load_columns,
    load_noise,
    load_rows,
    relative_tile,
    score_tile,
)


@triton.jit(do_not_specialize=VARYING)
def diagonal_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, grad_weights_ptr, lse_ptr, delta_ptr, sums_ptr,
    q_stride_b, q_stride_h, q_stride, k_stride_b, k_stride_h, k_stride, v_stride_b, v_stride_h, v_stride,
    grad_stride_b, grad_stride_h, grad_stride,
    toe_ptr, toe_stride_b, toe_stride_h, toe_width, toe_shift,
    left_ptr, left_stride_b, left_stride_h, right_ptr, right_stride_b, right_stride_h,
    rows_ptr, rows_stride_h, rows_count, reach, rows_shift,
    lengths_ptr, q_docs_ptr, q_docs_stride, k_docs_ptr, k_docs_stride,
    mask_ptr, mask_stride_b, mask_stride_h, mask_stride_q,
    scale, dropout, noise_ptr, heads, groups, q_len, k_len, batch, together, chunks,
    LOW_RANK: tl.constexpr, RELATIVE: tl.constexpr, WEIGHTS: tl.constexpr,
    CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, DOCUMENTS: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr,
    PRECISION: tl.constexpr,
    EDGES: tl.constexpr,  # whether some tile needs a check
    BLOCK: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Gradient of a Toeplitz bias: a program owns a diagonal of square tiles and adds them up over the batch.

    All tiles of one diagonal hold the same offsets at the same places, so the gradient of the scores is summed in
    registers, and turned from diagonals into offsets once, at the end.
    """
    blocks_q, blocks_k = tl.cdiv(q_len, BLOCK), tl.cdiv(k_len, BLOCK)
    diagonals = blocks_q + blocks_k - 1
    diagonal = tl.program_id(0) // chunks  # key block - query block + blocks_q - 1
    chunk = tl.program_id(0) % chunks
    h, group = tl.program_id(1), tl.program_id(2)  # group: `together` sequences that share one bias
    gap = diagonal - (blocks_q - 1)
    first_q = tl.maximum(-gap, 0)
    along = tl.minimum(blocks_q - 1, blocks_k - 1 - gap) - first_q + 1  # tiles on this diagonal
    HALF: tl.constexpr = BLOCK // 2  # rows are taken in two halves, which need fewer registers at a time
    half_rows, offs = tl.arange(0, HALF), tl.arange(0, BLOCK)
    offs_d, offs_v, offs_r = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V), tl.arange(0, BLOCK_R)
    factor = scale * LOG2E
    toe_ptr += group.to(tl.int64) * toe_stride_b + h * toe_stride_h
    upper = tl.zeros([HALF, BLOCK], tl.float32)
    lower = tl.zeros([HALF, BLOCK], tl.float32)
    work = together * along
    begin, end = work * chunk // chunks, work * (chunk + 1) // chunks
    if CAUSAL and gap * BLOCK > BLOCK - 1 + k_len - q_len:
        end = begin
    for item in range(begin, end):
        b = (group * together + item // along).to(tl.int64)
        tile_q = (first_q + item % along) * BLOCK
        start_k = tile_q + gap * BLOCK
        offs_k = start_k + offs
        pair = b * heads + h
        q_of, grad_of = q_ptr + b * q_stride_b + h * q_stride_h, grad_ptr + b * grad_stride_b + h * grad_stride_h
        k_of, v_of = (
            k_ptr + b * k_stride_b + h // groups * k_stride_h,
            v_ptr + b * v_stride_b + h // groups * v_stride_h,
        )
        length = k_len
        if LENGTHS:
            length = tl.load(lengths_ptr + b).to(tl.int32)
        meets = True
        if DOCUMENTS:
            q_low, q_high = least_and_greatest(q_docs_ptr + b * q_docs_stride, tile_q + offs, q_len)
            k_low, k_high = least_and_greatest(k_docs_ptr + b * k_docs_stride, offs_k, k_len)
            meets = (q_low <= k_high) & (k_low <= q_high)
        if meets:
            k_tile = load_columns(k_of, offs_k, offs_d, k_len, k_stride, EDGES)
            v_tile = load_columns(v_of, offs_k, offs_v, k_len, v_stride, EDGES)
            for half in tl.static_range(2):
                start_q = tile_q + half * HALF
                offs_q = start_q + half_rows
                q_tile = load_rows(q_of, offs_q, offs_d, q_len, q_stride, EDGES)
                grad_tile = load_rows(grad_of, offs_q, offs_v, q_len, grad_stride, EDGES)
                lse = tl.load(lse_ptr + pair * q_len + offs_q, mask=offs_q < q_len, other=float("inf"))
                delta = tl.load(delta_ptr + pair * q_len + offs_q, mask=offs_q < q_len, other=0.0)
                left_tile, right_tile = q_tile, k_tile
                if LOW_RANK:
                    left = left_ptr + b * left_stride_b + h * left_stride_h
                    right = right_ptr + b * right_stride_b + h * right_stride_h
                    left_tile = load_rows(left, offs_q, offs_r, q_len, BLOCK_R, EDGES)
                    right_tile = load_columns(right, offs_k, offs_r, k_len, BLOCK_R, EDGES)
                rows_at = h * rows_stride_h + b * q_len * rows_count
                s = score_tile(
                    q_tile, k_tile, left_tile, right_tile, toe_ptr, toe_width, toe_shift,
                    rows_ptr + rows_at, rows_count, rows_shift, reach, start_q, start_k, offs_q, offs_k, q_len, factor,
                    True, LOW_RANK, RELATIVE, False, PRECISION, HALF, BLOCK,
                )  # fmt: skip
                p = tl.exp2(s - lse[:, None])
                if EDGES:
                    ok = allowed_tile(
                        offs_q[:, None] < q_len, offs_q[:, None], offs_k[None, :], q_len, k_len, length,
                        q_docs_ptr + b * q_docs_stride, k_docs_ptr + b * k_docs_stride,
                        mask_ptr + b * mask_stride_b + h * mask_stride_h, mask_stride_q, CAUSAL, DOCUMENTS, MASK,
                    )  # fmt: skip
                    p = tl.where(ok, p, 0.0)
                dp = tl.dot(grad_tile, v_tile, input_precision=PRECISION)
                if WEIGHTS:
                    dp += relative_tile(
                        grad_weights_ptr + rows_at, start_q, start_k, offs_q[:, None], offs_k[None, :], q_len,
                        rows_count, rows_shift, reach, HALF, BLOCK,
                    )  # fmt: skip
                if DROPOUT:
                    q_noise = load_noise(noise_ptr, pair, q_len, k_len, True, offs_q)
                    k_noise = load_noise(noise_ptr, pair, q_len, k_len, False, offs_k)
                    dp *= kept(q_noise[:, None], k_noise[None, :], dropout)
                ds = p * (dp - delta[:, None])
                if half == 0:
                    upper += ds
                else:
                    lower += ds
    row = ((group * heads + h).to(tl.int64) * diagonals + diagonal) * chunks + chunk
    sums_ptrs = sums_ptr + row * 4 * BLOCK + offs
    for half in tl.static_range(2):
        low, high = diagonal_sums(upper if half == 0 else lower, HALF, BLOCK)
        tl.store(sums_ptrs + 2 * half * BLOCK, low)
        tl.store(sums_ptrs + (2 * half + 1) * BLOCK, high)
