"""T5: one learned number per head and bucket of offsets; buckets are wider at greater distances."""

from __future__ import annotations

from bisect import bisect_left

import torch
from torch import Tensor, nn

from headway.bias import Bias, Toeplitz
from headway.encodings.base import Dimensions, PositionEncoding


class T5(PositionEncoding):
    """One learned number per head and bucket of offsets.

    Paper:    Raffel et al. (2020), "Exploring the Limits of Transfer Learning", Sec. 2.1; Chen et al. (2021a), Eq. (4)
    Formula:  bias[h, i, j] = table[l, h, bucket(j - i)], bucket as in `t5_buckets`
    Symbols:  R_bucket -> table, (layers, heads, buckets)
    Departs:  indexed by j - i, Chen et al. by i - j. The released models do not scale q k^T; to run those, call
              attention with scale=1. With the default scale it is the baseline of Chen et al. (2021b), Table 2. Chen
              et al. (2021a) bin from a distance of 32 on; buckets here follow the released code (`t5_buckets`).
              Normal initialisation with `init_std`
    Yields:   Toeplitz, layers * heads * buckets parameters; any length
    Checked:  tests/parity/test_t5.py

    The paper has one table for all layers (sharing "layer"). With bidirectional=False, for decoders, all keys to the
    right share bucket 0 with the query's own position.
    """

    name = "t5"
    paper = "Raffel et al. 2020, Sec. 2.1"
    places = ("scores",)
    default_sharing = "layer"

    bucket_of: Tensor  # (2 * max_distance + 1,), the bucket of each offset from -max_distance to max_distance

    def __init__(
        self,
        dims: Dimensions,
        *,
        sharing: str | None = None,
        buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        init_std: float = 0.02,
    ) -> None:
        super().__init__(dims, sharing=sharing)
        self.buckets = buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.init_std = init_std
        self.register_buffer("bucket_of", self._bucket_of(), persistent=False)
        self.table = nn.Parameter(torch.empty(self.layer_sets, self.head_sets, buckets))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.init_std)
        self.bucket_of.copy_(self._bucket_of())  # for modules created on the device "meta"

    def _bucket_of(self) -> Tensor:
        offset = torch.arange(-self.max_distance, self.max_distance + 1)
        return t5_buckets(
            offset, buckets=self.buckets, max_distance=self.max_distance, bidirectional=self.bidirectional
        )

    def at(self, layer: int, offset: Tensor) -> Tensor:  # (H|1, *offset.shape)
        """Return the value of one layer at each offset j - i."""
        reach = self.max_distance  # all offsets beyond it have the same bucket
        return self.table[self.layer_set(layer)][:, self.bucket_of[offset.clamp(-reach, reach) + reach]]

    def _bias(
        self, layer: int, q_len: int, k_len: int, q_start: int, segments: Tensor | None, documents: Tensor | None
    ) -> Bias:
        table = self.table[self.layer_set(layer)]  # (H|1, buckets)
        bucket = torch.arange(self.buckets, device=table.device)[:, None]
        # The same numbers as `at`, with a gradient that is summed in a fixed order.
        of_offsets = torch.where(self.bucket_of == bucket, table[..., None], 0).sum(-2)
        return Toeplitz.clipped(of_offsets[None], q_len, k_len, q_start)


def t5_buckets(
    offsets: Tensor, *, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
) -> Tensor:  # int64, as offsets
    """Return the bucket of each offset j - i, as in Raffel et al. (2020), Sec. 2.1.

    If `bidirectional`, keys to the right use the upper half of the buckets; otherwise they all share bucket 0. Of the
    buckets of one direction, the first half hold one distance each. The others grow logarithmically up to
    `max_distance`, and the last one holds all greater distances.

    Bucket exact + n begins at the least distance d with d >= exact * (max_distance / exact)^(n / wide). It is found in
    integers, so that rounding moves no boundary.
    """
    side = buckets // 2 if bidirectional else buckets
    if side < 2 or (bidirectional and buckets % 2):
        least = "an even number of at least 4 (bidirectional)" if bidirectional else "at least 2"
        raise ValueError(f"buckets: expected {least}, got {buckets}.")
    exact = side // 2
    wide = side - exact
    if max_distance <= exact:
        raise ValueError(
            f"max_distance: expected more than {exact}, the distances that have a bucket of their own, "
            f"got {max_distance}."
        )
    starts = list(range(1, exact + 1))
    for n in range(1, wide):  # the least d with d^wide >= exact^wide * (max_distance / exact)^n
        bound = max_distance**n * exact ** (wide - n)
        starts.append(bisect_left(range(max_distance), bound, key=lambda d: d**wide))
    distance = offsets.long().abs() if bidirectional else (-offsets.long()).clamp(min=0)
    limits = torch.tensor(starts, device=offsets.device)
    bucket = torch.searchsorted(
        limits, distance, right=True
    )  # the number of buckets that begin at or before the distance
    return torch.where(offsets > 0, bucket + side, bucket) if bidirectional else bucket
