"""Triton kernels that turn a mask into what the Hopper kernels read of it (see `masks`)."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["k_len", "tiles"])
def key_words_kernel(
    mask_ptr, lengths_ptr, words_ptr, ends_ptr, mask_batch, mask_key, k_len, tiles,
    LENGTHS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program has a sequence, and packs BLOCK words of 64 keys at a time."""
    b = tl.program_id(0).to(tl.int64)
    length = k_len
    if LENGTHS:
        length = tl.minimum(tl.load(lengths_ptr + b).to(tl.int32), k_len)
    bit = tl.arange(0, 64)[None, :]
    end = 0
    for start in range(0, tiles, BLOCK):
        tile = start + tl.arange(0, BLOCK)
        key = tile[:, None] * 64 + bit
        row = mask_ptr + b * mask_batch
        seen = tl.load(row + key.to(tl.int64) * mask_key, mask=key < length, other=0) != 0
        word = tl.sum(seen.to(tl.int64) << bit.to(tl.int64), 1)
        tl.store(words_ptr + b * tiles + tile, word, mask=tile < tiles)
        end = tl.maximum(end, tl.max(tl.where(seen, key + 1, 0)))
    tl.store(ends_ptr + b, end)


@triton.jit
def _texts(ids_ptr, rows, row_stride, length, PADDING: tl.constexpr):
    return tl.load(ids_ptr + rows.to(tl.int64) * row_stride, mask=rows < length, other=PADDING).to(tl.int64)


@triton.jit
def _put_record(record_ptr, text, first, end):
    """The texts of 128 rows, that of either half if it is the only one, and a range of tiles (hopper_documents.cuh)."""
    tl.store(record_ptr + tl.arange(0, 128), text)
    halves = tl.reshape(text, [2, 64])
    lowest, highest = tl.min(halves, 1), tl.max(halves, 1)
    tl.store(record_ptr + 128 + tl.arange(0, 2), tl.where(lowest == highest, lowest, -1))
    tl.store(record_ptr + 130, first)
    tl.store(record_ptr + 131, end)


@triton.jit(do_not_specialize=["q_len", "k_len"])
def document_kernel(
    q_ids_ptr, k_ids_ptr, lengths_ptr, words_ptr, q_records_ptr, k_records_ptr,
    q_batch, q_row, k_batch, k_row, q_len, k_len,
    CAUSAL: tl.constexpr, LENGTHS: tl.constexpr, MASK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """A program makes the record of 128 queries or of 128 keys of a sequence. A text's number is that of its first key.

    Every tile of queries is in the range of the keys at its own position, so that no tile is in none.
    """
    b = tl.program_id(0).to(tl.int64)
    q_blocks, k_blocks = tl.cdiv(q_len, 128), tl.cdiv(k_len, 128)
    of_queries, of_keys = tl.program_id(1) < q_blocks, tl.program_id(1) >= q_blocks
    block = tl.where(of_keys, tl.program_id(1) - q_blocks, tl.program_id(1))
    row = block * 128 + tl.arange(0, 128)
    q_ids_ptr += b * q_batch
    k_ids_ptr += b * k_batch
    shift = k_len - q_len
    length = k_len
    if LENGTHS:
        length = tl.minimum(tl.load(lengths_ptr + b).to(tl.int32), k_len)
    words_ptr += b * k_blocks * 2
    nothing: tl.constexpr = 2147483647
    text = tl.full([128], nothing, tl.int32)
    first = tl.full([128], nothing, tl.int32)
    last = tl.full([128], -1, tl.int32)
    if of_keys:
        own = _texts(k_ids_ptr, row, k_row, k_len, 0)
    else:
        own = _texts(q_ids_ptr, row, q_row, q_len, 0)
    for start in range(0, k_len, CHUNK):
        key = start + tl.arange(0, CHUNK)
        same = (own[:, None] == _texts(k_ids_ptr, key, k_row, k_len, 0)[None, :]) & (key < k_len)[None, :]
        text = tl.minimum(text, tl.min(tl.where(same, key[None, :], nothing), 1))
        if of_queries:
            same &= (key < length)[None, :]
            if MASK:
                word = tl.load(words_ptr + key // 64, mask=key < k_len, other=0)
                same &= (((word >> (key % 64).to(tl.int64)) & 1) != 0)[None, :]
            if CAUSAL:
                same &= key[None, :] <= row[:, None] + shift
            first = tl.minimum(first, tl.min(tl.where(same, key[None, :], nothing), 1))
            last = tl.maximum(last, tl.max(tl.where(same, key[None, :], -1), 1))
    if of_keys:
        for start in range(0, q_len, CHUNK):
            query = start + tl.arange(0, CHUNK)
            same = (own[:, None] == _texts(q_ids_ptr, query, q_row, q_len, 0)[None, :]) & (query < q_len)[None, :]
            if CAUSAL:
                same &= row[:, None] <= query[None, :] + shift
            first = tl.minimum(first, tl.min(tl.where(same, query[None, :], nothing), 1))
            last = tl.maximum(last, tl.max(tl.where(same, query[None, :], -1), 1))
        seen = row < length
        if MASK:
            word = tl.load(words_ptr + row // 64)
            seen &= ((word >> (row % 64).to(tl.int64)) & 1) != 0
        from_tile = tl.min(tl.where(seen, first, nothing)) // 64
        end_tile = (tl.max(tl.where(seen, last, -1)) + 64) // 64
        tiles = tl.cdiv(q_len, 64)
        # Tiles whose own position, that of their first query, is in this block of keys.
        low = tl.where(block == 0, 0, tl.minimum(tl.maximum((block * 128 - shift + 63) // 64, 0), tiles))
        high = tl.minimum(tl.maximum((block * 128 + 128 - shift + 63) // 64, 0), tiles)
        high = tl.where(block == k_blocks - 1, tiles, high)
        from_tile = tl.where(low < high, tl.minimum(from_tile, low), from_tile)
        end_tile = tl.where(low < high, tl.maximum(end_tile, high), end_tile)
        some = from_tile < end_tile
        _put_record(
            k_records_ptr + (b * k_blocks + block) * 132, tl.where(row < k_len, text, -2),
            tl.where(some, from_tile, 0), tl.where(some, end_tile, 1),
        )  # fmt: skip
    else:
        inside = row < q_len
        from_tile = tl.min(tl.where(inside, first, nothing)) // 64
        end_tile = (tl.max(tl.where(inside, last, -1)) + 64) // 64
        some = from_tile < end_tile
        _put_record(
            q_records_ptr + (b * q_blocks + block) * 132, tl.where(inside & (text != nothing), text, -1),
            tl.where(some, from_tile, tl.cdiv(k_len, 64)), tl.where(some, end_tile, 0),
        )  # fmt: skip


@triton.jit(do_not_specialize=["k_blocks", "tiles", "slots", "teams"])
def turn_kernel(k_records_ptr, turns_ptr, k_blocks, tiles, slots, teams, BLOCK: tl.constexpr):
    """A program has a tile of queries of a sequence: when each block of keys adds to it (see `turns`)."""
    b = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    for start in range(0, k_blocks, BLOCK):
        block = start + tl.arange(0, BLOCK)
        adds, order = _order(k_records_ptr, b, block, tile, k_blocks, tiles, slots, teams)
        rank = tl.zeros([BLOCK], tl.int32)
        count = tl.zeros([BLOCK], tl.int32)
        for other_start in range(0, k_blocks, BLOCK):
            other = other_start + tl.arange(0, BLOCK)
            others_add, others_order = _order(k_records_ptr, b, other, tile, k_blocks, tiles, slots, teams)
            before = others_add[None, :] & (others_order[None, :] < order[:, None])
            rank += tl.sum(before.to(tl.int32), 1)
            count += tl.sum(others_add.to(tl.int32), 0)
        to = turns_ptr + (b * k_blocks + block) * tiles + tile
        tl.store(to, rank + count * 65536, mask=adds)


@triton.jit
def _order(k_records_ptr, b, block, tile, k_blocks, tiles, slots, teams):
    """Whether a block of keys adds to the tile, and a number that rises in the order of turns."""
    record_ptr = k_records_ptr + (b * k_blocks + block) * 132
    first = tl.load(record_ptr + 130, mask=block < k_blocks, other=0)
    end = tl.load(record_ptr + 131, mask=block < k_blocks, other=0)
    turn = (b // slots) * k_blocks + block
    member = turn % teams
    start = first + member * (end - first) // teams
    step = tl.where(tile >= start, tile - start, tile - start + end - first)
    return (first <= tile) & (tile < end), (turn // teams * tiles + step) * teams + member
