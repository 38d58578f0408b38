"""A bias that the batch shares multiplied out by one kernel: tables of the Hopper kernels (see `tables`)."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from headway.attention.triton import matrix_kernel
from headway.attention.triton.layout import LARGEST
from headway.attention.triton.tables import TILE, whole_blocks


@torch.library.custom_op("headway::matrix_tables", mutates_args=(), device_types=None)
def matrix_tables(
    values: Tensor | None,
    left: Tensor | None,
    right: Tensor | None,
    matrix: Tensor | None,
    peaks: Tensor | None,  # (1, H|1, Lq), what rows of the matrix lose; beside a matrix alone
    q_len: int,
    k_len: int,
    columns: bool,
) -> list[Tensor]:
    """The fragments of `bias_matrix` in float16 by one kernel; for `columns`, those of its transpose too."""
    parts = [t if t is None or t.stride(-1) == 1 else t.contiguous() for t in (values, left, right, matrix)]
    values, left, right, matrix = parts
    made: list[Tensor] = _empty_tables(*parts, peaks, q_len, k_len, columns)
    nothing = made[0]
    rank = 0 if left is None else left.shape[3]
    of_values = (nothing, 0) if values is None else (values, _of_head(values))
    rows = [(nothing, 0, 0) if t is None else (t, _of_head(t), t.stride(2)) for t in (left, right, matrix)]
    lost = nothing if peaks is None else peaks.expand(1, made[0].shape[0], -1).contiguous()
    tiles = whole_blocks(k_len) // TILE, whole_blocks(q_len) // TILE
    matrix_kernel.matrix_kernel[(*tiles, made[0].shape[0])](
        of_values[0], *(row[0] for row in rows), lost, made[0], made[-1],
        of_values[1], *(stride for row in rows for stride in row[1:]), q_len, k_len,
        TOEPLITZ=values is not None, LOW_RANK=left is not None, DENSE=matrix is not None, COLUMNS=columns,
        RANK=rank, BLOCK_R=max(16, min(64, triton.next_power_of_2(rank))), LIMIT=LARGEST,
    )  # fmt: skip
    return made


def _of_head(part: Tensor) -> int:
    return 0 if part.shape[1] == 1 else part.stride(1)


@matrix_tables.register_fake
def _empty_tables(
    values: Tensor | None,
    left: Tensor | None,
    right: Tensor | None,
    matrix: Tensor | None,
    peaks: Tensor | None,
    q_len: int,
    k_len: int,
    columns: bool,
) -> list[Tensor]:
    parts = [part for part in (values, left, right, matrix) if part is not None]
    heads = max(part.shape[1] for part in parts)
    of_q, of_k = whole_blocks(q_len) // TILE, whole_blocks(k_len) // TILE
    tiles = [(of_q, of_k), (of_k, of_q)] if columns else [(of_q, of_k)]
    return [parts[0].new_empty(heads, *count, 4, 128, 8, dtype=torch.float16) for count in tiles]
