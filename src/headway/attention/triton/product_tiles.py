"""Products with vectors of offsets inside a tile: where they stand, and where their gradients go.

A tile of scores of (ROWS, COLUMNS) has offsets of a few neighbouring blocks of the table of offsets; a vector is
multiplied with whole blocks, and each pair needs one number of one of them. Those are merged to one tile, whose rows or
columns are then rotated.

Vectors of the rows' side meet blocks of COLUMNS offsets: a pair needs place (j - i) % COLUMNS of one of ROWS / COLUMNS
+ 1 blocks. From one tile of a row of tiles to the next there is one new block. Vectors of the columns' side meet two
blocks of ROWS offsets: ahead, from the tile's first offset on, and behind, the block before; the pair needs place
(j - i) % ROWS, from the block ahead where j >= i. Here i and j count from the tile's first query and key.
"""

import triton
import triton.language as tl

from headway.attention.triton.tiles import NOISE_BLOCK


@triton.jit
def steps_ago(row, place, OF_KEYS: tl.constexpr, COLUMNS: tl.constexpr):
    """How many tiles ago the block was new in which a row's vector needs this place."""
    if OF_KEYS:  # offsets fall from tile to tile: the new block is the last one behind
        steps = (row - place + COLUMNS) // COLUMNS
    else:
        steps = (row + place) // COLUMNS
    return steps


@triton.jit
def kept_for_next(new, last, steps, RATIO: tl.constexpr):
    """What the next tile needs of this one, and of the one before where rows are twice as many as columns.

    One merged tile beside the last: a loop that handed a tile on for a second time would not be pipelined.
    """
    past = new
    if RATIO == 2:
        past = tl.where(steps == 1, new, last)
    return past


@triton.jit
def is_ahead(column, place, OF_KEYS: tl.constexpr, ROWS: tl.constexpr):
    """Whether a column's vector needs this place in the block ahead, where j >= i."""
    if OF_KEYS:
        ahead = place <= column
    else:
        ahead = place < ROWS - column
    return ahead


@triton.jit
def turned(merged, OF_KEYS: tl.constexpr, KEYS_FIRST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Rotate merged products, (ROWS, places) or (places, COLUMNS), into a tile of scores.

    Rows of a tile are queries, or keys where KEYS_FIRST.
    """
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    offset = row - column if KEYS_FIRST else column - row
    return picked(merged, offset, row, column, OF_KEYS == KEYS_FIRST, ROWS, COLUMNS)


@triton.jit
def turned_back(tile, OF_KEYS: tl.constexpr, KEYS_FIRST: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Rotate a tile of gradients of scores into those of merged products, which `turned` undoes."""
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :]
    if OF_KEYS:
        other = row - column if KEYS_FIRST else column - row  # the query i = j - place
    else:
        other = row + column  # the key j = i + place
    return picked(tile, other, row, column, OF_KEYS == KEYS_FIRST, ROWS, COLUMNS)


@triton.jit
def picked(tile, index, row, column, ALONG_ROWS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """tile[row, index % COLUMNS] or, not ALONG_ROWS, tile[index % ROWS, column].

    As one row of numbers: of a tile Triton would lay whole rows into warps, exchange numbers by many shuffles, and
    compute all that follows in that layout; this goes through shared memory and keeps the layout of products.
    """
    if ALONG_ROWS:
        at = row * COLUMNS + (index & (COLUMNS - 1))
    else:
        at = (index & (ROWS - 1)) * COLUMNS + column
    flat = tl.gather(tl.reshape(tile, [ROWS * COLUMNS]), tl.reshape(at, [ROWS * COLUMNS]), axis=0)
    return tl.reshape(flat, [ROWS, COLUMNS])


@triton.jit
def first_offset(q_len):
    """Row of a table of offsets that has offset 0: before it are whole blocks of queries, and one more."""
    return (tl.cdiv(q_len, NOISE_BLOCK) + 1) * NOISE_BLOCK


@triton.jit
def offset_columns(ptr, first, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # (WIDTH, BLOCK)
    """Vectors of a block of offsets as columns. Tables go on for one block more, so that nothing is checked."""
    return tl.load(ptr + (first + tl.arange(0, BLOCK))[None, :] * WIDTH + tl.arange(0, WIDTH)[:, None])


@triton.jit
def offset_rows(ptr, first, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # (BLOCK, WIDTH)
    return tl.load(ptr + (first + tl.arange(0, BLOCK))[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :])
