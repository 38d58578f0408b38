"""Sliding-window attention: every query sees the keys at most `window` positions away, with any bias."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from headway.attention import attention
from headway.bias import Bias, RelativeKeys, RelativeValues, Structured, Toeplitz, ValueBias
from headway.bias.checks import offsets


def local_attention(
    q: Tensor,  # (B, H, L, D)
    k: Tensor,
    v: Tensor,
    window: int,
    *,
    bias: Bias | None = None,
    value_bias: ValueBias | None = None,
    mask: Tensor | None = None,  # (B|1, H|1, L|1, L) boolean
    lengths: Tensor | None = None,  # (B,)
    documents: Tensor | None = None,  # (B|1, L)
    scale: float | None = None,
    dropout: float = 0.0,
) -> Tensor:  # (B, H, L, D)
    """Attend to the keys at most `window` positions to either side, in memory linear in the length.

    Paper:    Beltagy et al. (2020), "Longformer", Sec. 3.1, sliding window attention
    Formula:  out[i] = sum_j w[i, j] (v[j] + value_bias[i, j]),  w[i] = softmax over j of scale * q[i] . k[j] +
              bias[i, j], where |j - i| <= window
    Symbols:  w, the window of both sides -> 2 * window + 1
    Departs:  the paper adds global attention for a few tokens, and dilation; neither is here
    Checked:  tests/parity/test_local.py

    Blocks of queries attend to their own keys and those of the window around. Where bias and masks are the same for
    every block, all blocks are the batch of one call of attention.
    """
    length = q.shape[2]
    if window >= length - 1:
        return attention(
            q, k, v, bias=bias, value_bias=value_bias, mask=mask, lengths=lengths, documents=documents, scale=scale,
            dropout=dropout,
        )  # fmt: skip
    terms = [*(() if bias is None else bias.terms), *(() if value_bias is None else value_bias.terms)]
    of_keys = mask is None or (mask.shape[1] == 1 and mask.shape[2] == 1)
    if documents is None and of_keys and all(_is_of_offsets(term) for term in terms):
        keep = _valid_keys(mask, lengths, length, q.device)
        return _in_one_call(q, k, v, window, bias=bias, value_bias=value_bias, keep=keep, scale=scale, dropout=dropout)
    blocks = []
    for start in range(0, length, window):
        stop = min(start + window, length)
        first, last = max(0, start - window), min(length, stop + window)
        near = within(window, stop - start, last - first, start - first, q.device)
        if mask is not None:
            near = near & mask[:, :, start:stop, first:last] if mask.shape[2] > 1 else near & mask[..., first:last]
        block = attention(
            q[:, :, start:stop],
            k[:, :, first:last],
            v[:, :, first:last],
            bias=None if bias is None else bias.tile(start, stop, first, last),
            value_bias=None if value_bias is None else value_bias.tile(start, stop, first, last),
            mask=near,
            lengths=None if lengths is None else (lengths - first).clamp(0, last - first),
            documents=None if documents is None else (documents[:, start:stop], documents[:, first:last]),
            scale=scale,
            dropout=dropout,
        )
        blocks.append(block)
    return torch.cat(blocks, 2)


def within(window: int, q_len: int, k_len: int, q_start: int, device: torch.device) -> Tensor:  # (1, 1, Lq, Lk) boolean
    """Return which keys are at most `window` positions from each query; query 0 is at position q_start of the keys."""
    return (offsets(q_len, k_len, q_start, device=device).abs() <= window)[None, None]


def _in_one_call(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    window: int,
    *,
    bias: Bias | None,
    value_bias: ValueBias | None,
    keep: Tensor,  # (B|1, L) boolean, False = padding
    scale: float | None,
    dropout: float,
) -> Tensor:
    """Attend with a bias of offsets alone: the blocks of all sequences are the batch of one call."""
    batch, heads, length, _ = q.shape
    blocks = -(-length // window)
    spare = blocks * window - length
    span = 3 * window  # keys of a block: its own, and a window to either side

    def windows(x: Tensor) -> Tensor:  # (B, H, L, D) to (B * blocks, H, span, D)
        padded = F.pad(x, (0, 0, window, window + spare)).unfold(2, span, window)  # (B, H, blocks, D, span)
        return padded.permute(0, 2, 1, 4, 3).flatten(0, 1)

    queries = F.pad(q, (0, 0, 0, spare)).view(batch, heads, blocks, window, -1).transpose(1, 2).flatten(0, 1)
    valid = F.pad(keep, (window, window + spare)).unfold(1, span, window)  # (B|1, blocks, span)
    near = within(window, window, span, window, q.device)[0] & valid[:, :, None]  # (B|1, blocks, window, span)
    out = attention(
        queries,
        windows(k),
        windows(v),
        bias=None if bias is None else cast(Bias, sum(_of_a_block(term, window) for term in bias.terms)),
        value_bias=None
        if value_bias is None
        else cast(ValueBias, sum(_of_a_block(term, window) for term in value_bias.terms)),
        mask=near.expand(batch, -1, -1, -1).flatten(0, 1)[:, None],
        scale=scale,
        dropout=dropout,
    )  # (B * blocks, H, window, Dv)
    return out.view(batch, blocks, heads, window, -1).transpose(1, 2).flatten(2, 3)[:, :, :length]


def _is_of_offsets(term: Structured) -> bool:
    """Return whether a term depends on the offset alone, and is the same for all sequences."""
    return isinstance(term, Toeplitz | RelativeKeys | RelativeValues) and term.batch == 1


def _of_a_block(term: Structured, window: int) -> Any:
    """Return a term of offsets for one block: `window` queries, and keys from `window` before the first of them."""
    if isinstance(term, RelativeKeys | RelativeValues):
        assert term.q_start == 0  # a whole sequence
        return type(term)(term.table, window, window, 3 * window)
    assert isinstance(term, Toeplitz) and term.q_len is not None
    first, last = -(2 * window - 1), 2 * window - 1  # offsets of the block; those beyond the window are masked
    reach = term.q_len - 1
    own = term.values[..., max(first + reach, 0) : min(last, reach) + reach + 1]
    missing = max(0, -(first + reach)), max(0, last - reach)
    parts = [own[..., :1].expand(*own.shape[:-1], missing[0]), own, own[..., -1:].expand(*own.shape[:-1], missing[1])]
    return Toeplitz(torch.cat(parts, -1), window)


def _valid_keys(mask: Tensor | None, lengths: Tensor | None, length: int, device: torch.device) -> Tensor:  # (B|1, L)
    """Return which keys are not padding, from a mask of keys or from lengths."""
    if lengths is not None:
        keep = torch.arange(length, device=device) < lengths[:, None]
        return keep if mask is None else keep & mask[:, 0, 0]
    return torch.ones(1, length, dtype=torch.bool, device=device) if mask is None else mask[:, 0, 0]
