"""Sums of encodings. This is the only place where encodings are added up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn

from headway.bias import Bias, ValueBias
from headway.encodings.base import PLACES, Encoding


class Together(Encoding):
    """Several encodings as one: what they add to input, scores and values is summed; rotations are applied in order.

    Paper:    Wennberg and Henter (2021), Eq. (4a), "learned+tisa"; Chen et al. (2021b), App. C, "learned+diet-abs", and
              Eqs. (1) and (3), position and segments
    Formula:  bias = parts[0].bias + parts[1].bias + ..., and likewise in the other places
    Yields:   the sums of what the parts yield
    Checked:  tests/parity/test_together.py
    """

    def __init__(self, parts: Sequence[Encoding]) -> None:
        if len(parts) < 2:
            raise ValueError(f"parts: expected at least two encodings, got {len(parts)}.")
        if any(part.dims != parts[0].dims for part in parts):
            raise ValueError(f"parts: expected encodings of equal dimensions, got {[part.dims for part in parts]}.")
        for rotating in (part for part in parts if "queries and keys" in part.places):
            for meeting in (part for part in parts if part.meets_query and part is not rotating):
                raise ValueError(
                    f"parts: {rotating.name} changes the query that the bias of {meeting.name} is a product with. "
                    f"Use one of them, or {meeting.name} with an encoding of the input or of the scores."
                )
        super().__init__(parts[0].dims)
        self.parts = nn.ModuleList(parts)
        _ = self.scale  # raises if the parts disagree

    @property
    def _each(self) -> list[Encoding]:
        return [cast(Encoding, part) for part in self.parts]

    @property
    def name(self) -> str:  # type: ignore[override]
        return "+".join(part.name for part in self._each)

    @property
    def paper(self) -> str:  # type: ignore[override]
        return "; ".join(dict.fromkeys(part.paper for part in self._each))

    @property
    def places(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(place for place in PLACES if any(place in part.places for part in self._each))

    @property
    def extends(self) -> bool:  # type: ignore[override]
        return all(part.extends for part in self._each)

    @property
    def sees_order(self) -> bool:  # type: ignore[override]
        return any(part.sees_order for part in self._each)

    @property
    def takes_segments(self) -> bool:  # type: ignore[override]
        return any(part.takes_segments for part in self._each)

    @property
    def scale(self) -> float | None:
        asked = {part.name: part.scale for part in self._each if part.scale is not None}
        if len(set(asked.values())) > 1:
            raise ValueError(f"parts: expected encodings that agree on attention's scale, got {asked}.")
        return next(iter(asked.values()), None)

    def reset_parameters(self) -> None:
        for part in self._each:
            part.reset_parameters()

    def _embed(self, x: Tensor, q_start: int, segments: Tensor | None, documents: Tensor | None) -> Tensor:
        return embed_all(self._each, x, q_start=q_start, segments=segments, documents=documents)

    def _rotate(
        self, q: Tensor, k: Tensor, layer: int, q_start: int | Tensor, documents: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return rotate_all(self._each, q, k, layer=layer, q_start=q_start, documents=documents)

    def _bias(
        self, layer: int, q_len: int, k_len: int, q_start: int, segments: Tensor | None, documents: Tensor | None
    ) -> Bias | None:
        return sum_biases(self._each, layer, q_len, k_len, q_start, segments=segments, documents=documents)

    def _value_bias(self, layer: int, q_len: int, k_len: int, q_start: int) -> ValueBias | None:
        return sum_value_biases(self._each, layer, q_len, k_len, q_start)


# `Together` uses these functions, and so does a forward pass (`headway.models.context`), because a model keeps the
# encoding of segments apart from that of positions.


def embed_all(
    parts: Sequence[Encoding], x: Tensor, *, q_start: int, segments: Tensor | None, documents: Tensor | None
) -> Tensor:
    """Add what each encoding adds to the input embeddings x, (B, L, E)."""
    for part in parts:
        x = part.embed(x, q_start=q_start, segments=segments if part.takes_segments else None, documents=documents)
    return x


def rotate_all(
    parts: Sequence[Encoding], q: Tensor, k: Tensor, *, layer: int, q_start: int | Tensor, documents: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Rotate q and k, (B, H, L, D), by each encoding in order."""
    for part in parts:
        q, k = part.rotate(q, k, layer=layer, q_start=q_start, documents=documents)
    return q, k


def sum_biases(
    parts: Sequence[Encoding],
    layer: int,
    q_len: int,
    k_len: int,
    q_start: int,
    *,
    segments: Tensor | None,
    documents: Tensor | None,
) -> Bias | None:
    """Sum the biases on the scores of one layer."""
    total: Bias | None = None
    for part in parts:
        # A part that does not use the ids does not get them, so that its bias is still cached in inference.
        ids = segments if part.takes_segments and "scores" in part.places else None
        bias = part.bias(layer, q_len, k_len, q_start, segments=ids, documents=documents)
        total = bias if total is None else total + bias
    return total


def sum_value_biases(parts: Sequence[Encoding], layer: int, q_len: int, k_len: int, q_start: int) -> ValueBias | None:
    """Sum the biases on the values of one layer."""
    total: ValueBias | None = None
    for part in parts:
        bias = part.value_bias(layer, q_len, k_len, q_start)
        total = bias if total is None else total + bias
    return total


def parts_of(encoding: Encoding | None) -> list[Encoding]:
    """List the parts of a sum of encodings; any other encoding is its own only part, and None has none."""
    if encoding is None:
        return []
    return [cast(Encoding, part) for part in encoding.parts] if isinstance(encoding, Together) else [encoding]
