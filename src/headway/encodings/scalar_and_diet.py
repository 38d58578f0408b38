"""ABS-SCALAR, REL-SCALAR, DIET-ABS and DIET-REL: learned numbers that are added to the scores of each head.

Chen et al. (2021a), "Demystifying the Better Performance of Position Encoding Variants for Transformer", and its
later form, Chen et al. (2021b), "A Simple and Effective Positional Encoding for Transformers".
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.bias import Bias, LowRank, Toeplitz
from headway.encodings.base import Dimensions, PositionEncoding, positions


class DietAbs(PositionEncoding):
    """A product of two learned factors of the absolute positions, for each head.

    Paper:    Chen et al. (2021b), Eq. (1); rank: Sec. 3.1 ("DIET-ABS-Rank-k"); sharing: Sec. 4.4; Eq. (4), DIET-ABS-LIN
    Formula:  bias[h, i, j] = sum_r left[l, h, i, r] * right[l, h, j, r]
    Symbols:  P_Q -> left, P_K -> right, both (layers, heads, max_length, rank);  d_p -> rank
    Departs:  the bias joins q k^T / sqrt(d_h): the paper writes sqrt(d), with d the width of the model in Sec. 2.1,
              where BERT has that of a head. The factors of Eq. (4) have width d; here any rank. The paper gives no
              initialisation; normal with `init_std`
    Yields:   LowRank, 2 * layers * heads * max_length * rank parameters
    Checked:  tests/parity/test_scalar_and_diet.py, tests/parity/test_linformer.py

    `key_length` is for Linformer, whose keys are that many learned mixtures of all positions (Eq. (4)); `right` then
    has one row for each of them.
    """

    name = "diet-abs"
    paper = "Chen et al. 2021b, Eq. 1"
    places = ("scores",)
    extends = False
    default_sharing = "none"

    def __init__(
        self,
        dims: Dimensions,
        *,
        sharing: str | None = None,
        rank: int | None = None,
        key_length: int | None = None,
        init_std: float = 0.02,
    ) -> None:
        super().__init__(dims, sharing=sharing)
        self.rank = dims.head_dim if rank is None else rank
        if self.rank < 1:
            raise ValueError(f"rank: expected at least 1, got {rank}.")
        if key_length is not None and key_length < 1:
            raise ValueError(f"key_length: expected None (keys are positions) or at least 1, got {key_length}.")
        self.key_length = key_length
        self.init_std = init_std
        sets = (self.layer_sets, self.head_sets)
        self.left = nn.Parameter(torch.empty(*sets, dims.max_length, self.rank))
        self.right = nn.Parameter(torch.empty(*sets, key_length or dims.max_length, self.rank))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.left, std=self.init_std)
        nn.init.normal_(self.right, std=self.init_std)

    def _bias(
        self, layer: int, q_len: int, k_len: int, q_start: int, segments: Tensor | None, documents: Tensor | None
    ) -> Bias:
        left, right = self.left[self.layer_set(layer)], self.right[self.layer_set(layer)]
        if self.key_length is None:
            return LowRank(rows_at(left, q_len, q_start, documents), rows_at(right, k_len, 0, documents))
        if k_len != self.key_length or documents is not None:
            got = f"{k_len} keys" if documents is None else "packed texts"
            raise ValueError(
                f"keys: expected {self.key_length} mixtures of all positions (key_length of {self.name}), got {got}. "
                f"Leave key_length out where keys are positions."
            )
        return LowRank(rows_at(left, q_len, q_start, None), right[None])


class AbsScalar(PositionEncoding):
    """The symmetric form of DIET-ABS: one factor multiplied with itself.

    Paper:    Chen et al. (2021a), Eq. (7)
    Formula:  bias[h, i, j] = sum_r factor[l, h, i, r] * factor[l, h, j, r]
    Symbols:  P -> factor, (layers, heads, max_length, rank);  d_h -> rank, the paper's choice and the default
    Departs:  any rank, and sqrt(d_h) for the paper's sqrt(d), as in DIET-ABS; the paper gives no initialisation; normal
              with `init_std`
    Yields:   LowRank, layers * heads * max_length * rank parameters
    Checked:  tests/parity/test_scalar_and_diet.py
    """

    name = "abs-scalar"
    paper = "Chen et al. 2021a, Eq. 7"
    places = ("scores",)
    extends = False
    default_sharing = "none"

    def __init__(
        self, dims: Dimensions, *, sharing: str | None = None, rank: int | None = None, init_std: float = 0.02
    ) -> None:
        super().__init__(dims, sharing=sharing)
        self.rank = dims.head_dim if rank is None else rank
        if self.rank < 1:
            raise ValueError(f"rank: expected at least 1, got {rank}.")
        self.init_std = init_std
        self.factor = nn.Parameter(torch.empty(self.layer_sets, self.head_sets, dims.max_length, self.rank))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.factor, std=self.init_std)

    def _bias(
        self, layer: int, q_len: int, k_len: int, q_start: int, segments: Tensor | None, documents: Tensor | None
    ) -> Bias:
        factor = self.factor[self.layer_set(layer)]
        return LowRank(rows_at(factor, q_len, q_start, documents), rows_at(factor, k_len, 0, documents))


class DietRel(PositionEncoding):
    """One learned number per head and offset.

    Paper:    Chen et al. (2021b), Eq. (3)
    Formula:  bias[h, i, j] = values[l, h, j - i + reach]
    Symbols:  R -> values, (layers, heads, 2 * reach + 1);  reach = max_length - 1 in the paper
    Departs:  indexed by j - i, the paper by i - j, and sqrt(d_h) for its sqrt(d). Beyond max_length it is silent;
              offsets outside the table take its outermost values (Shaw's clipping), or raise with `beyond="raise"`
    Yields:   Toeplitz, layers * heads * (2 * reach + 1) parameters
    Checked:  tests/parity/test_scalar_and_diet.py

    The outermost values of the paper's table belong to the first and the last token of the longest texts alone, and are
    hardly trained, so that texts longer than those of training get values at random. A smaller `reach` lets all greater
    offsets share the outermost values, as Shaw's do.
    """

    name = "diet-rel"
    paper = "Chen et al. 2021b, Eq. 3"
    places = ("scores",)
    default_sharing = "none"

    def __init__(
        self,
        dims: Dimensions,
        *,
        sharing: str | None = None,
        beyond: str = "clip",
        reach: int | None = None,
        init_std: float = 0.02,
    ) -> None:
        super().__init__(dims, sharing=sharing)
        self.reach = dims.max_length - 1 if reach is None else reach
        if not 0 <= self.reach < dims.max_length:
            raise ValueError(f"reach: expected 0 to {dims.max_length - 1} (max_length - 1), got {reach}.")
        if beyond not in ("clip", "raise"):
            raise ValueError(f"beyond: expected clip or raise, got {beyond!r}.")
        self.beyond = beyond
        self.extends = beyond == "clip"  # type: ignore[misc]  # overrides the class variable
        self.init_std = init_std
        self.values = nn.Parameter(torch.empty(self.layer_sets, self.head_sets, 2 * self.reach + 1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.values, std=self.init_std)

    def _bias(
        self, layer: int, q_len: int, k_len: int, q_start: int, segments: Tensor | None, documents: Tensor | None
    ) -> Bias:
        values = self.values[self.layer_set(layer)]
        longest = self.dims.max_length - 1
        first, last = -(q_start + q_len - 1), k_len - 1 - q_start  # least and greatest offset asked for
        if self.beyond == "raise" and (first < -longest or last > longest):
            raise ValueError(
                f"positions: expected offsets within -{longest}..{longest} (max_length of {self.name}), "
                f"got {first}..{last}. Build it with a larger max_length or beyond='clip'."
            )
        return Toeplitz.clipped(values[None], q_len, k_len, q_start)


class RelScalar(DietRel):
    """The earlier name of DIET-REL.

    Paper:    Chen et al. (2021a), Eqs. (8) and (11)
    Formula:  bias[h, i, j] = values[l, h, j - i + reach]
    Symbols:  R -> values, (layers, heads, 2 * reach + 1);  reach = max_length - 1 in the paper
    Departs:  as DIET-REL; the paper's term S_ij is the encoding's `segments="per-head"`
    Yields:   Toeplitz, layers * heads * (2 * reach + 1) parameters
    Checked:  tests/parity/test_scalar_and_diet.py
    """

    name = "rel-scalar"
    paper = "Chen et al. 2021a, Eqs. 8, 11"


def rows_at(
    table: Tensor,  # (H|1, max_length, R)
    length: int,
    start: int,
    documents: Tensor | None,  # (B, Lk)
) -> Tensor:  # (B|1, H|1, length, R)
    """Return a table's rows for positions start to start + length, counted from 0 in each packed text."""
    if documents is None:
        if torch.compiler.is_exporting():  # the exported graph must fit any length, which a slice would fix
            return table[None, :, torch.arange(start, start + length, device=table.device)]
        return table[None, :, start : start + length]
    return table[:, positions(length, start, documents)].transpose(0, 1)
