"""Fused GPU attention: learned biases inside the kernel, memory linear in n, exact and deterministic gradients.

A Toeplitz bias is read from eight shifted copies of its values, so that every load is aligned; its gradient is summed
along block diagonals over the whole batch before it is turned into offsets. A low-rank bias, and segments, are a second
product inside the tile. Relative keys are a few numbers per query, looked up near the diagonal and constant beyond.
Where the whole score matrix is one tile, all that the batch shares is one small matrix; on Hopper at head width 64 also
where a low-rank bias has few enough scores (hopper.MOST_SCORES), else memory is linear in n.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import cast

import torch
from torch import Tensor

from headway.attention.request import Request
from headway.attention.triton.layout import by_eight, dropout_noise, padded
from headway.attention.triton.tables import Parts, bias_matrix, highest, segment_tables, toeplitz_table
from headway.bias import Dense, LowRank, RelativeKeys, RelativeValues, SegmentTable, Structured, Toeplitz
from headway.running import must_be_deterministic

__all__ = ["forward", "why_not"]

INSTALLED = find_spec("triton") is not None
# Keys: without a bias, training is faster than torch's at 512 and slower at 2048; inference is faster up to 64, where a
# large batch takes longer than Python does, slower at 128, and faster from 512 on (benchmarks/results).
TRAINED_UP_TO, INFERRED_FROM, INFERRED_UP_TO = 1024, 512, 64
LARGE_BATCH = 4096  # sequences times heads
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # kernels on CPU tensors, for tests


def why_not(request: Request) -> str | None:
    """Reason this backend cannot run the call, or None."""
    if not INSTALLED:
        return "triton is not installed"
    q = request.q
    if q.device.type != "cuda" and not INTERPRETED:
        return f"its kernels run on CUDA, and q is on {q.device.type}"
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        return f"it has no kernel for {q.dtype}"
    if max(q.shape[-1], request.v.shape[-1]) > 256:
        return f"it has kernels for head widths up to 256, and got {max(q.shape[-1], request.v.shape[-1])}"
    if request.has_tangent or request.is_transformed:
        return "it knows the backward pass alone, and another kind of derivative is asked for"
    for term in () if request.bias is None else request.bias.terms:
        if not isinstance(term, Toeplitz | LowRank | SegmentTable | RelativeKeys | Dense):
            return f"it has no kernel for {type(term).__name__}"
        if isinstance(term, Dense) and not _takes_matrix(request):
            return (
                "it takes Dense where the batch shares the bias and nothing in it meets the query or segments: for 16 "
                "to 128 queries and keys (in float32 64) of width up to 64, or on Hopper at width 64 in half precision "
                "without mask and documents"
            )
    for term in () if request.value_bias is None else request.value_bias.terms:
        if not isinstance(term, RelativeValues):
            return f"it has no kernel for {type(term).__name__}"
    if len({term.q_start for terms in _relative_terms(request) for term in terms}) > 1:
        return "its kernels take relative keys and values of one q_start"
    return None


def _takes_matrix(request: Request) -> bool:
    """Whether some kernels take a bias that has a dense term."""
    from headway.attention.triton import hopper, short

    q, k, v = request.q, request.k, request.v
    terms = () if request.bias is None else request.bias.terms
    plain = request.value_bias is None and all(isinstance(term, Toeplitz | LowRank | Dense) for term in terms)
    if not plain or any(term.batch > 1 for term in terms):
        return False
    return short.fits(q, v, Parts()) or (_hopper_masks(request) and hopper.takes(q, k, v))


def is_one_tile(request: Request) -> bool:
    """Whether a call without a bias would take the kernels for short sequences."""
    from headway.attention.triton import short

    return why_not(request) is None and short.fits(request.q, request.v, Parts())


def is_faster_without_bias(request: Request) -> bool:
    """Whether a call without a bias is faster on the Hopper kernels than on torch's.

    In training: with dropout, which costs cuDNN much, up to TRAINED_UP_TO keys, and where cuDNN is ruled out because it
    is not deterministic. In inference: from INFERRED_FROM queries and keys on and, in a large batch, up to
    INFERRED_UP_TO.
    """
    from headway.attention.triton import hopper

    q, k, v = request.q, request.k, request.v
    if request.needs_grad:
        gains = request.dropout > 0 or k.shape[2] <= TRAINED_UP_TO or must_be_deterministic()
    else:
        longest = max(q.shape[2], k.shape[2])
        gains = min(q.shape[2], k.shape[2]) >= INFERRED_FROM or (
            longest <= INFERRED_UP_TO and q.shape[0] * q.shape[1] >= LARGE_BATCH
        )
    taken = why_not(request) is None and _hopper_masks(request) and hopper.takes(q, k, v)
    return gains and taken and q.stride(3) == 1


def takes_factors(request: Request) -> bool:
    """Whether the Hopper kernels take a low-rank bias at any length: that of a call that needs no gradient."""
    from headway.attention.triton import hopper

    bias, masked = request.bias, not _hopper_masks(request)
    if not isinstance(bias, LowRank) or masked or request.needs_grad or why_not(request) is not None:
        return False
    return hopper.fits(request.q, request.k, request.v, Parts(None, bias.left, bias.right)) and request.scale != 0


def forward(request: Request) -> Tensor:  # (B, H, Lq, Dv)
    from headway.attention.triton import op

    q, k, v = request.q, request.k, request.v
    if _is_relative(request, q, k, v):
        return _relative(request, q, k, v)
    masking = request.masking
    rows, value_table, reach, shift = _relative_parts(request, q)
    q, k, v = padded(q), padded(k), padded(v)  # columns of zeros change no score; of values, they are cut off again
    segment = _segment_term(request, q, k, v)
    terms = () if request.bias is None else request.bias.terms
    parts = parts_of([term for term in terms if term is not segment])
    relative = rows is not None or value_table is not None
    steps: Tensor | None = None
    if segment is None:
        by, backward_by, tables, backward_tables = _kernels(request, q, k, v, parts, relative)
    else:
        by, backward_by, tables, backward_tables, steps = _with_segments(request, segment, parts)
    exact = q.dtype != torch.float32 and not by.endswith("tile") and _needs_rest(request, (*parts, steps))
    noise = None if request.dropout == 0 else dropout_noise(q, k)
    one_tensor = backward_by.startswith("hopper") and q is request.q  # of gradients
    qkv = request.qkv if one_tensor else None
    output, _, weights, _ = op.fused(
        *_inputs(q, k, v, qkv), *parts, steps, rows, reach, shift, value_table is not None,
        masking.mask, masking.causal, _lengths(request), masking.q_documents, masking.k_documents,
        request.scale, request.dropout, noise, exact, by, backward_by, tables, backward_tables,
    )  # fmt: skip
    output = output[..., : request.v.shape[3]]
    if value_table is not None:
        of_values = torch.bmm(weights.to(q.dtype).flatten(1, 2), value_table)
        output = output + of_values.view(q.shape[1], q.shape[0], q.shape[2], -1).transpose(0, 1)
    return cast("Tensor", output)


def _inputs(q: Tensor, k: Tensor, v: Tensor, qkv: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """What an operator takes of them: where q, k and v are views of one tensor, the gradient is that tensor's."""
    return (q, k, v, None) if qkv is None else (q.detach(), k.detach(), v.detach(), qkv)


def _kernels(
    request: Request, q: Tensor, k: Tensor, v: Tensor, parts: Parts, relative: bool
) -> tuple[str, str, list[Tensor], list[Tensor]]:
    """Which kernels go forward and which backward, and what they read of the bias."""
    from headway.attention.triton import hopper, short
    from headway.attention.triton.multiplied import Multiplied

    parts, needs_grad = parts.detach(), request.needs_grad
    ready = list(request.bias.tables) if isinstance(request.bias, Multiplied) else []
    on_hopper = not relative and _hopper_masks(request) and hopper.fits(q, k, v, parts)
    if on_hopper and hopper.is_tile(q, k):
        tables = ready or hopper.tables(parts, _peaks(parts, request), q, k, needs_grad, request.scale)
        return "hopper tile", "hopper tile", tables, tables if needs_grad else []
    if not relative and short.fits(q, v, parts):
        half, peaks = q.dtype != torch.float32, _peaks(parts, request)
        ahead = [bias_matrix(parts, k.shape[2], half, peaks)] if parts.given else []
        return "one tile", "one tile", ahead, [t.mT.contiguous() for t in ahead] if needs_grad else []
    whole = parts.left is None or hopper.becomes_matrix(q, k, parts)
    if on_hopper and (whole or (not needs_grad and request.scale != 0)):
        tables = ready or hopper.tables(parts, _peaks(parts, request), q, k, needs_grad, request.scale)
        return "hopper", "hopper", tables, tables if needs_grad else []
    return "triton", "triton", [], []


def _peaks(parts: Parts, request: Request) -> Tensor | None:
    return None if parts.matrix is None else highest(parts.matrix, request.masking)


def _needs_rest(request: Request, parts: Sequence[Tensor | None]) -> bool:
    """Whether gradients need what rounding took from the output: those of factors that many sequences share, and those
    that nearly cancel, because there is one key or because a mask may leave few."""
    if not request.needs_grad:
        return False
    if request.k.shape[2] == 1:
        return True
    masked = request.masking.mask is not None or request.masking.q_documents is not None
    return masked or any(part is not None and part.requires_grad for part in parts[1:])


def _lengths(request: Request) -> Tensor | None:
    """Kernels trust them, and on a GPU nobody has read them."""
    lengths = request.masking.lengths
    return None if lengths is None else lengths.clamp(max=request.k.shape[2]).to(torch.int32)


def _is_relative(request: Request, q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether the Hopper kernels for relative keys and values take the call."""
    from headway.attention.triton import hopper, relative

    keys, values = _relative_terms(request)
    others = 0 if request.bias is None else len(request.bias.terms) - len(keys)
    return (
        len(keys) + len(values) > 0
        and not others
        and _hopper_masks(request)
        and max(term.clip for term in (*keys, *values)) <= relative.LONGEST_REACH
        and (k.shape[2] >= relative.FEWEST_KEYS or not request.needs_grad)
        and request.scale > 0  # which keeps a masked score lowest
        and hopper.takes(q, k, v)
    )


def _relative(request: Request, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from headway.attention.triton.relative import fused_relative, in_places

    keys, values = _relative_terms(request)
    reach = max(1, *(term.clip for term in (*keys, *values)))
    key_table = None if not keys else _table(keys, reach, q).float() * request.scale
    value_table = None if not values else _table(values, reach, q).float()
    places = [None if t is None else in_places(t.detach().to(q.dtype)) for t in (key_table, value_table)]
    output, *_ = fused_relative(
        *_inputs(q, k, v, request.qkv), key_table, value_table, *places,
        reach, (*keys, *values)[0].q_start, request.masking.causal, _lengths(request),
        request.scale, request.dropout, None if request.dropout == 0 else dropout_noise(q, k), request.needs_grad,
    )  # fmt: skip
    return cast("Tensor", output)


def _hopper_masks(request: Request) -> bool:
    """Whether the Hopper kernels take the masks: causal order and lengths."""
    return request.masking.mask is None and request.masking.q_documents is None


def _segment_term(request: Request, q: Tensor, k: Tensor, v: Tensor) -> SegmentTable | None:
    """The segments of a call that the Hopper kernels take: one table of two, beside Toeplitz terms the batch shares."""
    from headway.attention.triton import hopper

    terms = () if request.bias is None else request.bias.terms
    found = [term for term in terms if isinstance(term, SegmentTable)]
    others = [term for term in terms if not isinstance(term, SegmentTable)]
    alone = (
        len(found) == 1
        and found[0].num_segments == 2
        and all(isinstance(term, Toeplitz) and term.batch == 1 for term in others)
        and request.value_bias is None
        and _hopper_masks(request)
    )
    return found[0] if alone and hopper.takes(q, k, v) else None


def _with_segments(
    request: Request, segment: SegmentTable, parts: Parts
) -> tuple[str, str, list[Tensor], list[Tensor], Tensor]:
    """Which kernels, what they read, and what a query of either segment adds for keys of segment 1.

    A number that all keys share changes no weight: the column of segment 0 is taken from that of segment 1.
    """
    steps = segment.table[:, :, 1] - segment.table[:, :, 0]  # (H|1, 2)
    of_values = (
        [] if parts.values is None else [toeplitz_table(parts.values.detach(), request.q.shape[2], request.k.shape[2])]
    )
    tables = [*of_values, *segment_tables(steps.detach(), segment.q_segments, segment.k_segments)]
    return "hopper", "hopper", tables, tables if request.needs_grad else [], steps


def parts_of(terms: Sequence[Structured]) -> Parts:
    """All terms that do not meet the query, as one Toeplitz bias, one low-rank one and one matrix."""
    values = matrix = left = right = None
    pairs: list[LowRank] = []
    for term in terms:
        if isinstance(term, Toeplitz):
            values = term.values if values is None else values + term.values
        elif isinstance(term, SegmentTable):
            pairs.append(term.as_low_rank())
        elif isinstance(term, LowRank):
            pairs.append(term)
        elif isinstance(term, Dense):
            matrix = term.matrix if matrix is None else matrix + term.matrix
    if pairs:
        left, right = _beside([pair.left for pair in pairs]), _beside([pair.right for pair in pairs])
    return Parts(values, left, right, matrix)


def _relative_parts(request: Request, q: Tensor) -> tuple[Tensor | None, Tensor | None, int, int]:
    """Relative keys as scores (H, B, Lq, C), the table of relative values (H, C, Dv), their reach and shift.

    C clipped offsets, of which 2 * reach + 1 count and the rest is padding.
    """
    keys, on_values = _relative_terms(request)
    if not keys and not on_values:
        return None, None, 0, 0
    reach = max(1, *(term.clip for term in (*keys, *on_values)))
    padding = by_eight(2 * reach + 1) - (2 * reach + 1)
    rows = value_table = None
    if keys:  # Shaw et al. (2018), Eq. (5): q meets the table first
        table = (_table(keys, reach, q, padding) * request.scale).to(q.dtype)
        rows = torch.bmm(_heads_apart(q), table.mT).view(q.shape[1], q.shape[0], q.shape[2], -1)
    if on_values:
        value_table = _table(on_values, reach, q, padding).to(q.dtype)
    return rows, value_table, reach, (*keys, *on_values)[0].q_start


def _heads_apart(t: Tensor) -> Tensor:  # (B, H, L, D) -> (H, B * L, D), in place where rows come before heads
    return t.transpose(0, 1).flatten(1, 2)


def _relative_terms(request: Request) -> tuple[list[RelativeKeys], list[RelativeValues]]:
    keys = () if request.bias is None else request.bias.terms
    values = () if request.value_bias is None else request.value_bias.terms
    return [t for t in keys if isinstance(t, RelativeKeys)], [t for t in values if isinstance(t, RelativeValues)]


def _table(
    terms: Sequence[RelativeKeys | RelativeValues], reach: int, q: Tensor, padding: int = 0
) -> Tensor:  # (H, 2 * reach + 1 + padding, D)
    """The sum of their tables, the outermost vectors of each repeated up to the reach and into the padding."""
    wide = []
    for term in terms:
        more = reach - term.clip
        parts = [term.table[:, :1].expand(-1, more, -1), term.table, term.table[:, -1:].expand(-1, more + padding, -1)]
        wide.append(torch.cat(parts, 1) if more + padding else term.table)
    return functools.reduce(torch.add, wide).expand(q.shape[1], -1, -1)


def _beside(factors: list[Tensor]) -> Tensor:
    if len(factors) == 1:
        return factors[0]
    batch, heads = max(f.shape[0] for f in factors), max(f.shape[1] for f in factors)
    dtype = torch.promote_types(factors[0].dtype, factors[-1].dtype)
    return torch.cat([f.to(dtype).expand(batch, heads, -1, -1) for f in factors], -1)
