"""What kernels read of a bias that the batch shares, and the gradient of such a bias as that of its parts.

Tables are made outside the operators that attend, once for both passes; layers that share a bias may share its tables.
They are constants: gradients of the parts are the operators' own.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.attention.masking import Masking
from headway.attention.triton.layout import LARGEST, LOG2E
from headway.bias import Dense, LowRank, SegmentTable, Structured, Toeplitz
from headway.running import without_autocast

TILE = 64  # of the Hopper kernels
BLOCK = 128  # queries or keys of their blocks


class Parts(NamedTuple):
    """What a bias is made of, or the gradient of that."""

    values: Tensor | None = None  # (B|1, H|1, Lq + Lk - 1), Toeplitz
    left: Tensor | None = None  # (B|1, H|1, Lq, R), low rank
    right: Tensor | None = None  # (B|1, H|1, Lk, R)
    matrix: Tensor | None = None  # (B|1, H|1, Lq, Lk)

    @property
    def given(self) -> bool:
        return any(part is not None for part in self)

    def detach(self) -> Parts:
        return Parts(*(None if part is None else part.detach() for part in self))


def parts_of(terms: Sequence[Structured]) -> Parts:
    """All terms that do not meet the query, as one Toeplitz bias, one low-rank one and one matrix."""
    values = matrix = left = right = None
    pairs: list[LowRank] = []
    for term in terms:
        if isinstance(term, Toeplitz):
            values = term.values if values is None else values + term.values
        elif isinstance(term, SegmentTable):
            pairs.append(term.as_low_rank())
        elif isinstance(term, LowRank):
            pairs.append(term)
        elif isinstance(term, Dense):
            matrix = term.matrix if matrix is None else matrix + term.matrix
    if pairs:
        left, right = _beside([pair.left for pair in pairs]), _beside([pair.right for pair in pairs])
    return Parts(values, left, right, matrix)


def _beside(factors: list[Tensor]) -> Tensor:
    if len(factors) == 1:
        return factors[0]
    batch, heads = max(f.shape[0] for f in factors), max(f.shape[1] for f in factors)
    dtype = torch.promote_types(factors[0].dtype, factors[-1].dtype)
    return torch.cat([f.to(dtype).expand(batch, heads, -1, -1) for f in factors], -1)


def bias_matrix(
    parts: Parts,
    k_len: int,
    half: bool,
    peaks: Tensor | None = None,  # (1, H|1, Lq), see `highest`
) -> Tensor:  # (H|1, Lq, Lk), in units of log 2
    """All parts of a bias that the batch shares together, in float16 if `half`; rows of its matrix lose their peaks."""
    values, left, right, given = parts
    made = []
    if left is not None and right is not None:
        factors = left[0].float() * LOG2E, right[0].float()
        rows, columns = (t.clamp(-LARGEST, LARGEST).half() if half else t for t in factors)
        with without_autocast(rows.device.type):
            made.append(rows @ columns.mT)
    if values is not None:
        row = (values[0].float() * LOG2E).contiguous()
        q_len = row.shape[1] - k_len + 1
        # Not `unfold`, of which torch.compile makes one graph for each length.
        made.append(row.as_strided((row.shape[0], q_len, k_len), (row.stride(0), 1, 1)).flip(-2))
    if given is not None:
        lowered = given[0].float() if peaks is None else (given[0].float() - peaks[0, :, :, None]).clamp(max=0)
        made.append(lowered * LOG2E)  # what nobody sees may be higher than the peak
    matrix = functools.reduce(torch.add, made)
    return (matrix.clamp(-LARGEST, LARGEST).half() if half else matrix).contiguous()


def highest(matrix: Tensor, masking: Masking) -> Tensor:  # (1, H|1, Lq, Lk) -> (1, H|1, Lq)
    """The largest number of each row among keys that any sequence sees.

    Without it weights are the same, and numbers near it keep digits in float16.
    """
    scores, seen = matrix.float(), masking.of_any(matrix.device)
    if seen is not None:
        seen = seen if matrix.shape[1] > 1 else seen.any(1, keepdim=True)
        scores = scores.masked_fill(~seen, -torch.inf)
    most = torch.finfo(torch.float32).max
    return scores.amax(-1).clamp(-most, most)


def toeplitz_table(values: Tensor, q_len: int, k_len: int) -> Tensor:  # (1, H|1, Lq + Lk - 1) -> (H|1, 2, span + 16)
    """The bias in units of log 2 from offset -first - 8 on, zero where there is none; and once more from the next on.

    `first` counts the queries of whole blocks, `span` also the keys. Every pair of numbers is aligned somewhere.
    """
    first, last = whole_blocks(q_len), whole_blocks(k_len)
    padded = F.pad(values[0].float() * LOG2E, (first + 8 - (q_len - 1), last + 8 - (k_len - 1)))
    # Not `stack`, which torch 2.11 cannot compile behind the clamp of T5.
    return padded.unfold(-1, first + last + 16, 1).contiguous()


def factor_tables(left: Tensor, right: Tensor, scale: float) -> list[Tensor]:  # (1, H|1, L, R) -> (1, H|1, L, 64)
    """The factors of a low-rank bias in float16, padded to the width of a tile; their product joins q . k."""
    factors = left.float() / scale, right.float()
    return [F.pad(t.clamp(-LARGEST, LARGEST).half(), (0, TILE - t.shape[3])).contiguous() for t in factors]


def in_fragments(matrix: Tensor) -> Tensor:  # (H, rows, columns) -> (H, row tiles, column tiles, 4, 128, 8)
    """Tiles of 64 x 64 as threads hold scores (hopper.cuh): four times 8 numbers of each of 128 threads.

    As many as whole blocks have, zero beyond the ends.
    """
    heads, rows, columns = matrix.shape
    matrix = F.pad(matrix, (0, whole_blocks(columns) - columns, 0, whole_blocks(rows) - rows))
    row_tiles, column_tiles = matrix.shape[1] // TILE, matrix.shape[2] // TILE
    # A row is (tile, warp, which of two, row of a fragment); a column (tile, part, which of two, pair, which of it).
    apart = matrix.reshape(heads, row_tiles, 4, 2, 8, column_tiles, 4, 2, 4, 2)
    return apart.permute(0, 1, 5, 6, 2, 4, 8, 7, 3, 9).reshape(heads, row_tiles, column_tiles, 4, 128, 8)


def segment_tables(steps: Tensor, q_segments: Tensor, k_segments: Tensor) -> list[Tensor]:
    """Of two segments: each query's step (B, H, queries) in units of log 2, to be added where the key is of segment 1;
    the segments of queries and of keys (B|1, whole blocks), as 0.0 and 1.0.

    `steps` (H|1, 2) is the step of a query of segment 0, and of segment 1. A step of 1000 forbids like any larger one,
    and float32 still tells scores beside it apart.
    """
    of_q, of_k = (
        F.pad(ids.to(torch.float32), (0, whole_blocks(ids.shape[1]) - ids.shape[1])) for ids in (q_segments, k_segments)
    )
    first, second = (steps.float() * LOG2E).clamp(-1000, 1000)[:, None, None].unbind(-1)  # (H|1, 1, 1)
    of_queries = torch.where(of_q == 0, first, second).transpose(0, 1)  # (B|1, H|1, queries)
    return [of_queries, of_q, of_k]


def whole_blocks(length: int) -> int:
    return (length + BLOCK - 1) // BLOCK * BLOCK


def of_parts(
    parts: Parts,
    learned: Sequence[bool],  # which are: values, low-rank factors, matrix
    total: Tensor,  # (H, Lq, Lk), the gradient summed over the batch
    dtype: torch.dtype,  # of the call
) -> Parts:  # each (1, H, ...)
    """The gradient of a bias that the batch shares as that of its parts, of those that are learned."""
    of_values, of_factors, of_matrix = learned
    dleft = dright = None
    if of_factors and parts.left is not None and parts.right is not None:
        dleft, dright = _products(total, parts.left[0], parts.right[0], dtype)
    return Parts(
        diagonal_sums(total)[None] if of_values else None,
        dleft,
        dright,
        total[None] if of_matrix else None,
    )


def _products(total: Tensor, left: Tensor, right: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """In float32; beside bfloat16 it suffices to round all three, which a GPU multiplies ten times as fast."""
    rounded = dtype == torch.bfloat16 and total.is_cuda
    total, left, right = (t.to(dtype if rounded else torch.float32) for t in (total, left, right))
    left, right = (t.expand(total.shape[0], -1, -1) for t in (left, right))
    product = functools.partial(torch.bmm, out_dtype=torch.float32) if rounded else torch.bmm
    with without_autocast(total.device.type):
        return product(total, right)[None], product(total.mT, left)[None]


def summed(grad: Tensor, like: Tensor) -> Tensor:
    """Sum over the batch and the heads where the original was shared."""
    for axis in (0, 1):
        if like.shape[axis] == 1 and grad.shape[axis] > 1:
            grad = grad.sum(axis, keepdim=True)
    return grad.to(like.dtype).contiguous()


def diagonal_sums(matrix: Tensor) -> Tensor:  # (H, Lq, Lk) -> (H, Lq + Lk - 1), offset -(Lq - 1) first
    """Sums along diagonals: in rows one step longer than the count of offsets, diagonals of the reversed rows align."""
    q_len, k_len = matrix.shape[-2:]
    padded = F.pad(matrix.flip(-2), (0, q_len)).flatten(1)[:, :-q_len]
    return padded.view(-1, q_len, q_len + k_len - 1).sum(1)


def balanced(grad: Tensor, q_len: int, k_len: int) -> Tensor:  # of a Toeplitz bias, (B|1, H, Lq + Lk - 1)
    """Numbers that add to nothing: where all scores rise alike, no weight changes.

    Queries beyond the last key may see offsets only that share one number. Its gradient is nothing, but what rounding
    left of it grows with their count; here every offset gives back its part, by how many pairs have it.
    """
    offsets = torch.arange(1 - q_len, k_len, device=grad.device)
    pairs = (k_len - offsets).clamp(max=q_len) - (-offsets).clamp(min=0)
    seen = pairs * (grad != 0)
    return grad - grad.sum(-1, keepdim=True) * seen / seen.sum(-1, keepdim=True).clamp(min=1)
