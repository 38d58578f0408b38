"""Encodings of segments (sentence A, sentence B), added to the input or to the scores of each head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.bias import Bias, SegmentTable
from headway.bias.checks import check_ids
from headway.encodings.base import Dimensions, Encoding
from headway.running import may_read


class SegmentInput(Encoding):
    """One learned vector per segment, added to the input.

    Paper:    Devlin et al. (2019), "BERT", Sec. 3, input representation
    Formula:  x[b, p] += table[segments[b, p]]
    Symbols:  table, (num_segments, E)
    Departs:  without `segments` every token is of segment 0, as in BERT's implementations
    Yields:   a term of the input, num_segments * E parameters
    Checked:  tests/parity/test_segments.py
    """

    name = "segment-input"
    paper = "Devlin et al. 2019, Sec. 3"
    places = ("input",)
    sees_order = False
    takes_segments = True

    def __init__(
        self, dims: Dimensions, *, sharing: str | None = None, num_segments: int = 2, init_std: float = 0.02
    ) -> None:
        super().__init__(dims, sharing=sharing)
        self.num_segments = _checked_count(num_segments)
        self.init_std = init_std
        self.table = nn.Parameter(torch.empty(num_segments, dims.width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.init_std)

    def _embed(self, x: Tensor, q_start: int, segments: Tensor | None, documents: Tensor | None) -> Tensor:
        if segments is None:
            return x + self.table[0].to(x.dtype)
        _check_segments(segments, self.num_segments)
        return x + self.table[segments[:, q_start:].long()].to(x.dtype)


class SegmentPerHead(Encoding):
    """One learned number per head for each pair of segments, added to the scores.

    Paper:    Chen et al. (2021b), Eq. (2), E_S(S(i), S(j)); Chen et al. (2021a), Eqs. (9) and (10)
    Formula:  bias[b, h, i, j] = table[l, h, segments[b, i], segments[b, j]]
    Symbols:  S, Seg -> table, (layers, heads, num_segments, num_segments)
    Departs:  without `segments` every token is of segment 0. The papers give no initialisation; normal with `init_std`
    Yields:   SegmentTable, layers * heads * num_segments^2 parameters
    Checked:  tests/parity/test_segments.py
    """

    name = "segment-per-head"
    paper = "Chen et al. 2021b, Eq. 2"
    places = ("scores",)
    sees_order = False
    default_sharing = "none"
    takes_segments = True

    def __init__(
        self, dims: Dimensions, *, sharing: str | None = None, num_segments: int = 2, init_std: float = 0.02
    ) -> None:
        super().__init__(dims, sharing=sharing)
        self.num_segments = _checked_count(num_segments)
        self.init_std = init_std
        self.table = nn.Parameter(torch.empty(self.layer_sets, self.head_sets, num_segments, num_segments))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.init_std)

    def _bias(
        self, layer: int, q_len: int, k_len: int, q_start: int, segments: Tensor | None, documents: Tensor | None
    ) -> Bias:
        table = self.table[self.layer_set(layer)]
        if segments is None:
            first = torch.zeros(1, max(q_len, k_len), dtype=torch.long, device=table.device)
            return SegmentTable(table, first[:, :q_len], first[:, :k_len])
        _check_segments(segments, self.num_segments)
        return SegmentTable(table, segments[:, q_start : q_start + q_len], segments)


def _checked_count(num_segments: int) -> int:
    """Return the number of segments, or raise ValueError."""
    if num_segments < 1:
        raise ValueError(f"num_segments: expected at least 1, got {num_segments}.")
    return num_segments


def _check_segments(segments: Tensor, num_segments: int) -> None:
    if may_read(segments):
        check_ids("segments", segments, num_segments, "num_segments")
