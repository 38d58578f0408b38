"""Linformer: keys and values projected along the length, so that attention costs n times a constant."""

from __future__ import annotations

import torch
from torch import Tensor


def projected(
    x: Tensor,  # (B, H, L, D), keys or values
    matrix: Tensor,  # (H|1, P, max_length), max_length >= L
    keep: Tensor | None = None,  # (B, L) boolean, False = padding
) -> Tensor:  # (B, H, P, D)
    """P mixtures of the L rows: matrix[:, :, :L] @ x, in which padding has no part.

    Paper:    Wang et al. (2020), "Linformer", Sec. 4; Chen et al. (2021b), Eq. (4)
    Formula:  y[b, h, p] = sum_j matrix[h, p, j] * x[b, h, j], over j that are no padding
    Symbols:  E, F -> matrix;  n -> L;  k -> P
    Departs:  a sequence shorter than max_length uses the matrix's first L columns
    Checked:  tests/parity/test_linformer.py

    What comes out is the keys (or values) of `attention`, whose P columns every query may then see: no mask is left.
    """
    length = x.shape[-2]
    if length > matrix.shape[-1]:
        raise ValueError(
            f"positions: expected at most {matrix.shape[-1]} (columns of the projection), got {length}. "
            f"Build the projection for longer sequences."
        )
    if keep is not None:
        x = x.masked_fill(~keep[:, None, :, None], 0.0)
    if torch.compiler.is_exporting():  # to be run at any length; a slice that cuts nothing off would be another case
        used = matrix[..., torch.arange(length, device=matrix.device)]
    else:
        used = matrix[..., :length]
    return used.to(x.dtype) @ x
