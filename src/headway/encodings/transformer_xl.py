"""Transformer-XL and XLNet: sinusoids of the distance, projected and multiplied with the query and two vectors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from headway.bias import Bias, RelativeKeys, Toeplitz
from headway.encodings.absolute import angles
from headway.encodings.base import Dimensions, PositionEncoding


class TransformerXL(PositionEncoding):
    """Projected sinusoids of the distance, multiplied with the query and with two learned vectors.

    Paper:    Dai et al. (2019), "Transformer-XL", Sec. 3.3, A^rel, terms (a) to (d); Yang et al. (2019), "XLNet", for
              both directions; as written in Chen et al. (2021a), Sec. 2.2.2
    Formula:  scores[h, i, j] = scale * ((q[h, i] + u[l, h]) . k[h, j] + (q[h, i] + v[l, h]) . r[l, h, i - j])
              r[l, h, n] = [sin(n w), cos(n w)] projection[l, h],  w[m] = 10000^(-2m / E)
    Symbols:  W_{k,R} -> projection, (layers, heads, E, D);  u, v, (layers, heads, D);  R_{i-j} -> the sinusoid
    Departs:  computed as q + u instead of q, relative keys r, and the Toeplitz term scale * (v - u) . r, which corrects
              (q + u) . r to (q + v) . r. The sinusoid of distance 0 is subtracted from all others. Its product is the
              same for all keys of a query and changes no weight, but was seen to grow to thousands in training, where
              half precision loses the differences between keys. Transformer-XL has one u and one v for all layers;
              XLNet, and the default here, has one of each per layer. Normal initialisation with `init_std`, as XLNet
    Yields:   q + u, and RelativeKeys + Toeplitz, layers * heads * (E + 2) * D parameters; any length
    Checked:  tests/parity/test_transformer_xl.py

    The Toeplitz term contains the scale, so attention must use `scale`, the usual head_dim ** -0.5. Keys are not
    changed, so that a cache of keys stays valid.
    """

    name = "transformer-xl"
    paper = "Dai et al. 2019, Sec. 3.3; Yang et al. 2019"
    places = ("queries and keys", "scores")
    default_sharing = "none"
    meets_query = True

    def __init__(self, dims: Dimensions, *, sharing: str | None = None, init_std: float = 0.02) -> None:
        super().__init__(dims, sharing=sharing)
        self.init_std = init_std
        sets = (self.layer_sets, self.head_sets)
        self.u = nn.Parameter(torch.empty(*sets, dims.head_dim))
        self.v = nn.Parameter(torch.empty(*sets, dims.head_dim))
        self.projection = nn.Parameter(torch.empty(*sets, dims.width, dims.head_dim))
        self._waves: Tensor | None = None  # sinusoids cached between calls; they depend on no parameter
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in (self.u, self.v, self.projection):
            nn.init.normal_(parameter, std=self.init_std)

    @property
    def scale(self) -> float:
        """The usual scale, given explicitly because the Toeplitz term contains it."""
        return float(self.dims.head_dim**-0.5)

    def _rotate(
        self, q: Tensor, k: Tensor, layer: int, q_start: int | Tensor, documents: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return q + self.u[self.layer_set(layer)][:, None].to(q.dtype), k

    def _bias(
        self, layer: int, q_len: int, k_len: int, q_start: int, segments: Tensor | None, documents: Tensor | None
    ) -> Bias:
        layer = self.layer_set(layer)
        first, last = -(q_start + q_len - 1), k_len - 1 - q_start  # least and greatest offset asked for
        reach = max(-first, last)
        r = self._sinusoids(reach) @ self.projection[layer]  # (H|1, 2 * reach + 1, D)
        correction = torch.einsum("hd,hnd->hn", self.v[layer] - self.u[layer], r) * self.scale
        keys: Bias = RelativeKeys(r, q_start, q_len, k_len)
        return keys + Toeplitz(correction[None, :, first + reach : last + reach + 1], q_len)

    def _sinusoids(self, reach: int) -> Tensor:  # (2 * reach + 1, E)
        """Return the sinusoid of distance i - j minus that of distance 0, for offsets j - i from -reach to reach."""
        if torch.compiler.is_compiling():
            return self._make_sinusoids(reach)
        cached, like = self._waves, self.projection
        if cached is None or cached.dtype != like.dtype or cached.device != like.device or len(cached) < 2 * reach + 1:
            with torch.inference_mode(False), torch.no_grad():
                cached = self._waves = self._make_sinusoids(max(reach, self.dims.max_length - 1))
        middle = len(cached) // 2
        return cached[middle - reach : middle + reach + 1]

    def _make_sinusoids(self, reach: int) -> Tensor:
        distance = torch.arange(reach, -reach - 1, -1, device=self.projection.device)
        angle = angles(distance, self.dims.width)
        waves = torch.cat([angle.sin(), angle.cos() - 1], dim=-1)[..., : self.dims.width]  # sines first, then cosines
        return waves.to(self.projection.dtype)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_waves": None}
