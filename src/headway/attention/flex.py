"""torch's FlexAttention: a bias as a function of (batch, head, query, key), masks as blocks that are skipped."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from headway.attention.masking import Masking
from headway.attention.request import Plan, Request
from headway.bias import Bias, Dense, EdgeKeys, LowRank, RelativeKeys, SegmentTable, Toeplitz
from headway.running import must_be_deterministic, without_autocast

KINDS = (Toeplitz, LowRank, SegmentTable, RelativeKeys, EdgeKeys, Dense)
ATOMIC = "FlexAttention adds the gradient of a bias up by atomic operations, in any order"
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def plan(request: Request) -> Plan | str:
    """Plan the call, or say why this backend cannot run it."""
    if request.value_bias is not None:
        return "FlexAttention does not give the weights that a value bias needs"
    if request.dropout > 0:
        return "FlexAttention has no dropout"
    for term in () if request.bias is None else request.bias.terms:
        if not isinstance(term, KINDS):
            return f"it has no form for {type(term).__name__}, only for {', '.join(k.__name__ for k in KINDS)}"
    for width in (request.q.shape[-1], request.v.shape[-1]):
        if width & (width - 1):
            return f"it needs head widths that are powers of two, and got {width}"
    if request.q.dtype == torch.float64:
        return "it has no float64 kernel"
    if request.q.device.type == "cpu" and request.needs_grad:
        return "torch's FlexAttention has no backward pass on the CPU"
    if request.q.device.type == "cpu" and torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return "torch's FlexAttention compiles for CPUs with AVX2 only"
    if request.q.device.type == "cuda" and request.needs_grad and request.bias is not None and _half_bias(request):
        return "its gradient of a captured bias needs float32 values"
    if must_be_deterministic() and _adds_atomically(request):
        return f"{ATOMIC}, which torch.use_deterministic_algorithms(True) rules out"
    return Plan(forward, _why_not_deterministic(request))


def _why_not_deterministic(request: Request) -> str | None:
    """Reason why two runs of the call may give different bits, or None."""
    return ATOMIC if _adds_atomically(request) else None


def _adds_atomically(request: Request) -> bool:
    return request.q.device.type == "cuda" and request.bias_needs_grad


def forward(request: Request) -> Tensor:  # (B, H, Lq, Dv)
    q, k, v = request.q, request.k, request.v
    masking = request.masking
    block_mask = None
    if not masking.empty:
        batch = max([1] + [t.shape[0] for t in masking.tensors()])
        heads = 1 if masking.mask is None else masking.mask.shape[1]
        block_mask = _block_mask(_mask_mod(masking), batch, heads, q.shape[-2], k.shape[-2], q.device)
    output = _compiled()(
        q,
        k,
        v,
        score_mod=None if request.bias is None else _score_mod(request.bias, q, request.scale),
        block_mask=block_mask,
        scale=request.scale,
        enable_gqa=request.groups > 1,
    )
    allowed = masking.dense(q.device) if masking.mask is not None or masking.lengths is not None else None
    # Rows that see nothing: FlexAttention leaves their value to the kernel.
    return output if allowed is None else output.masked_fill(~allowed.any(-1, keepdim=True), 0.0)


@cache
def _compiled() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)


def _block_mask(mask_mod: Callable[..., Tensor], *sizes: Any) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask

    batch, heads, q_len, k_len, device = sizes
    return create_block_mask(mask_mod, batch, heads, q_len, k_len, device=str(device))


def _half_bias(request: Request) -> bool:
    assert request.bias is not None
    return any(term.dtype != torch.float32 for term in request.bias.terms)


def _score_mod(bias: Bias, q: Tensor, scale: float) -> ScoreMod:
    # In float32, as the kernel keeps scores: torch's makes NaN of a float64 bias beside others.
    with without_autocast(q.device.type):
        mods = [_term_mod(term.to(torch.float32), q, scale) for term in bias.terms]

    def add_all(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        for mod in mods:
            score = mod(score, b, h, i, j)
        return score

    return add_all


def _term_mod(term: Any, q: Tensor, scale: float) -> ScoreMod:
    """How one kind is read at one pair. What meets the query, or is low rank, is multiplied out per query first."""
    one_head, one_batch = term.heads == 1, term.batch == 1
    if isinstance(term, Toeplitz):
        values, last = term.values.contiguous(), q.shape[-2] - 1
        return lambda s, b, h, i, j: s + values[0 if one_batch else b, 0 if one_head else h, j - i + last]
    if isinstance(term, SegmentTable):
        # As int64: torch takes an index of uint8 for a mask.
        table, rows, columns = term.table.contiguous(), term.q_segments.long(), term.k_segments.long()
        one_row, one_column = rows.shape[0] == 1, columns.shape[0] == 1
        return lambda s, b, h, i, j: (
            s + table[0 if one_head else h, rows[0 if one_row else b, i], columns[0 if one_column else b, j]]
        )
    if isinstance(term, RelativeKeys):
        met, clip, start = _met(q, term.table, scale), term.clip, term.q_start
        return lambda s, b, h, i, j: s + met[b, h, i, torch.clamp(j - i - start, -clip, clip) + clip]
    if isinstance(term, EdgeKeys):
        met, labels = _met(q, term.table, scale), term.labels.long()
        return lambda s, b, h, i, j: s + met[b, h, i, labels[0 if one_batch else b, i, j]]
    if isinstance(term, LowRank | Dense):
        matrix = term.dense().contiguous()
        return lambda s, b, h, i, j: s + matrix[0 if one_batch else b, 0 if one_head else h, i, j]
    raise AssertionError(f"no FlexAttention form for {type(term).__name__}")


def _met(q: Tensor, table: Tensor, scale: float) -> Tensor:
    return ((q.to(table.dtype) * scale) @ table.transpose(-1, -2)).contiguous()


def _mask_mod(masking: Masking) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    shift = masking.k_len - masking.q_len
    lengths, rows, columns, mask = masking.lengths, masking.q_documents, masking.k_documents, masking.mask

    def allowed(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        ok = j - i <= shift if masking.causal else j >= 0
        if lengths is not None:
            ok = ok & (j < lengths[b])
        if rows is not None and columns is not None:
            ok = ok & (rows[0 if rows.shape[0] == 1 else b, i] == columns[0 if columns.shape[0] == 1 else b, j])
        if mask is not None:
            one_b, one_h, one_i = (size == 1 for size in mask.shape[:3])
            ok = ok & mask[0 if one_b else b, 0 if one_h else h, 0 if one_i else i, j]
        return ok

    return allowed
