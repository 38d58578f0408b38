"""A bias that many layers share, multiplied out once for all of them where the Hopper kernels would do it in each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.attention.triton import INSTALLED, INTERPRETED
from headway.attention.triton.tables import BLOCK
from headway.bias import Bias, Dense, LowRank, Toeplitz
from headway.running import without_autocast


@dataclass(frozen=True, eq=False, repr=False)
class Multiplied(Dense):
    """A matrix, and what the kernels read of it. Autograd adds its gradients up before they become those of its parts.

    Paper:    none; the sum of the terms it was made of, as they are written
    Formula:  bias[0, h, i, j] = matrix[0, h, i, j]
    Symbols:  matrix, (1, H|1, Lq, Lk);  tables, see `hopper.tables`
    Checked:  tests/gpu/test_hopper.py
    """

    tables: tuple[Tensor, ...] = ()


def for_layers(
    bias: Bias | None, q_len: int, k_len: int, *, heads: int, width: int, dtype: torch.dtype, device: torch.device
) -> Bias | None:
    """The same bias in the form in which it costs several layers least, if nothing is added to it and there is no mask.

    Args:
        heads: of queries; width: of each; dtype: theirs; device: theirs.
    """
    if bias is None or bias.batch > 1 or not all(isinstance(term, Toeplitz | LowRank) for term in bias.terms):
        return bias
    if not INSTALLED or not (device.type == "cuda" or INTERPRETED) or q_len > k_len:  # see `balanced` in tables.py
        return bias
    from headway.attention.triton import hopper
    from headway.attention.triton.matrices import matrix_tables

    one_tile = k_len <= BLOCK
    ranked = any(isinstance(term, LowRank) for term in bias.terms)
    few = heads * q_len * k_len <= hopper.MOST_SCORES
    if not (hopper.takes_kind(dtype, width, device) and (one_tile or (ranked and few))):
        return bias
    matrix = multiplied_out(bias, q_len, k_len)
    columns = torch.is_grad_enabled() and not one_tile
    tables = matrix_tables(None, None, None, matrix.detach(), q_len, k_len, columns)
    return Multiplied(matrix, tuple(tables))


def multiplied_out(bias: Bias, q_len: int, k_len: int) -> Tensor:  # (1, H|1, Lq, Lk), at least float32
    """`dense()` of Toeplitz and low-rank terms, with sums along diagonals as the gradient of the former."""
    total: Tensor | None = None
    for term in bias.at_least(torch.float32).terms:
        if isinstance(term, LowRank):
            with without_autocast(bias.device.type):
                matrix = term.dense()
        else:
            assert isinstance(term, Toeplitz)
            matrix = unrolled(term.values, q_len, k_len)
        total = matrix if total is None else total + matrix
    assert total is not None
    return total


def unrolled(values: Tensor, q_len: int, k_len: int) -> Tensor:  # (1, H|1, Lq + Lk - 1) -> (1, H|1, Lq, Lk)
    """Rows one step longer than the count of offsets begin one offset further each: those of the queries, reversed."""
    count = q_len + k_len - 1
    repeated = values[:, :, None].expand(-1, -1, q_len, -1).flatten(2)
    rows = F.pad(repeated, (0, q_len)).view(*values.shape[:2], q_len, count + 1)
    return rows[..., :k_len].flip(-2)
