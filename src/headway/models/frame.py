"""What all layers of one forward pass have in common: how the encodings act in it, who may attend to whom, and how."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from headway.attention import attention, for_layers, self_attention
from headway.attention.eager import weighted
from headway.attention.request import checked
from headway.bias import Bias, ValueBias
from headway.encodings import Encoding
from headway.running import autocast_dtype


class Frame:
    """The four places of all encodings of a model, and the masks, for one batch.

    What layers share is worked out once; the rest when its layer asks.
    """

    def __init__(
        self,
        encodings: Sequence[Encoding],  # of positions, then of segments
        *,
        scale: float | None,
        q_len: int,
        k_len: int,  # differs from q_len where keys are projected along the length, cached, or another sequence's
        q_start: int = 0,  # position of the first query (cached decoding)
        segments: Tensor | None = None,  # (B, L)
        documents: Tensor | None = None,  # (B, L)
        lengths: Tensor | None = None,  # (B,)
        mask: Tensor | None = None,  # (B, H|1, Lq|1, Lk) boolean
        x: Tensor | None = None,  # (B, L, E), what goes into the layers, if q, k and v are as it is in all of them
        heads: tuple[int, int] | None = None,  # H and D
    ) -> None:
        self.encodings = encodings
        self.scale = scale
        self.q_len, self.k_len, self.q_start = q_len, k_len, q_start
        self.segments, self.documents = segments, documents
        self.lengths, self.mask = lengths, mask
        self.shared_bias = self._sum([part for part in encodings if part.layer_sets == 1], 0)
        self.own = [part for part in encodings if part.layer_sets > 1]
        alone = mask is None and documents is None and not any("scores" in part.places for part in self.own)
        if x is not None and heads is not None and alone and self.value_bias(0) is None:
            dtype = autocast_dtype(x.device.type) or x.dtype
            (count, width), device = heads, x.device
            self.shared_bias = for_layers(
                self.shared_bias, q_len, k_len, heads=count, width=width, dtype=dtype, device=device
            )

    def embed(self, x: Tensor) -> Tensor:
        for part in self.encodings:
            x = part.embed(x, q_start=self.q_start, segments=self._ids(part), documents=self.documents)
        return x

    def rotate(self, q: Tensor, k: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        for part in self.encodings:
            q, k = part.rotate(q, k, layer=layer, q_start=self.q_start, documents=self.documents)
        return q, k

    def parted(self, qkv: Tensor, layer: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Of what one projection made, (B, L, 3, H, D): q and k, turned, and v; and that itself if nothing turned."""
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        turned_q, turned_k = self.rotate(q, k, layer)
        return turned_q, turned_k, v, qkv if turned_q is q and turned_k is k else None

    def attend(
        self,
        q: Tensor,  # (B, H, Lq, D)
        k: Tensor,
        v: Tensor,
        layer: int,
        *,
        causal: bool = False,
        dropout: float = 0.0,
        output_attentions: bool = False,
        all_seen: bool = False,  # whether there is no padding among these keys
        qkv: Tensor | None = None,  # (B, L, 3, H, D), where q, k and v are as one projection made them
    ) -> tuple[Tensor, Tensor | None]:  # (B, H, Lq, D), and the weights (B, H, Lq, Lk) if they were asked for
        arguments: dict[str, Any] = {
            "bias": self.bias(layer),
            "value_bias": self.value_bias(layer),
            "mask": None if all_seen else self.mask,
            "causal": causal,
            "lengths": None if all_seen else self.lengths,
            "documents": self.documents,
            "scale": self.scale,
            "dropout": dropout,
        }
        if output_attentions:
            return weighted(checked(q, k, v, **arguments))
        if qkv is not None:
            return self_attention(qkv, **arguments), None
        return attention(q, k, v, **arguments), None

    def bias(self, layer: int) -> Bias | None:
        return _plus(self.shared_bias, self._sum(self.own, layer))

    def value_bias(self, layer: int) -> ValueBias | None:
        total: ValueBias | None = None
        for part in self.encodings:
            term = part.value_bias(layer, self.q_len, self.k_len, self.q_start)
            total = term if total is None else total + term
        return total

    def _sum(self, parts: Sequence[Encoding], layer: int) -> Bias | None:
        total: Bias | None = None
        for part in parts:
            ids = self._ids(part) if "scores" in part.places else None  # those at the input have no say on scores
            term = part.bias(layer, self.q_len, self.k_len, self.q_start, segments=ids, documents=self.documents)
            total = _plus(total, term)
        return total

    def _ids(self, part: Encoding) -> Tensor | None:
        return self.segments if part.takes_segments else None


def _plus(a: Bias | None, b: Bias | None) -> Bias | None:
    return b if a is None else a + b
