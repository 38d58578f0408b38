"""A bias that many layers share, multiplied out once for all of them where the Hopper kernels would do it in each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from headway.attention.masking import Masking
from headway.attention.triton.layout import LOG2E
from headway.attention.triton.tables import Parts, balanced, bias_matrix, highest, of_parts, parts_of, summed
from headway.bias import Bias, Dense, LowRank, Toeplitz
from headway.running import TRITON_INSTALLED as INSTALLED
from headway.running import TRITON_INTERPRETED as INTERPRETED
from headway.running import carries_tangents, is_transformed


@dataclass(frozen=True, eq=False, repr=False)
class Multiplied(Dense):
    """A matrix, and what the kernels read of it. Autograd adds its gradients up before they become those of its parts.

    Paper:    none; the sum of the terms it was made of, as they are written
    Formula:  bias[0, h, i, j] = matrix[0, h, i, j]
    Symbols:  matrix, (1, H|1, Lq, Lk);  tables, see `Tables.fragments`
    Checked:  tests/unit/attention/test_multiplied.py, tests/gpu/test_multiplied.py
    """

    tables: tuple[Tensor, ...] = ()


def for_layers(
    bias: Bias | None, q_len: int, k_len: int, *, heads: int, width: int, dtype: torch.dtype, device: torch.device
) -> Bias | None:
    """The same bias in the form in which it costs several layers least, if nothing is added to it and there is no mask.

    Args:
        heads: of queries; width: of each; dtype: theirs; device: theirs.
    """
    if bias is None or bias.batch > 1 or not all(isinstance(term, Toeplitz | LowRank) for term in bias.terms):
        return bias
    if not INSTALLED or not (device.type == "cuda" or INTERPRETED) or is_transformed() or carries_tangents():
        return bias
    from headway.attention.triton import hopper
    from headway.attention.triton.matrices import matrix_tables

    if width != hopper.FULL_WIDTH:
        return bias
    one_tile = hopper.is_tile(q_len, k_len)
    ranked = any(isinstance(term, LowRank) for term in bias.terms)
    few = hopper.multiplies_out(heads, q_len, k_len)
    if not (hopper.takes_kind(dtype, width, device) and (one_tile or (ranked and few))):
        return bias
    parts = parts_of(bias.terms)
    matrix = multiplied_out(parts.values, parts.left, parts.right, q_len, k_len)
    columns = torch.is_grad_enabled() and not one_tile
    fixed = matrix.detach()
    peaks = highest(fixed, Masking(q_len=q_len, k_len=k_len))
    return Multiplied(matrix, tuple(matrix_tables(None, None, None, fixed, peaks, q_len, k_len, columns)))


@torch.library.custom_op("headway::multiplied_out", mutates_args=(), device_types=None)
def multiplied_out(
    values: Tensor | None,  # (1, H|1, Lq + Lk - 1), a Toeplitz bias
    left: Tensor | None,  # (1, H|1, Lq, R), a low-rank bias
    right: Tensor | None,  # (1, H|1, Lk, R)
    q_len: int,
    k_len: int,
) -> Tensor:  # (1, H|1, Lq, Lk), float32
    return bias_matrix(Parts(values, left, right), k_len, half=False)[None] / LOG2E


@torch.library.custom_op("headway::multiplied_out_backward", mutates_args=(), device_types=None)
def multiplied_out_backward(
    grad: Tensor, values: Tensor | None, left: Tensor | None, right: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:  # of values, left and right, empty where there are none
    q_len, k_len = grad.shape[2:]
    parts = Parts(values, left, right)
    found = of_parts(parts, (values is not None, left is not None, False), grad[0], torch.float32)
    if found.values is not None and q_len > k_len:
        found = found._replace(values=balanced(found.values, q_len, k_len))
    dvalues, dleft, dright = (
        grad.new_empty(0) if part is None or of_part is None else summed(of_part, part)
        for part, of_part in zip(parts[:3], found[:3], strict=True)
    )
    return dvalues, dleft, dright


@multiplied_out.register_fake
def _(values, left, right, q_len, k_len):  # type: ignore[no-untyped-def]
    parts = [part for part in (values, left, right) if part is not None]
    return parts[0].new_empty(1, max(part.shape[1] for part in parts), q_len, k_len, dtype=torch.float32)


@multiplied_out_backward.register_fake
def _(grad, *parts):  # type: ignore[no-untyped-def]
    return tuple(grad.new_empty(0) if t is None else t.new_empty(t.shape) for t in parts)


def _save(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs[:3])


def _differentiate(ctx, grad):  # type: ignore[no-untyped-def]
    parts = ctx.saved_tensors
    found = multiplied_out_backward(grad, *parts)
    return *(None if part is None else of_part for part, of_part in zip(parts, found, strict=True)), None, None


multiplied_out.register_autograd(_differentiate, setup_context=_save)
