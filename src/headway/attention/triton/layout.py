"""How the kernels' tensors lie in memory: any strides on the way in, rows before heads on the way out; their unit."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

NOISE_BLOCK = 128
LOG2E = 1.4426950408889634  # kernels keep scores in units of log 2
LARGEST = 60000.0  # a bias in float16 is at most this, so that a product with zero stays zero


def rows_first(like: Tensor, length: int, width: int) -> Tensor:
    """An empty (B, H, L, D) whose memory is (B, L, H, D), as models read it."""
    return like.new_empty(like.shape[0], length, like.shape[1], width).transpose(1, 2)


def for_gradients(q: Tensor, k: Tensor, v: Tensor, packed: bool) -> tuple[Tensor | None, list[Tensor]]:
    """Room for the gradients of q, k and v, each for every query head; `packed`, as views of one tensor."""
    if not packed:
        return None, [rows_first(q, *t.shape[2:]) for t in (q, k, v)]
    whole = _beside(q)
    return whole, list(whole.permute(2, 0, 3, 1, 4))


def gradients_like(q: Tensor, k: Tensor, v: Tensor, packed: bool) -> list[Tensor]:
    """What an operator returns as the gradients of q, k and v; `packed`, one for all of them, (B, L, 3, H, D)."""
    if packed:
        return [_beside(q)]
    return [rows_first(t, *t.shape[2:]) for t in (q, k, v)]


def _beside(q: Tensor) -> Tensor:  # (B, L, 3, H, D)
    batch, heads, length, width = q.shape
    return q.new_empty(batch, length, 3, heads, width)


def summed_groups(t: Tensor, groups: int) -> Tensor:
    """Over the query heads of each key head, (B, H, L, D) -> (B, H / groups, L, D)."""
    batch, heads, length, width = t.shape
    return t.transpose(1, 2).view(batch, length, heads // groups, groups, width).sum(3).transpose(1, 2)


def strides(*tensors: Tensor) -> list[int]:
    """Strides of batch, head and row; 0 for an axis of one, on which no step is taken."""
    return [t.stride(axis) if t.shape[axis] > 1 else 0 for t in tensors for axis in range(3)]


def whole_width(width: int) -> int:
    """The width of the tile that holds so many columns: a power of two, at least 16."""
    return max(16, 1 << (width - 1).bit_length())


def padded(t: Tensor, width: int | None = None) -> Tensor:
    """Append columns of zeros up to this width, or to that of a whole tile."""
    more = (width or whole_width(t.shape[-1])) - t.shape[-1]
    return F.pad(t, (0, more)) if more else t


def aligned(t: Tensor) -> Tensor:
    """Copy a (B, H, L, D) tensor unless it begins at 16 bytes and its strides are multiples of 16 numbers.

    Triton compiles asynchronous loads for such tensors, each into shared memory of its own. Without them the tiles of
    one loop take turns in the same memory, and ptxas 12.8, which comes with Triton 3.6, then gives products of tiles
    with different layouts the wrong address (Checked: tests/unit/attention/test_tile_loads.py).
    """
    is_aligned = t.stride(3) == 1 and t.data_ptr() % 16 == 0 and all(stride % 16 == 0 for stride in strides(t))
    return t if is_aligned else t.clone(memory_format=torch.contiguous_format)


def by_eight(count: int) -> int:
    """The next multiple of eight, so that rows of half-precision numbers are aligned."""
    return (count + 7) // 8 * 8


def dropout_noise(q: Tensor, k: Tensor) -> Tensor:  # (B, H, Nq + Nk) int32
    """A random odd number for every query and key, each side padded to whole blocks.

    Whether dropout keeps a weight follows from the product of its query's and its key's number, modulo 2^32: one
    multiplication a weight. Any two weights are kept independently of one another (Checked:
    tests/unit/attention/test_dropout_noise.py).
    """
    numbers = sum((t.shape[2] + NOISE_BLOCK - 1) // NOISE_BLOCK * NOISE_BLOCK for t in (q, k))
    return torch.randint(-(2**31), 2**31, (*q.shape[:2], numbers), dtype=torch.int32, device=q.device) | 1
