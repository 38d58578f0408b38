"""What each kind of bias contributes inside a kernel, and which pairs may attend. All numbers are in units of log 2.

A tile is (BLOCK_Q, BLOCK_K); in the key-major kernel it is transposed, and these functions take their rows and columns
in the order of the tile they fill.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
NOISE_BLOCK = tl.constexpr(128)  # random numbers of dropout are padded to whole blocks of any tile size
# Numbers that differ from batch to batch: kernels are not compiled anew for those that are 1 or multiples of 16.
VARYING = [
    "q_len", "k_len", "reach", "rows_shift", "rows_stride_h", "batch", "together", "chunks",
    "q_docs_stride", "k_docs_stride", "mask_stride_b", "mask_stride_h", "mask_stride_q",
]  # fmt: skip
SKEW = tl.constexpr(8)  # rows of a skewed table: 8 fp16 values are 16 bytes, so every load is aligned


@triton.jit
def load_rows(ptr, offs, offs_d, length, stride, CHECK: tl.constexpr):
    """Rows `offs` of a matrix with `length` rows that are `stride` apart; zero beyond, where CHECK."""
    ptrs = ptr + offs[:, None] * stride + offs_d[None, :]
    if CHECK:
        tile = tl.load(ptrs, mask=offs[:, None] < length, other=0.0)
    else:
        tile = tl.load(ptrs)
    return tile


@triton.jit
def load_columns(ptr, offs, offs_d, length, stride, CHECK: tl.constexpr):
    """The same transposed, one row of the matrix a column."""
    ptrs = ptr + offs[None, :] * stride + offs_d[:, None]
    if CHECK:
        tile = tl.load(ptrs, mask=offs[None, :] < length, other=0.0)
    else:
        tile = tl.load(ptrs)
    return tile


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
def toeplitz_tile(table_ptr, width, shift, offs_row, offs_column):
    """table[row % 8, column - 8 * (row // 8) + shift]: a Toeplitz tile as aligned loads from eight shifted copies."""
    base = (offs_row // SKEW) * SKEW
    ptrs = table_ptr + (offs_row - base)[:, None] * width + (offs_column[None, :] - base[:, None] + shift)
    return tl.load(ptrs).to(tl.float32)


@triton.jit
def skew_kernel(
    values_ptr,  # (N, count) contiguous, any float dtype
    table_ptr,  # (N, 8, width)
    count,
    width,
    first,  # index of values at row 0, column 0
    SIGN: tl.constexpr,  # 1: along a row the index grows; -1: it falls
    FACTOR: tl.constexpr,
    LIMIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """table[n, r, x] = values[n, first + SIGN * (x - r)] * FACTOR, zero outside."""
    n, row = tl.program_id(0).to(tl.int64), tl.program_id(1)
    x = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    index = first + SIGN * (x - row)
    value = tl.load(values_ptr + n * count + index, mask=(index >= 0) & (index < count), other=0.0).to(tl.float32)
    value = tl.minimum(tl.maximum(value * FACTOR, -LIMIT), LIMIT)
    tl.store(table_ptr + (n * SKEW + row) * width + x, value.to(table_ptr.dtype.element_ty), mask=x < width)


@triton.jit
def diagonal_sums(tile, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Sums along the diagonals of a tile of at most as many rows as columns: where column - row < 0, and >= 0.

    low[x] is the sum where column - row = x - COLUMNS, high[x] where it is x.
    """
    row = tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    source = (row + column) % COLUMNS  # column of the tile that lies on diagonal `column` (or `column - COLUMNS`)
    turned = tl.gather(tile, source, axis=1)
    inside = row + column < COLUMNS
    high = tl.sum(tl.where(inside, turned, 0.0), axis=0)
    low = tl.sum(tl.where(inside, 0.0, turned), axis=0)
    return low, high


@triton.jit
def near_band(start_q, start_k, shift, reach, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr):
    """Whether a tile holds offsets within the reach of a clipped table, and whether it lies to the right of them."""
    low = start_k - (start_q + BLOCK_Q - 1) - shift
    high = start_k + BLOCK_K - 1 - start_q - shift
    return (low < reach) & (high > -reach), low >= reach


@triton.jit
def relative_tile(
    rows_ptr,  # (Lq, count): one number per query and clipped offset
    start_q,
    start_k,
    offs_q,  # broadcast shape: (BLOCK_Q, 1) or (1, BLOCK_Q)
    offs_k,
    q_len,
    count,
    shift,
    reach,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """rows[i, clip(j - i - shift, -reach, reach) + reach]; far from the diagonal one number per row.

    Within reach the place in memory grows by one with each key, and is read so; the ends are two numbers per row.
    """
    near, right = near_band(start_q, start_k, shift, reach, BLOCK_Q, BLOCK_K)
    in_q = offs_q < q_len
    row_ptrs = rows_ptr + offs_q.to(tl.int64) * count
    if near:
        offset = offs_k - offs_q - shift
        on_left = tl.load(row_ptrs, mask=in_q, other=0.0).to(tl.float32)
        on_right = tl.load(row_ptrs + 2 * reach, mask=in_q, other=0.0).to(tl.float32)
        within = (offset > -reach) & (offset < reach)
        tile = tl.load(row_ptrs + (offset + reach), mask=in_q & within, other=0.0).to(tl.float32)
        tile = tl.where(within, tile, tl.where(offset < 0, on_left, on_right))
    else:
        ends = tl.load(row_ptrs + tl.where(right, 2 * reach, 0), mask=in_q, other=0.0).to(tl.float32)
        tile = ends + tl.zeros_like(offs_q + offs_k).to(tl.float32)
    return tile


@triton.jit
def score_tile(
    of_rows, of_columns,  # tiles of q and k, of k and q where KEYS_FIRST
    row_factors, column_factors,  # the same of a low-rank bias; without one, whatever they are
    toe_ptr, toe_width, toe_shift, rows_ptr, rows_count, rows_shift, reach,
    start_q, start_k, offs_q, offs_k, q_len, factor,
    TOEPLITZ: tl.constexpr, LOW_RANK: tl.constexpr, RELATIVE: tl.constexpr, KEYS_FIRST: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Scores of all pairs of the tile, with all biases there are, whether they may attend or not."""
    s = tl.dot(of_rows, of_columns, input_precision=PRECISION) * factor
    if TOEPLITZ:
        if KEYS_FIRST:
            s += toeplitz_tile(toe_ptr, toe_width, toe_shift, offs_k, offs_q)
        else:
            s += toeplitz_tile(toe_ptr, toe_width, toe_shift, offs_q, offs_k)
    if LOW_RANK:
        s += tl.dot(row_factors, column_factors, input_precision=PRECISION) * LOG2E
    if RELATIVE:
        if KEYS_FIRST:
            of_q, of_k = offs_q[None, :], offs_k[:, None]
        else:
            of_q, of_k = offs_q[:, None], offs_k[None, :]
        s += LOG2E * relative_tile(
            rows_ptr, start_q, start_k, of_q, of_k, q_len, rows_count, rows_shift, reach, BLOCK_Q, BLOCK_K
        )
    return s


@triton.jit
def far_sums(
    tile, start_q, start_k, offs_q, offs_k, shift, reach, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    """Row sums of a (BLOCK_Q, BLOCK_K) tile over the offsets at or beyond the reach: to the left, to the right."""
    near, right = near_band(start_q, start_k, shift, reach, BLOCK_Q, BLOCK_K)
    if near:
        offset = offs_k - offs_q - shift
        to_left = tl.sum(tl.where(offset <= -reach, tile, 0.0), 1)
        to_right = tl.sum(tl.where(offset >= reach, tile, 0.0), 1)
    else:
        total = tl.sum(tile, 1)
        to_left = tl.where(right, 0.0, total)
        to_right = tl.where(right, total, 0.0)
    return to_left, to_right


@triton.jit
def document_span(ids_ptr, length, low, high, BLOCK: tl.constexpr):
    """First place, and one beyond the last, of the ids from `low` to `high`: outside it no pair can match."""
    first, stop = length, 0
    for start in range(0, length, BLOCK):
        at = start + tl.arange(0, BLOCK)
        ids = tl.load(ids_ptr + at, mask=at < length, other=0)
        hit = (at < length) & (ids >= low) & (ids <= high)
        first = tl.minimum(first, tl.min(tl.where(hit, at, length), 0))
        stop = tl.maximum(stop, tl.max(tl.where(hit, at + 1, 0), 0))
    return first, stop


@triton.jit
def least_and_greatest(ids_ptr, offs, length):
    """Of the ids at `offs`; those beyond the length do not count."""
    last = tl.minimum(offs, length - 1)
    ids = tl.load(ids_ptr + last)
    return tl.min(ids, 0), tl.max(ids, 0)


@triton.jit
def allowed_tile(
    ok,  # boolean tile that is already known
    offs_q,  # broadcast shape: (BLOCK_Q, 1) or (1, BLOCK_Q)
    offs_k,
    q_len,
    k_len,
    length,
    q_docs_ptr,
    k_docs_ptr,
    mask_ptr,
    mask_stride_q,
    CAUSAL: tl.constexpr,
    DOCUMENTS: tl.constexpr,
    MASK: tl.constexpr,
):
    """ok and every reason of `Masking`; keys at and beyond `length` are never seen."""
    ok = ok & (offs_k < length)
    if CAUSAL:
        ok = ok & (offs_k - offs_q <= k_len - q_len)
    if DOCUMENTS:
        of_q = tl.load(q_docs_ptr + offs_q, mask=offs_q < q_len, other=-1)
        of_k = tl.load(k_docs_ptr + offs_k, mask=offs_k < k_len, other=-2)
        ok = ok & (of_q == of_k)
    if MASK:
        inside = (offs_q < q_len) & (offs_k < k_len)
        bit = tl.load(mask_ptr + offs_q.to(tl.int64) * mask_stride_q + offs_k, mask=inside, other=0)
        ok = ok & (bit != 0)
    return ok


@triton.jit
def kept(of_q, of_k, dropout):
    """Which weights dropout keeps, scaled: by the product, modulo 2^32, of the query's random number and the key's."""
    return tl.where(of_q * of_k >= tl.cast(dropout * 4294967296.0, tl.uint32), 1.0 / (1.0 - dropout), 0.0)


@triton.jit
def load_noise(noise_ptr, pair, q_len, k_len, QUERIES: tl.constexpr, offs):
    """The random numbers of queries or keys; those of queries come first, both padded to whole blocks."""
    of_queries = tl.cdiv(q_len, NOISE_BLOCK) * NOISE_BLOCK
    start = pair * (of_queries + tl.cdiv(k_len, NOISE_BLOCK) * NOISE_BLOCK)
    if not QUERIES:
        start += of_queries
    return tl.load(noise_ptr + start + offs).to(tl.uint32, bitcast=True)
