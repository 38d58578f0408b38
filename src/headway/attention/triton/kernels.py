"""The kernels: forward, gradients of q, gradients of k and v, and the gradient of a Toeplitz bias.

One family for all biases: a Toeplitz table and a low-rank pair are switched on by constants, masks likewise. Scores are
kept in units of log 2, so that exp2 is the only exponential. All programs own what they write: no atomics, and two runs
give the same bits.
"""

import triton
import triton.language as tl

from headway.attention.triton.tiles import allowed_tile, diagonal_sums, kept, toeplitz_tile

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def load_rows(ptr, offs, offs_d, length, stride, width, WHOLE: tl.constexpr):
    """Rows offs of a (length, width) matrix, zero outside; WHOLE says that the width needs no check."""
    ptrs = ptr + offs.to(tl.int64)[:, None] * stride + offs_d[None, :]
    if WHOLE:
        return tl.load(ptrs, mask=offs[:, None] < length, other=0.0)
    return tl.load(ptrs, mask=(offs[:, None] < length) & (offs_d[None, :] < width), other=0.0)


@triton.jit
def load_columns(ptr, offs, offs_d, length, stride, width, WHOLE: tl.constexpr):
    """The same transposed, (width, rows)."""
    ptrs = ptr + offs.to(tl.int64)[None, :] * stride + offs_d[:, None]
    if WHOLE:
        return tl.load(ptrs, mask=offs[None, :] < length, other=0.0)
    return tl.load(ptrs, mask=(offs[None, :] < length) & (offs_d[:, None] < width), other=0.0)


@triton.jit
def key_limits(start_q, q_len, k_len, length, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, CAUSAL: tl.constexpr):
    """Where the keys of a block of queries end, and up to where its tiles need no check."""
    stop = length
    whole = length // BLOCK_K * BLOCK_K
    if CAUSAL:
        shift = k_len - q_len
        stop = tl.minimum(stop, tl.maximum(start_q + BLOCK_Q + shift, 0))
        whole = tl.minimum(whole, tl.maximum(start_q + shift + 1, 0) // BLOCK_K * BLOCK_K)
    return stop, whole


@triton.jit
def forward_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr,
    toe_ptr, toe_stride_b, toe_stride_h, toe_width, toe_shift,
    left_ptr, left_stride_b, left_stride_h, right_ptr, right_stride_b, right_stride_h,
    lengths_ptr, q_docs_ptr, q_docs_stride, k_docs_ptr, k_docs_stride,
    mask_ptr, mask_stride_b, mask_stride_h, mask_stride_q,
    scale, dropout, seed_ptr, heads, groups, q_len, k_len, width, v_width, rank,
    TOEPLITZ: tl.constexpr, LOW_RANK: tl.constexpr, CAUSAL: tl.constexpr, LENGTHS: tl.constexpr,
    DOCUMENTS: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    blocks_q = tl.cdiv(q_len, BLOCK_Q)
    start_q = (tl.program_id(0) % blocks_q) * BLOCK_Q
    if CAUSAL:
        start_q = (blocks_q - 1) * BLOCK_Q - start_q  # the longest rows first
    pair = (tl.program_id(0) // blocks_q).to(tl.int64)  # batch * heads
    b, h = pair // heads, pair % heads
    pair_k = b * (heads // groups) + h // groups
    q_ptr += pair * q_len * width
    k_ptr += pair_k * k_len * width
    v_ptr += pair_k * k_len * v_width
    toe_ptr += b * toe_stride_b + h * toe_stride_h
    left_ptr += b * left_stride_b + h * left_stride_h
    right_ptr += b * right_stride_b + h * right_stride_h
    q_docs_ptr += b * q_docs_stride
    k_docs_ptr += b * k_docs_stride
    mask_ptr += b * mask_stride_b + h * mask_stride_h
    length = k_len
    if LENGTHS:
        length = tl.load(lengths_ptr + b).to(tl.int32)
    seed = 0
    if DROPOUT:
        seed = tl.load(seed_ptr)

    offs_q = start_q + tl.arange(0, BLOCK_Q)
    offs_d, offs_v, offs_r = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V), tl.arange(0, BLOCK_R)
    q_tile = load_rows(q_ptr, offs_q, offs_d, q_len, width, width, WHOLE)
    if LOW_RANK:
        left_tile = load_rows(left_ptr, offs_q, offs_r, q_len, rank, rank, False)
    factor = scale * LOG2E
    top = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, BLOCK_V], tl.float32)
    stop, whole = key_limits(start_q, q_len, k_len, length, BLOCK_Q, BLOCK_K, CAUSAL)
    if DOCUMENTS or MASK:
        whole = 0
    for checked in tl.static_range(2):  # first the tiles that need no check, then the others
        begin, end = (0, whole) if checked == 0 else (whole, stop)
        for start_k in range(begin, end, BLOCK_K):
            start_k = tl.multiple_of(start_k, BLOCK_K)
            offs_k = start_k + tl.arange(0, BLOCK_K)
            k_tile = load_columns(k_ptr, offs_k, offs_d, k_len, width, width, WHOLE)
            s = tl.dot(q_tile, k_tile, input_precision=PRECISION) * factor
            if TOEPLITZ:
                s += toeplitz_tile(toe_ptr, toe_width, toe_shift, offs_q, offs_k)
            if LOW_RANK:
                right_tile = load_columns(right_ptr, offs_k, offs_r, k_len, rank, rank, False)
                s += tl.dot(left_tile, right_tile, input_precision=PRECISION) * LOG2E
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
                p *= kept(seed, pair, offs_q[:, None], offs_k[None, :], k_len, dropout)
            v_tile = load_rows(v_ptr, offs_k, offs_v, k_len, v_width, v_width, WHOLE)
            acc = acc * shrink[:, None]
            acc = tl.dot(p.to(v_tile.dtype), v_tile, acc, input_precision=PRECISION)
            top = new_top
    seen = total > 0
    acc = acc / tl.where(seen, total, 1.0)[:, None]
    lse = tl.where(seen, top + tl.log2(tl.where(seen, total, 1.0)), float("inf"))
    out_ptrs = out_ptr + pair * q_len * v_width + offs_q.to(tl.int64)[:, None] * v_width + offs_v[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=(offs_q[:, None] < q_len) & (offs_v[None, :] < v_width))
    tl.store(lse_ptr + pair * q_len + offs_q, lse, mask=offs_q < q_len)


@triton.jit
def delta_kernel(out_ptr, grad_ptr, delta_ptr, rows, v_width, BLOCK: tl.constexpr, BLOCK_V: tl.constexpr):
    """delta_i = out_i . grad_i, the sum over keys of weight times its gradient."""
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    offs_v = tl.arange(0, BLOCK_V)
    ptrs = offs[:, None] * v_width + offs_v[None, :]
    inside = (offs[:, None] < rows) & (offs_v[None, :] < v_width)
    out = tl.load(out_ptr + ptrs, mask=inside, other=0.0).to(tl.float32)
    grad = tl.load(grad_ptr + ptrs, mask=inside, other=0.0).to(tl.float32)
    tl.store(delta_ptr + offs, tl.sum(out * grad, 1), mask=offs < rows)


@triton.jit
def query_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, delta_ptr, dq_ptr, dleft_ptr,
    toe_ptr, toe_stride_b, toe_stride_h, toe_width, toe_shift,
    left_ptr, left_stride_b, left_stride_h, right_ptr, right_stride_b, right_stride_h,
    lengths_ptr, q_docs_ptr, q_docs_stride, k_docs_ptr, k_docs_stride,
    mask_ptr, mask_stride_b, mask_stride_h, mask_stride_q,
    scale, dropout, seed_ptr, heads, groups, q_len, k_len, width, v_width, rank,
    TOEPLITZ: tl.constexpr, LOW_RANK: tl.constexpr, CAUSAL: tl.constexpr, LENGTHS: tl.constexpr,
    DOCUMENTS: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Gradients of q and of the left factor: a program owns a block of queries and goes over the keys."""
    blocks_q = tl.cdiv(q_len, BLOCK_Q)
    start_q = (tl.program_id(0) % blocks_q) * BLOCK_Q
    if CAUSAL:
        start_q = (blocks_q - 1) * BLOCK_Q - start_q
    pair = (tl.program_id(0) // blocks_q).to(tl.int64)
    b, h = pair // heads, pair % heads
    pair_k = b * (heads // groups) + h // groups
    q_ptr += pair * q_len * width
    k_ptr += pair_k * k_len * width
    v_ptr += pair_k * k_len * v_width
    grad_ptr += pair * q_len * v_width
    toe_ptr += b * toe_stride_b + h * toe_stride_h
    left_ptr += b * left_stride_b + h * left_stride_h
    right_ptr += b * right_stride_b + h * right_stride_h
    q_docs_ptr += b * q_docs_stride
    k_docs_ptr += b * k_docs_stride
    mask_ptr += b * mask_stride_b + h * mask_stride_h
    length = k_len
    if LENGTHS:
        length = tl.load(lengths_ptr + b).to(tl.int32)
    seed = 0
    if DROPOUT:
        seed = tl.load(seed_ptr)

    offs_q = start_q + tl.arange(0, BLOCK_Q)
    offs_d, offs_v, offs_r = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V), tl.arange(0, BLOCK_R)
    q_tile = load_rows(q_ptr, offs_q, offs_d, q_len, width, width, WHOLE)
    grad_tile = load_rows(grad_ptr, offs_q, offs_v, q_len, v_width, v_width, WHOLE)
    lse = tl.load(lse_ptr + pair * q_len + offs_q, mask=offs_q < q_len, other=float("inf"))
    delta = tl.load(delta_ptr + pair * q_len + offs_q, mask=offs_q < q_len, other=0.0)
    dq = tl.zeros([BLOCK_Q, BLOCK_D], tl.float32)
    if LOW_RANK:
        left_tile = load_rows(left_ptr, offs_q, offs_r, q_len, rank, rank, False)
        dleft = tl.zeros([BLOCK_Q, BLOCK_R], tl.float32)
    factor = scale * LOG2E
    stop, whole = key_limits(start_q, q_len, k_len, length, BLOCK_Q, BLOCK_K, CAUSAL)
    if DOCUMENTS or MASK:
        whole = 0
    for checked in tl.static_range(2):
        begin, end = (0, whole) if checked == 0 else (whole, stop)
        for start_k in range(begin, end, BLOCK_K):
            start_k = tl.multiple_of(start_k, BLOCK_K)
            offs_k = start_k + tl.arange(0, BLOCK_K)
            k_tile = load_columns(k_ptr, offs_k, offs_d, k_len, width, width, WHOLE)
            v_tile = load_columns(v_ptr, offs_k, offs_v, k_len, v_width, v_width, WHOLE)
            s = tl.dot(q_tile, k_tile, input_precision=PRECISION) * factor
            if TOEPLITZ:
                s += toeplitz_tile(toe_ptr, toe_width, toe_shift, offs_q, offs_k)
            if LOW_RANK:
                right_tile = load_columns(right_ptr, offs_k, offs_r, k_len, rank, rank, False)
                s += tl.dot(left_tile, right_tile, input_precision=PRECISION) * LOG2E
            p = tl.exp2(s - lse[:, None])
            if checked == 1:
                ok = allowed_tile(
                    offs_q[:, None] < q_len, offs_q[:, None], offs_k[None, :], q_len, k_len, length,
                    q_docs_ptr, k_docs_ptr, mask_ptr, mask_stride_q, CAUSAL, DOCUMENTS, MASK,
                )  # fmt: skip
                p = tl.where(ok, p, 0.0)
            dp = tl.dot(grad_tile, v_tile, input_precision=PRECISION)
            if DROPOUT:
                dp *= kept(seed, pair, offs_q[:, None], offs_k[None, :], k_len, dropout)
            ds = p * (dp - delta[:, None])
            dq = tl.dot(ds.to(k_tile.dtype), tl.trans(k_tile), dq, input_precision=PRECISION)
            if LOW_RANK:
                dleft = tl.dot(ds.to(right_tile.dtype), tl.trans(right_tile), dleft, input_precision=PRECISION)
    rows = offs_q[:, None] < q_len
    dq_ptrs = dq_ptr + pair * q_len * width + offs_q.to(tl.int64)[:, None] * width + offs_d[None, :]
    tl.store(dq_ptrs, (dq * scale).to(dq_ptr.dtype.element_ty), mask=rows & (offs_d[None, :] < width))
    if LOW_RANK:
        dleft_ptrs = dleft_ptr + pair * q_len * rank + offs_q.to(tl.int64)[:, None] * rank + offs_r[None, :]
        tl.store(dleft_ptrs, dleft.to(dleft_ptr.dtype.element_ty), mask=rows & (offs_r[None, :] < rank))


@triton.jit
def key_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, dright_ptr,
    toe_ptr, toe_stride_b, toe_stride_h, toe_width, toe_shift,
    left_ptr, left_stride_b, left_stride_h, right_ptr, right_stride_b, right_stride_h,
    lengths_ptr, q_docs_ptr, q_docs_stride, k_docs_ptr, k_docs_stride,
    mask_ptr, mask_stride_b, mask_stride_h, mask_stride_q,
    scale, dropout, seed_ptr, heads, groups, q_len, k_len, width, v_width, rank,
    TOEPLITZ: tl.constexpr, LOW_RANK: tl.constexpr, CAUSAL: tl.constexpr, LENGTHS: tl.constexpr,
    DOCUMENTS: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Gradients of k, v and the right factor, per query head: a program owns a block of keys, tiles are transposed."""
    blocks_k = tl.cdiv(k_len, BLOCK_K)
    start_k = (tl.program_id(0) % blocks_k) * BLOCK_K
    pair = (tl.program_id(0) // blocks_k).to(tl.int64)
    b, h = pair // heads, pair % heads
    pair_k = b * (heads // groups) + h // groups
    q_ptr += pair * q_len * width
    k_ptr += pair_k * k_len * width
    v_ptr += pair_k * k_len * v_width
    grad_ptr += pair * q_len * v_width
    lse_ptr += pair * q_len
    delta_ptr += pair * q_len
    toe_ptr += b * toe_stride_b + h * toe_stride_h
    left_ptr += b * left_stride_b + h * left_stride_h
    right_ptr += b * right_stride_b + h * right_stride_h
    q_docs_ptr += b * q_docs_stride
    k_docs_ptr += b * k_docs_stride
    mask_ptr += b * mask_stride_b + h * mask_stride_h
    length = k_len
    if LENGTHS:
        length = tl.load(lengths_ptr + b).to(tl.int32)
    seed = 0
    if DROPOUT:
        seed = tl.load(seed_ptr)

    offs_k = start_k + tl.arange(0, BLOCK_K)
    offs_d, offs_v, offs_r = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V), tl.arange(0, BLOCK_R)
    k_tile = load_rows(k_ptr, offs_k, offs_d, k_len, width, width, WHOLE)
    v_tile = load_rows(v_ptr, offs_k, offs_v, k_len, v_width, v_width, WHOLE)
    dk = tl.zeros([BLOCK_K, BLOCK_D], tl.float32)
    dv = tl.zeros([BLOCK_K, BLOCK_V], tl.float32)
    if LOW_RANK:
        right_tile = load_rows(right_ptr, offs_k, offs_r, k_len, rank, rank, False)
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
    if start_k >= length:
        first, border, unchecked, last = 0, 0, 0, 0
    for part in tl.static_range(3):  # checked, unchecked, checked
        begin, end = (first, border) if part == 0 else ((border, unchecked) if part == 1 else (unchecked, last))
        for start_q in range(begin, end, BLOCK_Q):
            start_q = tl.multiple_of(start_q, BLOCK_Q)
            offs_q = start_q + tl.arange(0, BLOCK_Q)
            q_tile = load_columns(q_ptr, offs_q, offs_d, q_len, width, width, WHOLE)
            grad_tile = load_rows(grad_ptr, offs_q, offs_v, q_len, v_width, v_width, WHOLE)
            lse = tl.load(lse_ptr + offs_q, mask=offs_q < q_len, other=float("inf"))
            delta = tl.load(delta_ptr + offs_q, mask=offs_q < q_len, other=0.0)
            s = tl.dot(k_tile, q_tile, input_precision=PRECISION) * factor  # (BLOCK_K, BLOCK_Q)
            if TOEPLITZ:
                s += toeplitz_tile(toe_ptr, toe_width, toe_shift, offs_k, offs_q)
            if LOW_RANK:
                left_tile = load_columns(left_ptr, offs_q, offs_r, q_len, rank, rank, False)
                s += tl.dot(right_tile, left_tile, input_precision=PRECISION) * LOG2E
            p = tl.exp2(s - lse[None, :])
            if part != 1:
                ok = allowed_tile(
                    offs_q[None, :] < q_len, offs_q[None, :], offs_k[:, None], q_len, k_len, length,
                    q_docs_ptr, k_docs_ptr, mask_ptr, mask_stride_q, CAUSAL, DOCUMENTS, MASK,
                )  # fmt: skip
                p = tl.where(ok, p, 0.0)
            dp = tl.dot(v_tile, tl.trans(grad_tile), input_precision=PRECISION)
            weight = p
            if DROPOUT:
                keep = kept(seed, pair, offs_q[None, :], offs_k[:, None], k_len, dropout)
                weight = p * keep
                dp *= keep
            dv = tl.dot(weight.to(grad_tile.dtype), grad_tile, dv, input_precision=PRECISION)
            ds = p * (dp - delta[None, :])
            dk = tl.dot(ds.to(q_tile.dtype), tl.trans(q_tile), dk, input_precision=PRECISION)
            if LOW_RANK:
                dright = tl.dot(ds.to(left_tile.dtype), tl.trans(left_tile), dright, input_precision=PRECISION)
    rows = offs_k[:, None] < k_len
    at = offs_k.to(tl.int64)[:, None]
    dk_ptrs = dk_ptr + pair * k_len * width + at * width + offs_d[None, :]
    tl.store(dk_ptrs, (dk * scale).to(dk_ptr.dtype.element_ty), mask=rows & (offs_d[None, :] < width))
    dv_ptrs = dv_ptr + pair * k_len * v_width + at * v_width + offs_v[None, :]
    tl.store(dv_ptrs, dv.to(dv_ptr.dtype.element_ty), mask=rows & (offs_v[None, :] < v_width))
    if LOW_RANK:
        dright_ptrs = dright_ptr + pair * k_len * rank + at * rank + offs_r[None, :]
        tl.store(dright_ptrs, dright.to(dright_ptr.dtype.element_ty), mask=rows & (offs_r[None, :] < rank))


@triton.jit
def diagonal_kernel(
    q_ptr, k_ptr, v_ptr, grad_ptr, lse_ptr, delta_ptr, sums_ptr,
    toe_ptr, toe_stride_b, toe_stride_h, toe_width, toe_shift,
    left_ptr, left_stride_b, left_stride_h, right_ptr, right_stride_b, right_stride_h,
    lengths_ptr, q_docs_ptr, q_docs_stride, k_docs_ptr, k_docs_stride,
    mask_ptr, mask_stride_b, mask_stride_h, mask_stride_q,
    scale, dropout, seed_ptr, heads, groups, q_len, k_len, width, v_width, rank, batch, together, chunks,
    LOW_RANK: tl.constexpr, CAUSAL: tl.constexpr, LENGTHS: tl.constexpr,
    DOCUMENTS: tl.constexpr, MASK: tl.constexpr, DROPOUT: tl.constexpr, WHOLE: tl.constexpr, PRECISION: tl.constexpr,
    EDGES: tl.constexpr,  # whether some tile needs a check
    BLOCK: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Gradient of a Toeplitz bias: a program owns a diagonal of square tiles and adds them up over the batch.

    All tiles of one diagonal hold the same offsets at the same places, so the gradient of the scores is summed in
    registers, and turned from diagonals into offsets once, at the end. The bias tile too is loaded once.
    """
    blocks_q, blocks_k = tl.cdiv(q_len, BLOCK), tl.cdiv(k_len, BLOCK)
    diagonals = blocks_q + blocks_k - 1
    diagonal = tl.program_id(0) // chunks  # key block - query block + blocks_q - 1
    chunk = tl.program_id(0) % chunks
    h, group = tl.program_id(1), tl.program_id(2)  # group: `together` sequences that share one bias
    gap = diagonal - (blocks_q - 1)
    first_q = tl.maximum(-gap, 0)
    along = tl.minimum(blocks_q - 1, blocks_k - 1 - gap) - first_q + 1  # tiles on this diagonal
    offs, offs_d, offs_v = tl.arange(0, BLOCK), tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_V)
    offs_r = tl.arange(0, BLOCK_R)
    factor = scale * LOG2E
    toe_ptr += group.to(tl.int64) * toe_stride_b + h * toe_stride_h
    bias = toeplitz_tile(toe_ptr, toe_width, toe_shift, first_q * BLOCK + offs, (first_q + gap) * BLOCK + offs)
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
    seed = 0
    if DROPOUT:
        seed = tl.load(seed_ptr)
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
        pair_k = b * (heads // groups) + h // groups
        length = k_len
        if LENGTHS:
            length = tl.load(lengths_ptr + b).to(tl.int32)
        q_tile = load_rows(q_ptr + pair * q_len * width, offs_q, offs_d, q_len, width, width, WHOLE)
        k_tile = load_columns(k_ptr + pair_k * k_len * width, offs_k, offs_d, k_len, width, width, WHOLE)
        grad_tile = load_rows(grad_ptr + pair * q_len * v_width, offs_q, offs_v, q_len, v_width, v_width, WHOLE)
        v_tile = load_columns(v_ptr + pair_k * k_len * v_width, offs_k, offs_v, k_len, v_width, v_width, WHOLE)
        lse = tl.load(lse_ptr + pair * q_len + offs_q, mask=offs_q < q_len, other=float("inf"))
        delta = tl.load(delta_ptr + pair * q_len + offs_q, mask=offs_q < q_len, other=0.0)
        s = tl.dot(q_tile, k_tile, input_precision=PRECISION) * factor + bias
        if LOW_RANK:
            left = left_ptr + b * left_stride_b + h * left_stride_h
            right = right_ptr + b * right_stride_b + h * right_stride_h
            left_tile = load_rows(left, offs_q, offs_r, q_len, rank, rank, False)
            right_tile = load_columns(right, offs_k, offs_r, k_len, rank, rank, False)
            s += tl.dot(left_tile, right_tile, input_precision=PRECISION) * LOG2E
        p = tl.exp2(s - lse[:, None])
        if EDGES:
            ok = allowed_tile(
                offs_q[:, None] < q_len, offs_q[:, None], offs_k[None, :], q_len, k_len, length,
                q_docs_ptr + b * q_docs_stride, k_docs_ptr + b * k_docs_stride,
                mask_ptr + b * mask_stride_b + h * mask_stride_h, mask_stride_q, CAUSAL, DOCUMENTS, MASK,
            )  # fmt: skip
            p = tl.where(ok, p, 0.0)
        dp = tl.dot(grad_tile, v_tile, input_precision=PRECISION)
        if DROPOUT:
            dp *= kept(seed, pair, offs_q[:, None], offs_k[None, :], k_len, dropout)
        acc += p * (dp - delta[:, None])
    low, high = diagonal_sums(acc, BLOCK)
    row = ((group * heads + h).to(tl.int64) * diagonals + diagonal) * chunks + chunk
    tl.store(sums_ptr + row * 2 * BLOCK + offs, low)
    tl.store(sums_ptr + row * 2 * BLOCK + BLOCK + offs, high)
