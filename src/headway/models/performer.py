"""Kernelised attention with positive random features, and a Toeplitz bias by fast Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from headway.bias import Bias, Toeplitz
from headway.running import without_autocast

CHANNELS = 1024  # features times value coordinates that are transformed at once
BLOCK = 512  # queries whose weights are computed at once
TRANSFORM_FROM = 8192  # length from which Fourier transforms are faster than all weights


class RandomFeatures(nn.Module):
    """Positive orthogonal random features of queries and keys, for all layers.

    Paper:    Choromanski et al. (2021), "Performer", FAVOR+; Luo et al. (2021), "Stable, Fast and Accurate: Kernelized
              Attention with Relative Positional Encoding", for normalised queries and keys
    Formula:  phi(x)[r] = exp(w[l, h, r] . x - |x|^2 / 2) / sqrt(m), so that the mean of phi(x) . phi(y) is exp(x . y)
    Symbols:  w -> directions, (layers, heads, m, D), normal, orthogonal within groups of D;  m, the number of
              features
    Departs:  directions are drawn once and saved with the model; Performer draws them again during training
    Checked:  tests/parity/test_performer.py

    With `normalised`, x is q / |q| or k / |k|; otherwise q or k times D^-0.25, so that phi(q) . phi(k) approximates the
    exponential of the usual scores.
    """

    directions: Tensor

    def __init__(self, num_layers: int, num_heads: int, num_features: int, head_dim: int, normalised: bool) -> None:
        super().__init__()
        self.normalised = normalised
        self.register_buffer("directions", torch.empty(num_layers, num_heads, num_features, head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        size, width = self.directions.shape[:2], self.directions.shape[3]
        groups = []
        for start in range(0, self.directions.shape[2], width):
            rows = min(width, self.directions.shape[2] - start)
            normal = torch.randn(*size, width, width, device="cpu")
            q, r = torch.linalg.qr(normal)
            orthogonal = (q * r.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]).mT[:, :, :rows]
            lengths = torch.randn(*size, rows, width, device="cpu").norm(dim=-1, keepdim=True)
            groups.append(orthogonal * lengths)
        self.directions.copy_(torch.cat(groups, 2))

    def forward(
        self,
        x: Tensor,  # (B, H, L, D), queries or keys
        layer: int,
        keep: Tensor | None = None,  # (B, L) boolean, False = padding, for keys
        *,
        keys: bool,
    ) -> Tensor:  # (B, H, L, m)
        """Compute the features, up to a factor for each query, or for all keys of a head: it cancels in attention."""
        x = x / x.norm(dim=-1, keepdim=True).clamp(min=1e-6) if self.normalised else x * x.shape[-1] ** -0.25
        exponent = x @ self.directions[layer].to(x.dtype).mT - x.square().sum(-1, keepdim=True) / 2
        if keep is not None:
            exponent = exponent.masked_fill(~keep[:, None, :, None], -torch.inf)
        largest = exponent.detach().amax((-2, -1) if keys else -1, keepdim=True)  # so that exp does not overflow
        return torch.exp(exponent - largest.clamp(min=torch.finfo(x.dtype).min))


def kernelised_attention(
    q: Tensor,  # (B, H, L, D)
    k: Tensor,
    v: Tensor,
    features: RandomFeatures,
    layer: int,
    *,
    bias: Bias | None = None,  # Toeplitz terms
    keep: Tensor | None = None,  # (B, L) boolean, False = padding
) -> Tensor:  # (B, H, L, D)
    """Attend with weights phi(q[i]) . phi(k[j]) exp(bias[j - i]), in memory linear in L.

    Paper:    Luo et al. (2021), kernelised attention with relative positional encoding; Choromanski et al. (2021)
    Formula:  out[i] = sum_j c[j - i] phi(q[i]) . phi(k[j]) v[j] / sum_j c[j - i] phi(q[i]) . phi(k[j]),  c = exp(bias)
    Symbols:  b_{j-i} -> bias, a Toeplitz structure;  phi -> features
    Departs:  weights are not dropped out, because none is ever computed
    Checked:  tests/parity/test_performer.py

    Without a bias time is linear in L. With one, the sums over keys of c[j - i] phi(k[j])[r] v[j] are products with a
    Toeplitz matrix, which take L log L by FFT, from `TRANSFORM_FROM` tokens on. On shorter texts it is faster to
    compute all weights, a block of queries at a time. Both are in float32 or wider.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    with without_autocast(q.device.type):
        of_queries = features(q.to(dtype), layer, keys=False)
        of_keys = features(k.to(dtype), layer, keep, keys=True)
        ones = torch.ones_like(v[..., :1])
        values = torch.cat([v, ones], -1).to(dtype)  # the last column sums the weights
        if keep is not None:
            values = values.masked_fill(~keep[:, None, :, None], 0.0)
        if bias is None:
            sums = of_queries @ (of_keys.mT @ values)
        else:
            by = _direct_sums if q.shape[2] < TRANSFORM_FROM else _transformed_sums
            sums = by(of_queries, of_keys, values, _factors(bias).to(dtype))
        total = sums[..., -1:]
        least = total.detach().amax(-2, keepdim=True) * torch.finfo(dtype).eps  # rounding may leave less than nothing
        out: Tensor = sums[..., :-1] / total.clamp(min=least.clamp(min=torch.finfo(dtype).tiny))
        return out.to(v.dtype)


def kernel_weights(
    q: Tensor, k: Tensor, features: RandomFeatures, layer: int, *, bias: Bias | None, keep: Tensor | None
) -> Tensor:  # (B, H, L, L)
    """Compute the weights of `kernelised_attention` as a matrix, for those who want to look at them."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    weights: Tensor = features(q.to(dtype), layer, keys=False) @ features(k.to(dtype), layer, keep, keys=True).mT
    if bias is not None:
        weights = weights * Toeplitz(_factors(bias).to(dtype), q.shape[2]).dense()
    return weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(dtype).tiny)


def _factors(bias: Bias) -> Tensor:  # (1, H|1, 2 L - 1), offset -(L - 1) first
    """Return exp(bias) of each offset, divided by the largest of each head, which cancels."""
    values = sum(term.values for term in bias.terms if isinstance(term, Toeplitz))
    assert isinstance(values, Tensor) and all(isinstance(term, Toeplitz) for term in bias.terms)
    return torch.exp(values - values.detach().amax(-1, keepdim=True))


def _direct_sums(of_queries: Tensor, of_keys: Tensor, values: Tensor, factors: Tensor) -> Tensor:
    """Compute sum_j c[j - i] phi(q[i]) . phi(k[j]) v[j] by blocks of queries, (B, H, L, D + 1)."""
    length = of_keys.shape[2]
    bias = Toeplitz(factors, length)

    def part(of_queries: Tensor, of_keys: Tensor, values: Tensor, tile: Tensor) -> Tensor:
        return (of_queries @ of_keys.mT * tile) @ values

    blocks = []
    for start in range(0, length, BLOCK):
        stop = min(start + BLOCK, length)
        given = (of_queries[:, :, start:stop], of_keys, values, bias.tile(start, stop, 0, length).dense())
        blocks.append(_checkpointed(part, *given))
    return torch.cat(blocks, 2)


def _transformed_sums(of_queries: Tensor, of_keys: Tensor, values: Tensor, factors: Tensor) -> Tensor:
    """Compute the same by FFT: sum_r phi(q[i])[r] sum_j c[j - i] phi(k[j])[r] v[j], some features r at a time."""
    length, columns = of_keys.shape[2], values.shape[-1]
    size = 1 << (2 * length - 2).bit_length()  # at least 2 L - 1, so that nothing wraps around
    back, ahead = factors[..., :length].flip(-1), factors[..., length:].flip(-1)  # offsets 0, -1, ... and L - 1, ..., 1
    none = factors.new_zeros(*factors.shape[:2], size - 2 * length + 1)
    spectrum = torch.fft.rfft(torch.cat([back, none, ahead], -1))[:, :, None, None]  # of c[-t] at t, modulo the size

    def part(of_queries: Tensor, of_keys: Tensor, values: Tensor, spectrum: Tensor) -> Tensor:
        products = of_keys[:, :, :, None] * values[:, :, None]  # (B, H, features, D + 1, L)
        sums = torch.fft.irfft(torch.fft.rfft(products, n=size) * spectrum, n=size)[..., :length]
        out: Tensor = (of_queries[:, :, :, None] * sums).sum(2)
        return out

    of_queries, of_keys, values = (t.mT.contiguous() for t in (of_queries, of_keys, values))  # transforms want rows
    total = torch.zeros_like(values)
    count = max(1, CHANNELS // columns)
    for start in range(0, of_keys.shape[2], count):
        some = slice(start, start + count)
        total = total + _checkpointed(part, of_queries[:, :, some], of_keys[:, :, some], values, spectrum)
    return total.mT


def _checkpointed(part: Callable[..., Tensor], *given: Tensor) -> Tensor:
    """Call a function whose results are computed again in the backward pass, so that memory stays linear."""
    if torch.is_grad_enabled() and any(t.requires_grad for t in given):
        out: Tensor = checkpoint(part, *given, use_reentrant=False)
        return out
    return part(*given)
