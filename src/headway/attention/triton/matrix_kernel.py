"""A bias that the batch shares as the matrix that kernels read, in fragments (see `tables`)."""

import triton
import triton.language as tl

from headway.attention.triton.tiles import LOG2E


@triton.jit
def _clamped(numbers, LIMIT: tl.constexpr):
    KEEP: tl.constexpr = tl.PropagateNan.ALL  # a diverged bias must not look like any other
    return tl.minimum(tl.maximum(numbers, -LIMIT, KEEP), LIMIT, KEEP).to(tl.float16)


@triton.jit
def _put_fragments(to_ptr, tile):
    """A tile of 64 x 64, in the order of `in_fragments`."""
    apart = tl.reshape(tile, [4, 2, 8, 4, 2, 4, 2])
    in_order = tl.reshape(tl.permute(apart, (3, 0, 2, 5, 4, 1, 6)), [4096])
    tl.store(to_ptr + tl.arange(0, 4096), in_order)


@triton.jit(do_not_specialize=["q_len", "k_len"])
def matrix_kernel(
    values_ptr, left_ptr, right_ptr, matrix_ptr,  # any float dtype; numbers of a row side by side
    peaks_ptr,  # (H, q_len), what every row of the matrix loses
    rows_ptr, columns_ptr,  # in fragments (H, tiles, tiles, 4096), rows queries or keys
    values_stride_h, left_stride_h, left_stride, right_stride_h, right_stride, matrix_stride_h, matrix_stride,
    q_len, k_len,
    TOEPLITZ: tl.constexpr, LOW_RANK: tl.constexpr, DENSE: tl.constexpr, COLUMNS: tl.constexpr,
    RANK: tl.constexpr, BLOCK_R: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    tile_k, tile_q, h = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    tiles_k, tiles_q = tl.num_programs(0), tl.num_programs(1)
    offs_q, offs_k, offs_r = tile_q * 64 + tl.arange(0, 64), tile_k * 64 + tl.arange(0, 64), tl.arange(0, BLOCK_R)
    inside = (offs_q[:, None] < q_len) & (offs_k[None, :] < k_len)
    tile = tl.zeros([64, 64], tl.float32)
    if LOW_RANK:
        for start in tl.static_range(0, RANK, BLOCK_R):
            in_rank = (start + offs_r < RANK)[None, :]
            left_ptrs = left_ptr + h * left_stride_h + offs_q[:, None] * left_stride + start + offs_r[None, :]
            right_ptrs = right_ptr + h * right_stride_h + offs_k[:, None] * right_stride + start + offs_r[None, :]
            left = tl.load(left_ptrs, mask=(offs_q[:, None] < q_len) & in_rank, other=0.0).to(tl.float32) * LOG2E
            right = tl.load(right_ptrs, mask=(offs_k[:, None] < k_len) & in_rank, other=0.0).to(tl.float32)
            tile = tl.dot(_clamped(left, LIMIT), tl.trans(_clamped(right, LIMIT)), tile)
    if TOEPLITZ:
        ptrs = values_ptr + h * values_stride_h + offs_k[None, :] - offs_q[:, None] + q_len - 1
        tile += tl.load(ptrs, mask=inside, other=0.0).to(tl.float32) * LOG2E
    if DENSE:
        ptrs = matrix_ptr + h * matrix_stride_h + offs_q.to(tl.int64)[:, None] * matrix_stride + offs_k[None, :]
        peaks = tl.load(peaks_ptr + h * q_len + offs_q, mask=offs_q < q_len, other=0.0)
        lowered = tl.load(ptrs, mask=inside, other=0.0).to(tl.float32) - peaks[:, None]
        tile += tl.where(lowered > 0, 0.0, lowered) * LOG2E  # what nobody sees may be higher
    tile = tl.where(inside, _clamped(tile, LIMIT), 0.0).to(tl.float16)
    _put_fragments(rows_ptr + ((h * tiles_q + tile_q) * tiles_k + tile_k) * 4096, tile)
    if COLUMNS:
        _put_fragments(columns_ptr + ((h * tiles_k + tile_k) * tiles_q + tile_q) * 4096, tl.trans(tile))
