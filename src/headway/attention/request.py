"""One call of attention, checked: what every backend receives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from headway.attention.masking import Masking
from headway.bias import Bias, Dense, Structured, ValueBias
from headway.bias.base import IDS, dtype_name
from headway.running import autocast_dtype, carries_tangents, is_transformed, may_read

Documents = Tensor | tuple[Tensor, Tensor]
S = TypeVar("S", bound=Structured)


@dataclass(frozen=True, eq=False, kw_only=True)
class Request:
    """Checked arguments of one call. k and v may have fewer heads than q, by a whole factor."""

    q: Tensor  # (B, H, Lq, D)
    k: Tensor  # (B, Hk, Lk, D)
    v: Tensor  # (B, Hk, Lk, Dv)
    bias: Bias | None
    value_bias: ValueBias | None
    masking: Masking
    scale: float
    dropout: float
    qkv: Tensor | None = None  # (B, L, 3, H, D): what q, k and v are views of, where that is known

    @property
    def groups(self) -> int:
        """How many query heads share one key/value head."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def needs_grad(self) -> bool:
        if not torch.is_grad_enabled():
            return False
        structured = [part for part in (self.bias, self.value_bias) if part is not None]
        return any(t.requires_grad for t in (self.q, self.k, self.v)) or any(s.requires_grad for s in structured)

    @property
    def bias_needs_grad(self) -> bool:
        return torch.is_grad_enabled() and self.bias is not None and self.bias.requires_grad

    @property
    def has_tangent(self) -> bool:
        """Whether a tensor of the call has a derivative that goes forward."""
        if not carries_tangents():
            return False
        structured = [part for part in (self.bias, self.value_bias) if part is not None]
        given = [self.q, self.k, self.v, *(tensor for part in structured for tensor in part.tensors.values())]
        return any(forward_ad.unpack_dual(t).tangent is not None for t in given)  # type: ignore[no-untyped-call]

    @property
    def is_transformed(self) -> bool:
        """Whether torch.func (vmap, grad, jvp) is at work, for which our own operators have no rules."""
        return is_transformed()

    def expanded(self) -> tuple[Tensor, Tensor]:
        """k and v with a copy for every query head."""
        if self.groups == 1:
            return self.k, self.v
        return self.k.repeat_interleave(self.groups, dim=1), self.v.repeat_interleave(self.groups, dim=1)


@dataclass(frozen=True, eq=False)
class Plan:
    """How a backend runs a call; made from shapes, kinds and settings alone. Nothing is computed until it runs."""

    run: Callable[[Request], Tensor]  # (B, H, Lq, Dv)
    not_deterministic: str | None = None  # why two runs may give different bits
    kernels: Any = None  # those that the backend chose, if it has several


def checked(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    bias: Bias | Tensor | None,
    value_bias: ValueBias | None,
    mask: Tensor | None,
    causal: bool,
    lengths: Tensor | None,
    documents: Documents | None,
    scale: float | None,
    dropout: float,
    qkv: Tensor | None = None,
) -> Request:
    """The one place where arguments are checked; backends trust what they get."""
    q, k, v = _autocast(q, k, v)
    _check_qkv(q, k, v)
    if isinstance(bias, Tensor):
        bias = Dense(bias)
    if bias is not None and not isinstance(bias, Bias):
        hint = "Pass it as value_bias=." if isinstance(bias, ValueBias) else "Use one of headway.bias, or a 4-D tensor."
        raise TypeError(f"bias: expected a score bias, got {type(bias).__name__}. {hint}")
    if value_bias is not None and not isinstance(value_bias, ValueBias):
        raise TypeError(
            f"value_bias: expected RelativeValues, EdgeValues or their sum, got {type(value_bias).__name__}. "
            f"Pass score biases as bias=."
        )
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout: expected a probability of at least 0 and below 1, got {dropout}.")
    if scale is None:
        scale = q.shape[-1] ** -0.5
    elif isinstance(scale, Tensor):
        raise TypeError("scale: expected a number, got a tensor. Multiply q by a learned scale instead.")
    elif not math.isfinite(scale):
        raise ValueError(f"scale: expected a finite number, got {scale}.")
    return Request(
        q=q,
        k=k,
        v=v,
        bias=None if bias is None else _fitted("bias", bias, q, k, q.shape[-1]),
        value_bias=None if value_bias is None else _fitted("value_bias", value_bias, q, k, v.shape[-1]),
        masking=_masking(q, k, mask, causal, lengths, documents),
        scale=float(scale),
        dropout=float(dropout),
        qkv=qkv if qkv is not None and qkv.dtype == q.dtype else None,  # else autocast made copies
    )


def _autocast(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    dtype = autocast_dtype(q.device.type) if all(isinstance(t, Tensor) for t in (q, k, v)) else None
    if dtype is None:
        return q, k, v
    # As torch's own attention does: float32 is lowered, float64 is left alone.
    lowered = [t.to(dtype) if t.dtype in (torch.float32, torch.float16, torch.bfloat16) else t for t in (q, k, v)]
    return lowered[0], lowered[1], lowered[2]


def _check_qkv(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, t in (("q", q), ("k", k), ("v", v)):
        if not isinstance(t, Tensor):
            raise TypeError(f"{name}: expected a tensor (B, H, L, D), got {type(t).__name__}.")
        if t.dim() != 4:
            raise ValueError(
                f"{name}: expected 4 axes (B, H, L, D), got {t.dim()} in shape {tuple(t.shape)}. "
                f"Split the heads first: x.unflatten(-1, (H, D)).transpose(1, 2)."
            )
        if 0 in t.shape:
            raise ValueError(
                f"{name}: expected no empty axis in (B, H, L, D), got {tuple(t.shape)}. "
                f"Leave empty sequences out of the batch, or give them lengths of 0."
            )
        if not t.is_floating_point():
            raise TypeError(f"{name}: expected a floating dtype, got {dtype_name(t.dtype)}.")
        if t.dtype != q.dtype:
            raise TypeError(f"{name}: expected {dtype_name(q.dtype)} (from q), got {dtype_name(t.dtype)}.")
        if t.device != q.device:
            raise ValueError(f"{name}: expected device {q.device} (from q), got {t.device}. Move it with .to().")
        if t.shape[0] != q.shape[0]:
            raise ValueError(f"{name}: expected batch size {q.shape[0]} (from q), got {t.shape[0]}.")
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"k: expected head width {q.shape[-1]} (from q), got {k.shape[-1]}.")
    if k.shape[1:3] != v.shape[1:3]:
        raise ValueError(f"v: expected heads and length {tuple(k.shape[1:3])} (from k), got {tuple(v.shape[1:3])}.")
    if q.shape[1] % k.shape[1] != 0:
        raise ValueError(
            f"k: expected a number of heads that divides {q.shape[1]} (from q), got {k.shape[1]}. "
            f"Each key/value head serves the same number of query heads."
        )


def _fitted(name: str, part: S, q: Tensor, k: Tensor, width: int) -> S:
    batch, heads, q_len, k_len = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
    for axis, own, asked in (("batch size", part.batch, batch), ("heads", part.heads, heads)):
        if own != 1 and own != asked:  # not `in`, which torch.compile gets wrong with a symbolic size
            raise ValueError(f"{name}: expected {axis} {asked} (from q) or 1, got {own} from {part!r}.")
    for term in part.terms:
        table = term.tensors.get("table")
        if "Segment" not in type(term).__name__ and table is not None and table.shape[-1] != width:
            raise ValueError(f"{name}: expected vectors of width {width}, got {table.shape[-1]} from {term!r}.")
        for tensor_name, tensor in term.tensors.items():
            if tensor.device != q.device:
                raise ValueError(
                    f"{name}: expected device {q.device} (from q), got {tensor.device} from "
                    f"{type(term).__name__}.{tensor_name}. Move it with .to()."
                )
    bound = part.bind(q_len, k_len)
    # Reading values is cheap on the CPU; on a GPU it would wait for the device, so it is asked for by anomaly mode.
    # So would it under torch.func, where a value may stand for many.
    readable = not torch.compiler.is_compiling() and not is_transformed()
    if readable and (q.device.type == "cpu" or torch.is_anomaly_enabled()):
        bound.check_values()
    return bound


def _masking(
    q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, lengths: Tensor | None, documents: Documents | None
) -> Masking:
    batch, heads, q_len, k_len = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
    if not isinstance(causal, bool):
        raise TypeError(f"causal: expected True or False, got {type(causal).__name__}. Pass a mask as mask=.")
    if mask is not None:
        _check_mask(mask, (batch, heads, q_len, k_len), q.device)
    if lengths is not None:
        check_lengths(lengths, batch, k_len, q.device)
    q_documents, k_documents = _documents(documents, batch, q_len, k_len, q.device)
    return Masking(
        q_len=q_len,
        k_len=k_len,
        causal=causal,
        mask=mask,
        lengths=lengths,
        q_documents=q_documents,
        k_documents=k_documents,
    )


def _check_mask(mask: Tensor, shape: tuple[int, int, int, int], device: torch.device) -> None:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = dtype_name(mask.dtype) if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(
            f"mask: expected a boolean tensor, True = may attend, got {got}. "
            f"Compare to make it boolean (mask > 0); an additive matrix is a bias: bias=headway.Dense(matrix)."
        )
    fits = mask.dim() == 4 and all(own == 1 or own == asked for own, asked in zip(mask.shape, shape, strict=True))
    if not fits or mask.shape[3] != shape[3]:
        raise ValueError(
            f"mask: expected (B|1, H|1, Lq|1, Lk) = {shape}, got {tuple(mask.shape)}. "
            f"A key padding mask (B, Lk) becomes mask[:, None, None, :]."
        )
    if mask.device != device:
        raise ValueError(f"mask: expected device {device} (from q), got {mask.device}. Move it with .to().")


def check_lengths(lengths: Tensor, batch: int, k_len: int, device: torch.device | None = None) -> None:
    """Raise unless lengths are one of 0 to `k_len` for each sequence, on the device if one is named."""
    if not isinstance(lengths, Tensor) or lengths.dtype not in IDS:
        got = dtype_name(lengths.dtype) if isinstance(lengths, Tensor) else type(lengths).__name__
        raise TypeError(f"lengths: expected an integer tensor (B,), got {got}. Make it one of torch.long.")
    if tuple(lengths.shape) != (batch,):
        raise ValueError(f"lengths: expected one length per sequence, ({batch},), got {tuple(lengths.shape)}.")
    if device is not None and lengths.device != device:
        raise ValueError(f"lengths: expected device {device} (from q), got {lengths.device}. Move it with .to().")
    if may_read(lengths):
        low, high = int(lengths.min()), int(lengths.max())
        if low < 0 or high > k_len:
            raise ValueError(f"lengths: expected 0 to {k_len} (key length from k), got {low} to {high}.")


def _documents(
    documents: Documents | None, batch: int, q_len: int, k_len: int, device: torch.device
) -> tuple[Tensor | None, Tensor | None]:
    if documents is None:
        return None, None
    if isinstance(documents, Tensor):
        if q_len != k_len:
            raise ValueError(
                f"documents: expected a pair (query ids, key ids) because Lq {q_len} and Lk {k_len} differ, "
                f"got one tensor."
            )
        documents = (documents, documents)
    if not isinstance(documents, tuple) or len(documents) != 2:
        raise TypeError(f"documents: expected ids (B, L) or a pair of them, got {type(documents).__name__}.")
    for ids, length in zip(documents, (q_len, k_len), strict=True):
        if not isinstance(ids, Tensor) or ids.dtype not in IDS:
            got = dtype_name(ids.dtype) if isinstance(ids, Tensor) else type(ids).__name__
            raise TypeError(f"documents: expected integer ids, got {got}. Make them torch.long.")
        if ids.dim() != 2 or (ids.shape[0] != 1 and ids.shape[0] != batch) or ids.shape[1] != length:
            raise ValueError(f"documents: expected ids ({batch}, {length}), got {tuple(ids.shape)}.")
        if ids.device != device:
            raise ValueError(f"documents: expected device {device} (from q), got {ids.device}. Move it with .to().")
    return documents
