"""BEiT and Swin: learned numbers for differences of rows and columns, which the models add to the mask as a matrix.

The matrix is taken as it comes, `Dense`: headway has no structure for differences in two dimensions yet.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headway.bias import Dense
from headway.pretrained.fusing.family import ADDED, Family, Fused, Taken
from headway.running import may_read

OF_ROWS_AND_COLUMNS = "Dense: numbers of row and column differences"


class FusedBeitAttention(Fused):
    """The bias comes in place of the mask; with padding, which is rare in images, as their sum."""

    STRUCTURE = OF_ROWS_AND_COLUMNS

    def taken(self, position_bias: Tensor | None, mask: Tensor | None, q: Tensor, k: Tensor) -> Taken:
        if mask is None:
            return Taken(None, None)
        # Padding is a mask for each sequence of the batch, the bias alone is one for all.
        shared = mask.shape[0] == 1 and (q.shape[0] > 1 or (may_read(mask) and bool((mask > low(mask)).all())))
        return Taken(Dense(mask), None) if shared else Taken(None, mask)


class FusedSwinAttention(Fused):
    """The bias comes in place of the mask, with -100 between patches that shifting a window brought together."""

    STRUCTURE = OF_ROWS_AND_COLUMNS

    def taken(self, position_bias: Tensor | None, mask: Tensor | None, q: Tensor, k: Tensor) -> Taken:
        return Taken(None if mask is None else Dense(mask), None)


def low(mask: Tensor) -> float:
    """Return the number that stands in a mask where nothing may attend."""
    return torch.finfo(mask.dtype).min


FAMILIES = (
    Family(
        models=("beit",), file="beit.modeling_beit", parts={"BeitAttention": FusedBeitAttention}, implementation=ADDED
    ),
    Family(
        models=("swin",), file="swin.modeling_swin", parts={"SwinAttention": FusedSwinAttention}, implementation=ADDED
    ),
)
