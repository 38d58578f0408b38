"""The base class of encodings: modules that may act on the input, on q and k, on the scores and on the values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from headway.bias import Bias, ValueBias
from headway.bias.checks import IDS
from headway.running import carries_tangents, is_transformed, may_read

SHARINGS = ("none", "head", "layer")
PLACES = ("input", "queries and keys", "scores", "values")


@dataclass(frozen=True, kw_only=True, slots=True)
class Dimensions:
    """The sizes of the model that an encoding is built for."""

    num_layers: int
    num_heads: int
    head_dim: int
    max_length: int = 512  # longest sequence of training; the limit of encodings that do not extend
    embed_dim: int | None = None  # E; num_heads * head_dim unless given

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_heads", "head_dim", "max_length"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}: expected a whole number of at least 1, got {value!r}.")
        if self.embed_dim is not None and self.embed_dim < 1:
            raise ValueError(f"embed_dim: expected a whole number of at least 1, got {self.embed_dim!r}.")

    @property
    def width(self) -> int:
        return self.embed_dim or self.num_heads * self.head_dim


class Encoding(nn.Module):
    """Base of position and segment encodings, which act in four places; each hook does nothing unless overridden.

    | public method | hook          | place                                   |
    |---------------|---------------|-----------------------------------------|
    | `embed`       | `_embed`      | adds to the input, (B, L, E)            |
    | `rotate`      | `_rotate`     | rotates q and k, (B, H, L, D)           |
    | `bias`        | `_bias`       | adds a structured bias to the scores    |
    | `value_bias`  | `_value_bias` | adds a structured bias to the values    |

    The public methods check their arguments, so that hooks need not. `q_start` is the position of the first query
    (cached decoding); `segments` and `documents` are ids of the whole key sequence, (B, Lk), in which the queries are
    columns q_start to q_start + Lq. With `documents` (packed texts), absolute positions are counted in each text.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    places: ClassVar[tuple[str, ...]] = ()
    extends: ClassVar[bool] = True  # whether it is defined for sequences longer than max_length
    sees_order: ClassVar[bool] = True
    default_sharing: ClassVar[str | None] = None  # None: it has no parameters per head that could be shared
    meets_query: ClassVar[bool] = False  # whether its bias is a product with q, which no other encoding may then rotate
    takes_segments: ClassVar[bool] = False  # whether it uses `segments`

    def __init__(self, dims: Dimensions, *, sharing: str | None = None) -> None:
        super().__init__()
        if sharing is not None and sharing not in SHARINGS:
            raise ValueError(f"sharing: expected one of {', '.join(SHARINGS)}, got {sharing!r}.")
        if sharing is not None and self.default_sharing is None:
            raise ValueError(
                f"sharing: {self.name} has no per-head parameters to share, got {sharing!r}. Leave it out."
            )
        self.dims = dims
        self.sharing = sharing or self.default_sharing
        self._frozen: dict[tuple[int, int, int, int], Bias] = {}  # biases cached for inference; see `_cached`

    # Sizes of the parameters, given `sharing` (Chen et al. 2021b, Sec. 4.4).

    @property
    def layer_sets(self) -> int:
        """Number of layers with parameters of their own: 1 if layers share."""
        return 1 if self.sharing == "layer" else self.dims.num_layers

    @property
    def head_sets(self) -> int:
        """Number of heads with parameters of their own: 1 if heads share."""
        return 1 if self.sharing == "head" else self.dims.num_heads

    def layer_set(self, layer: int) -> int:
        """Return the index of the parameters that a layer uses."""
        return 0 if self.sharing == "layer" else layer

    @property
    def scale(self) -> float | None:
        """Scale that attention must use with this encoding; None for the default, head_dim ** -0.5."""
        return None

    def reset_parameters(self) -> None:
        """Initialise the parameters."""

    # The four places.

    def embed(
        self, x: Tensor, *, q_start: int = 0, segments: Tensor | None = None, documents: Tensor | None = None
    ) -> Tensor:
        """Return the input embeddings x, (B, L, E), with this encoding added."""
        if x.dim() != 3 or x.shape[-1] != self.dims.width:
            raise ValueError(
                f"x: expected (B, L, {self.dims.width}), got {tuple(x.shape)}. The encoding was built for that width "
                f"(embed_dim)."
            )
        self._check_segments(segments, q_start + x.shape[1])
        _check_ids("documents", documents, q_start + x.shape[1])
        self._check_span(x.shape[1], q_start + x.shape[1], q_start, documents)
        return self._embed(x, q_start, segments, documents)

    def rotate(
        self, q: Tensor, k: Tensor, *, layer: int = 0, q_start: int | Tensor = 0, documents: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Rotate q and k, both (B, H, L, D) at positions q_start to q_start + L.

        If q_start is a tensor with one integer, it is not checked, so that one CUDA graph serves all positions.
        """
        self._check_layer(layer)
        if q.shape[-2] != k.shape[-2]:
            raise ValueError(
                f"rotate: expected q and k of the same positions, got lengths {q.shape[-2]} and {k.shape[-2]}. "
                f"In cached decoding, rotate new keys before they are added to the cache."
            )
        if not isinstance(q_start, Tensor):
            _check_ids("documents", documents, q_start + q.shape[-2])
            self._check_span(q.shape[-2], q_start + q.shape[-2], q_start, documents)
        elif documents is not None:
            raise TypeError("q_start: expected a whole number beside documents, got a tensor.")
        return self._rotate(q, k, layer, q_start, documents)

    def bias(
        self,
        layer: int,
        q_len: int,
        k_len: int,
        q_start: int = 0,
        *,
        segments: Tensor | None = None,
        documents: Tensor | None = None,
    ) -> Bias | None:
        """Return the structured bias of one layer for Lq queries and Lk keys, or None."""
        self._check_layer(layer)
        self._check_segments(segments, k_len)
        _check_ids("documents", documents, k_len)
        self._check_span(q_len, k_len, q_start, documents)
        bias = self._bias(layer, q_len, k_len, q_start, segments, documents)
        if bias is None:
            return None
        bias = bias.bind(q_len, k_len)
        return bias if segments is not None or documents is not None else self._cached(bias, layer, q_start)

    def value_bias(self, layer: int, q_len: int, k_len: int, q_start: int = 0) -> ValueBias | None:
        """Return the structured bias on the values of one layer, or None. It depends on offsets alone."""
        self._check_layer(layer)
        _check_lengths(q_len, k_len, q_start)
        bias = self._value_bias(layer, q_len, k_len, q_start)
        return None if bias is None else bias.bind(q_len, k_len)

    # Hooks.

    def _embed(self, x: Tensor, q_start: int, segments: Tensor | None, documents: Tensor | None) -> Tensor:
        return x

    def _rotate(
        self, q: Tensor, k: Tensor, layer: int, q_start: int | Tensor, documents: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return q, k

    def _bias(
        self, layer: int, q_len: int, k_len: int, q_start: int, segments: Tensor | None, documents: Tensor | None
    ) -> Bias | None:
        return None

    def _value_bias(self, layer: int, q_len: int, k_len: int, q_start: int) -> ValueBias | None:
        return None

    # Checks, and the cache for inference.

    def _check_layer(self, layer: int) -> None:
        if not 0 <= layer < self.dims.num_layers:
            raise ValueError(
                f"layer: expected 0 to {self.dims.num_layers - 1} (num_layers), got {layer}. Layers are counted from 0."
            )

    def _check_segments(self, segments: Tensor | None, length: int) -> None:
        if segments is not None and not self.takes_segments:
            raise ValueError(
                f"segments: {self.name} has no segments, so the ids would be lost. "
                f"Build it with segments='input' or segments='per-head', or leave the ids out."
            )
        _check_ids("segments", segments, length)

    def _check_span(self, q_len: int, k_len: int, q_start: int, documents: Tensor | None = None) -> None:
        _check_lengths(q_len, k_len, q_start)
        longest = max(q_start + q_len, k_len)
        if self.extends or longest <= self.dims.max_length:
            return
        if documents is not None:  # the longest packed text counts
            if not may_read(documents):
                return  # indexing the table raises
            longest = int(positions(documents.shape[1], 0, documents).max()) + 1
        if longest > self.dims.max_length:
            raise ValueError(
                f"positions: expected at most {self.dims.max_length} (max_length of {self.name}), got {longest}. "
                f"Build it with a larger max_length, or use an encoding that extends (see `headway list`)."
            )

    def _cached(self, bias: Bias, layer: int, q_start: int) -> Bias:
        """Return, in inference on the CPU, the frozen copy of an equal bias, whose dense matrix is computed once.

        Biases are compared by value, so that any change of a parameter is noticed.
        """
        if torch.is_grad_enabled() or torch.compiler.is_compiling() or bias.device.type != "cpu" or bias.needs_query:
            return bias
        if carries_tangents() or is_transformed():
            return bias  # a copy would lose its derivative
        q_len, k_len = bias.lengths
        key = (self.layer_set(layer), q_len or 0, k_len or 0, q_start)
        cached = self._frozen.get(key)
        if cached is None or not _equal(cached, bias):
            others = dict(self._frozen)  # a copy, because several threads may use one model
            if len(others) >= 2 * self.dims.num_layers:  # room for two lengths; drop the oldest
                others.pop(next(iter(others)))
            with torch.inference_mode(False):
                cached = bias.frozen()
            self._frozen = {**others, key: cached}
        return cached

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_frozen": {}}

    def extra_repr(self) -> str:
        return f"name={self.name}, sharing={self.sharing}, max_length={self.dims.max_length}"


class PositionEncoding(Encoding):
    """An encoding of the order of tokens; subclasses are listed in `headway.encodings.ENCODINGS`."""


def positions(
    length: int, q_start: int | Tensor, documents: Tensor | None, *, device: torch.device | None = None
) -> Tensor:  # (1, length) or (B, length)
    """Return the positions q_start to q_start + length, counted from 0 in each packed text.

    In `documents`, (B, Lk), a text begins wherever the id changes.
    """
    if isinstance(q_start, Tensor):
        return (torch.arange(length, device=device) + q_start)[None]
    if documents is None:
        return torch.arange(q_start, q_start + length, device=device)[None]
    index = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    start = torch.where(begins, index, 0).cummax(dim=1).values
    return (index - start)[:, q_start : q_start + length]


def _check_lengths(q_len: int, k_len: int, q_start: int) -> None:
    if q_len < 1 or k_len < 1 or q_start < 0:
        raise ValueError(
            f"lengths: expected q_len and k_len of at least 1 and q_start of at least 0, "
            f"got {q_len}, {k_len} and {q_start}."
        )


def _check_ids(name: str, ids: Tensor | None, length: int) -> None:
    if ids is None:
        return
    if ids.dim() != 2 or ids.shape[1] != length:
        raise ValueError(
            f"{name}: expected ids (B, {length}) of the whole sequence (q_start + length), got {tuple(ids.shape)}."
        )
    if ids.dtype not in IDS:
        raise TypeError(f"{name}: expected integer ids, got {ids.dtype}. Convert them with .long().")


def _equal(a: Bias, b: Bias) -> bool:
    """Return whether two biases have the same kinds, settings and values."""
    if [(type(term), term.statics) for term in a.terms] != [(type(term), term.statics) for term in b.terms]:
        return False
    pairs = zip(a.tensors.values(), b.tensors.values(), strict=True)
    return all(x.dtype == y.dtype and torch.equal(x, y) for x, y in pairs)
