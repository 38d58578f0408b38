"""Position encodings of the input: none, fixed sinusoids, or a learned table, added to the embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headway.encodings.base import Dimensions, PositionEncoding, positions


class NoPosition(PositionEncoding):
    """No position encoding: the model sees a bag of words, unless its mask depends on the order.

    Paper:    Chen et al. (2021a), Sec. 2.2: without position a transformer is permutation equivariant
    Formula:  nothing is added anywhere
    Yields:   nothing, no parameters
    Checked:  tests/parity/test_absolute.py
    """

    name = "none"
    paper = "Chen et al. 2021a, Sec. 2.2"
    sees_order = False


class Sinusoidal(PositionEncoding):
    """Fixed sines and cosines of the position, added to the input.

    Paper:    Vaswani et al. (2017), "Attention Is All You Need", Sec. 3.5; Chen et al. (2021a), Sec. 2.2.1, "Fixed"
    Formula:  x[p, 2i] += a sin(p / 10000^(2i / E));  x[p, 2i + 1] += a cos(p / 10000^(2i / E))
    Symbols:  pos, k -> p;  d_model, d -> E;  a = 1 -> amplitude
    Departs:  an odd E has one sine more than cosines. The paper multiplies embeddings by sqrt(E) first, which is up to
              the model; where it does not, as in BERT, a smaller `amplitude` keeps the waves from drowning the words
    Yields:   a term of the input, no parameters; any length
    Checked:  tests/parity/test_absolute.py
    """

    name = "sinusoidal"
    paper = "Vaswani et al. 2017, Sec. 3.5"
    places = ("input",)

    def __init__(self, dims: Dimensions, *, sharing: str | None = None, amplitude: float = 1.0) -> None:
        super().__init__(dims, sharing=sharing)
        self.amplitude = amplitude

    def _embed(self, x: Tensor, q_start: int, segments: Tensor | None, documents: Tensor | None) -> Tensor:
        angle = angles(positions(x.shape[1], q_start, documents, device=x.device), self.dims.width)
        waves = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)  # sine and cosine in turn
        return x + (self.amplitude * waves[..., : self.dims.width]).to(x.dtype)


class Learned(PositionEncoding):
    """One learned vector per position, added to the input.

    Paper:    Devlin et al. (2019), "BERT", Sec. 3, input representation; Chen et al. (2021a), Sec. 2.2.1, "Learned"
    Formula:  x[p] += table[p]
    Symbols:  P -> table, (max_length, E)
    Yields:   a term of the input, max_length * E parameters
    Checked:  tests/parity/test_absolute.py
    """

    name = "learned"
    paper = "Devlin et al. 2019, Sec. 3"
    places = ("input",)
    extends = False

    def __init__(self, dims: Dimensions, *, sharing: str | None = None, init_std: float = 0.02) -> None:
        super().__init__(dims, sharing=sharing)
        self.init_std = init_std
        self.table = nn.Parameter(torch.empty(dims.max_length, dims.width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=self.init_std)

    def _embed(self, x: Tensor, q_start: int, segments: Tensor | None, documents: Tensor | None) -> Tensor:
        if documents is None:
            rows = self.table[None, q_start : q_start + x.shape[1]]
        else:
            rows = self.table[positions(x.shape[1], q_start, documents)]
        return x + rows.to(x.dtype)


def angles(
    position: Tensor,  # (..., L), integers
    width: int,
    base: float = 10000.0,
) -> Tensor:  # (..., L, ceil(width / 2))
    """Compute position / base^(2i / width) for i = 0, 1, ..., in float64 (float32 on devices without float64)."""
    frequency = frequencies(width, base, position.device)
    return position.to(frequency.dtype)[..., None] * frequency


def frequencies(width: int, base: float, device: torch.device) -> Tensor:  # (ceil(width / 2),)
    """Compute base^(-2i / width) for i = 0, 1, ..., in float64 (float32 on devices without float64)."""
    dtype = torch.float32 if device.type == "mps" else torch.float64
    exponent = torch.arange(0, width, 2, device=device).to(dtype) / width
    return base**-exponent
