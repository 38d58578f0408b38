"""What all layers of one forward pass share: how the encodings act in it, the masks, and the call of attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from headway.attention import attention, for_layers, self_attention
from headway.attention.eager import weighted
from headway.attention.request import checked
from headway.bias import Bias, ValueBias
from headway.encodings import Encoding
from headway.encodings.together import embed_all, rotate_all, sum_biases, sum_value_biases
from headway.models.local import local_attention, within
from headway.models.padding import keep_mask
from headway.models.performer import RandomFeatures, kernel_weights, kernelised_attention
from headway.running import autocast_dtype


class ForwardContext:
    """Lengths, masks and encodings of one forward pass, through which every layer attends.

    A bias that layers share is computed once, when the context is made; others when their layer asks.
    """

    def __init__(
        self,
        encodings: Sequence[Encoding],  # of positions, then of segments
        *,
        scale: float | None,
        q_len: int,
        k_len: int,  # differs from q_len if keys are projected along the length, cached, or of another sequence
        q_start: int = 0,  # position of the first query (cached decoding)
        segments: Tensor | None = None,  # (B, L)
        documents: Tensor | None = None,  # (B, L)
        lengths: Tensor | None = None,  # (B,)
        mask: Tensor | None = None,  # (B, H|1, Lq|1, Lk) boolean
        window: int | None = None,  # how far each query sees, to either side
        features: RandomFeatures | None = None,  # of kernelised attention
        x: Tensor | None = None,  # (B, L, E), if q, k and v of all layers have its length, dtype and device
        heads: tuple[int, int] | None = None,  # H and D
    ) -> None:
        self.encodings = encodings
        self.scale = scale
        self.q_len, self.k_len, self.q_start = q_len, k_len, q_start
        self.segments, self.documents = segments, documents
        self.lengths, self.mask = lengths, mask
        self.window, self.features = window, features
        self.shared_bias = self._sum([part for part in encodings if part.layer_sets == 1], 0)
        self.own = [part for part in encodings if part.layer_sets > 1]
        alone = mask is None and documents is None and not any("scores" in part.places for part in self.own)
        alone = alone and window is None and features is None
        if x is not None and heads is not None and alone and self.value_bias(0) is None:
            dtype = autocast_dtype(x.device.type) or x.dtype
            (count, width), device = heads, x.device
            self.shared_bias = for_layers(
                self.shared_bias, q_len, k_len, heads=count, width=width, dtype=dtype, device=device
            )

    def embed(self, x: Tensor) -> Tensor:
        """Add to the input embeddings x, (B, L, E), what the encodings add."""
        return embed_all(self.encodings, x, q_start=self.q_start, segments=self.segments, documents=self.documents)

    def rotate(self, q: Tensor, k: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Rotate q and k, both (B, H, L, D), by all encodings."""
        return rotate_all(self.encodings, q, k, layer=layer, q_start=self.q_start, documents=self.documents)

    def split_and_rotate(self, qkv: Tensor, layer: int) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Split packed qkv, (B, L, 3, H, D), into rotated q, k and v; also return qkv if nothing was rotated."""
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        rotated_q, rotated_k = self.rotate(q, k, layer)
        return rotated_q, rotated_k, v, qkv if rotated_q is q and rotated_k is k else None

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
        no_padding: bool = False,  # whether to leave out mask and lengths, because these keys have no padding
        qkv: Tensor | None = None,  # (B, L, 3, H, D), if q, k and v are views of one projection's output
    ) -> tuple[Tensor, Tensor | None]:
        """Attend with bias and masks of a layer; return (B, H, Lq, D) and, if asked for, weights (B, H, Lq, Lk)."""
        arguments: dict[str, Any] = {
            "bias": self.bias(layer),
            "value_bias": self.value_bias(layer),
            "mask": None if no_padding else self.mask,
            "causal": causal,
            "lengths": None if no_padding else self.lengths,
            "documents": self.documents,
            "scale": self.scale,
            "dropout": dropout,
        }
        if self.features is not None:
            return self._attend_by_features(q, k, v, layer, arguments["bias"], output_attentions)
        if self.window is not None:
            del arguments["causal"]
            if not output_attentions:
                return local_attention(q, k, v, self.window, **arguments), None
            near = within(self.window, self.q_len, self.k_len, 0, q.device)
            arguments |= {"mask": near if self.mask is None else near & self.mask, "causal": False}
        if output_attentions:
            return weighted(checked(q, k, v, **arguments))
        if qkv is not None:
            return self_attention(qkv, **arguments), None
        return attention(q, k, v, **arguments), None

    def _attend_by_features(
        self, q: Tensor, k: Tensor, v: Tensor, layer: int, bias: Bias | None, output_attentions: bool
    ) -> tuple[Tensor, Tensor | None]:
        assert self.features is not None
        keep = keep_mask(self.lengths, self.mask, self.k_len)
        weights = None
        if output_attentions:
            weights = kernel_weights(q, k, self.features, layer, bias=bias, keep=keep)
        return kernelised_attention(q, k, v, self.features, layer, bias=bias, keep=keep), weights

    def bias(self, layer: int) -> Bias | None:
        """Return the bias of a layer's scores, or None."""
        own = self._sum(self.own, layer)
        return own if self.shared_bias is None else self.shared_bias + own

    def value_bias(self, layer: int) -> ValueBias | None:
        """Return the bias of a layer's values, or None."""
        return sum_value_biases(self.encodings, layer, self.q_len, self.k_len, self.q_start)

    def _sum(self, parts: Sequence[Encoding], layer: int) -> Bias | None:
        return sum_biases(
            parts, layer, self.q_len, self.k_len, self.q_start, segments=self.segments, documents=self.documents
        )
