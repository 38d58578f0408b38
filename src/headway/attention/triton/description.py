"""One call of the fused kernels as torch operators take it: its tensors in lists, and numbers that say what they are.

An operator takes neither a class nor a tensor by name. So tensors that a call does not have are left out, and an
integer has a bit for each name that is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, IntEnum
from typing import Any, NamedTuple

from torch import Tensor

from headway.attention.request import Request
from headway.bias import RelativeKeys, RelativeValues


class Kernels(IntEnum):
    """The families of kernels. Which calls each one takes is decided in `triton.plan`."""

    GENERAL = 0  # Triton: every structure and every mask
    ONE_TILE = 1  # Triton: all scores of a head are one tile
    HOPPER_TILE = 2  # CUDA: the same on Hopper
    HOPPER = 3  # CUDA: any length
    RELATIVE = 4  # CUDA: relative keys and values, any length
    PRODUCTS = 5  # Triton: products with vectors of offsets, and every mask


class Reads(Enum):
    """The forms in which kernels read a bias."""

    NOTHING = "nothing"
    PARTS = "parts"  # its terms; the general kernels make their own tables
    TABLE = "table"  # a Toeplitz table
    MATRIX = "matrix"  # all terms multiplied out
    FACTORS = "factors"  # of a low-rank bias, perhaps beside a Toeplitz table
    SEGMENTS = "segments"  # two, perhaps beside a Toeplitz table
    PLACES = "places"  # of relative keys and values


class Choice(NamedTuple):
    """The kernels for a call, and the form in which they read its bias."""

    kernels: Kernels
    reads: Reads
    padded: bool  # whether q, k or v get columns of zeros
    width: int | None  # up to this one, of Hopper's kernels; None: of a tile

    @property
    def on_hopper(self) -> bool:
        return self.kernels in (Kernels.HOPPER_TILE, Kernels.HOPPER)

    @property
    def one_tile(self) -> bool:
        return self.kernels in (Kernels.HOPPER_TILE, Kernels.ONE_TILE)


def relative_terms(request: Request) -> tuple[list[RelativeKeys], list[RelativeValues]]:
    keys = () if request.bias is None else request.bias.terms
    values = () if request.value_bias is None else request.value_bias.terms
    return [t for t in keys if isinstance(t, RelativeKeys)], [t for t in values if isinstance(t, RelativeValues)]


class Inputs(NamedTuple):
    """Tensors of a call. Those up to `k_table` may have gradients."""

    q: Tensor  # (B, H, Lq, D)
    k: Tensor  # (B, Hk, Lk, D)
    v: Tensor  # (B, Hk, Lk, Dv)
    qkv: Tensor | None = None  # (B, L, 3, H, D): what they are views of, whose gradient is wanted in place of theirs
    values: Tensor | None = None  # (B|1, H|1, Lq + Lk - 1), a Toeplitz bias
    left: Tensor | None = None  # (B|1, H|1, Lq, R), a low-rank bias
    right: Tensor | None = None  # (B|1, H|1, Lk, R)
    matrix: Tensor | None = None  # (1, H|1, Lq, Lk), a dense bias; kernels read it from tables
    segments: Tensor | None = None  # (H|1, 2), what a query of either segment adds for keys of segment 1; Hopper only
    rows: Tensor | None = None  # (H, B, Lq, by_eight(2 * reach + 1)), a score for each query and clipped offset
    key_table: Tensor | None = None  # (H, 2 * reach + 1, 64) float32, scaled as q . k is; of the relative kernels
    value_table: Tensor | None = None
    q_vectors: Tensor | None = None  # (B|1, H|1, Lq, W), multiplied with the vectors of offsets, of RelativeProducts
    q_table: Tensor | None = None  # (H|1, N, W), the vectors of offsets
    k_vectors: Tensor | None = None  # (B|1, H|1, Lk, W), the same of keys
    k_table: Tensor | None = None
    q_rows: Tensor | None = None  # (Lq + Lk - 1,), the row of each offset in `q_table`, or -1
    k_rows: Tensor | None = None
    mask: Tensor | None = None
    lengths: Tensor | None = None
    q_documents: Tensor | None = None
    k_documents: Tensor | None = None
    noise: Tensor | None = None  # (B, H, numbers of queries and keys) of 32 bits, for dropout; see `dropout_noise`


class Tables(NamedTuple):
    """What kernels read of a bias. The general kernels make theirs themselves."""

    toeplitz: Tensor | None = None  # see `tables.toeplitz_table`
    fragments: Tensor | None = None  # of a matrix, see `tables.in_fragments`
    column_fragments: Tensor | None = None  # of its transpose, for the backward pass
    left: Tensor | None = None  # factors of a low-rank bias, see `tables.factor_tables`
    right: Tensor | None = None
    steps: Tensor | None = None  # of two segments, see `tables.segment_tables`
    q_segments: Tensor | None = None
    k_segments: Tensor | None = None
    matrix: Tensor | None = None  # (H|1, Lq, Lk), where scores are one tile
    transposed: Tensor | None = None  # (H|1, Lk, Lq), for the backward pass
    key_places: Tensor | None = None  # (H, 64, 64), see `relative.in_places`
    value_places: Tensor | None = None
    words: Tensor | None = None  # of a mask of keys, see `masks.key_words`; Hopper only, as the next two
    q_records: Tensor | None = None  # of packed documents, see `masks.document_records`
    k_records: Tensor | None = None


Packed = tuple[list[Tensor], list[Tensor], list[int], float, float]


class Description(NamedTuple):
    kernels: Kernels
    inputs: Inputs
    tables: Tables
    scale: float
    dropout: float
    causal: bool
    reach: int = 0  # of relative keys and values
    shift: int = 0  # position of the first query, for them
    weights: bool = False  # whether the weights of each clipped offset are wanted
    exact: bool = False  # whether what rounding took from the output is wanted, for the gradients of shared factors
    learned: int = 0  # for the backward pass: which of `Inputs` have gradients, a bit for each

    def packed(self) -> Packed:
        """Return it as the arguments of an operator."""
        bits = [_bits(self.inputs), _bits(self.tables)]
        flags = [int(self.causal), int(self.weights), int(self.exact)]
        settings = [self.kernels.value, *bits, *flags, self.reach, self.shift, self.learned]
        return _given(self.inputs), _given(self.tables), settings, self.scale, self.dropout

    @classmethod
    def unpacked(
        cls, tensors: Sequence[Tensor], tables: Sequence[Tensor], settings: Sequence[int], scale: float, dropout: float
    ) -> Description:
        kernels, of_inputs, of_tables, causal, weights, exact, reach, shift, learned = settings
        return cls(
            Kernels(kernels), Inputs(*_placed(Inputs._fields, of_inputs, tensors)),  # type: ignore[arg-type]
            Tables(*_placed(Tables._fields, of_tables, tables)), scale, dropout,
            bool(causal), reach, shift, bool(weights), bool(exact), learned,
        )  # fmt: skip

    @property
    def wanted(self) -> list[str]:
        """Names of the inputs whose gradients the backward operator returns, in this order."""
        named = zip(Inputs._fields, range(len(Inputs._fields)), strict=True)
        return [name for name, place in named if self.learned >> place & 1]

    def with_gradients(self) -> Description:
        """The same call for its backward pass: of q, k, v and all that is learned of the bias."""
        inputs = self.inputs
        names = ["q", "k", "v"] if inputs.qkv is None else ["qkv"]
        factors = [t is not None and t.requires_grad for t in (inputs.left, inputs.right)]
        names += ["values"] if inputs.values is not None and inputs.values.requires_grad else []
        names += ["left", "right"] if any(factors) else []
        names += ["matrix"] if inputs.matrix is not None and inputs.matrix.requires_grad else []
        of_offsets = ("q_vectors", "q_table", "k_vectors", "k_table")
        names += [n for n in of_offsets if (t := getattr(inputs, n)) is not None and t.requires_grad]
        names += [n for n in ("segments", "rows", "key_table", "value_table") if getattr(inputs, n) is not None]
        return self._replace(learned=sum(1 << Inputs._fields.index(name) for name in names))

    def in_order(self, grads: Sequence[Tensor]) -> list[Tensor | None]:
        """The gradients that the backward operator returned, one for each given input, None where none is wanted."""
        found: dict[str, Any] = dict(zip(self.wanted, grads, strict=True))
        return [found.get(name) for name, t in zip(Inputs._fields, self.inputs, strict=True) if t is not None]


def _given(named: Sequence[Tensor | None]) -> list[Tensor]:
    return [t for t in named if t is not None]


def _bits(named: Sequence[Tensor | None]) -> int:
    return sum(1 << place for place, t in enumerate(named) if t is not None)


def _placed(names: Sequence[str], bits: int, given: Sequence[Tensor]) -> list[Tensor | None]:
    rest = iter(given)
    return [next(rest) if bits >> place & 1 else None for place in range(len(names))]
