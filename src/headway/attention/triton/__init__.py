"""Fused GPU attention: learned biases inside the kernel, memory linear in n, exact and deterministic gradients.

This page decides which kernels run a call. There are six families (`Kernels`), and a call takes the first that has a
form for it (`FAMILIES`). How a call is then prepared for them stands in `prepare.py`, which kernels are launched in
`op.py` and `relative.py`.

A Toeplitz bias is read from shifted copies of its values, so that every load is aligned; its gradient is summed along
block diagonals over the whole batch before it is turned into offsets. A low-rank bias, and segments, are a second
product inside the tile. Relative keys are a few numbers per query, looked up near the diagonal and constant beyond.
Products with vectors of offsets are made for whole blocks of offsets, and rotated into the tile.
Where the whole score matrix is one tile, all that the batch shares is one small matrix; on Hopper also where a low-rank
bias has few enough scores (hopper.MOST_SCORES), else memory is linear in n.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from headway.attention.request import Plan, Request
from headway.attention.triton.description import Choice, Kernels, Reads, relative_terms
from headway.attention.triton.layout import whole_width
from headway.bias import (
    Dense,
    LowRank,
    RelativeKeys,
    RelativeProducts,
    RelativeValues,
    SegmentTable,
    Structured,
    Toeplitz,
)
from headway.running import TRITON_INSTALLED as INSTALLED
from headway.running import TRITON_INTERPRETED as INTERPRETED

__all__ = ["Choice", "plan"]

WIDEST, WIDEST_SINGLE = 256, 128  # vectors of offsets, together; in float32 tiles of wider ones have no room
KINDS = (Toeplitz, LowRank, SegmentTable, RelativeKeys, RelativeProducts, Dense)


def plan(request: Request) -> Plan | str:
    """Choose the kernels for a call, or say why there are none; nothing is computed before the plan runs."""
    reason = _refusal(request)
    if reason is not None:
        return reason
    call = Call.of(request)
    kernels, reads = next((kernels, reads) for kernels, form in FAMILIES if (reads := form(call)) is not None)
    if call.dense and not _takes_dense(call, kernels):
        return (
            "it takes Dense where the batch shares the bias and nothing in it meets the query or segments: for 16 "
            "to 128 queries and keys (in float32 64) of width up to 64, or on Hopper in half precision without "
            "a mask of queries, in training at width 64"
        )
    choice = _choice(call, kernels, reads)
    return Plan(partial(_run, choice), kernels=choice)


def _choice(call: Call, kernels: Kernels, reads: Reads) -> Choice:
    if kernels not in (Kernels.HOPPER_TILE, Kernels.HOPPER):
        return Choice(kernels, reads, call.padded, None)
    width = call.hopper_width
    return Choice(kernels, reads, not width == call.request.q.shape[3] == call.request.v.shape[3], width)


def _run(choice: Choice, request: Request) -> Tensor:
    from headway.attention.triton import prepare

    return prepare.run(request, choice)


def _refusal(request: Request) -> str | None:
    """Return the reason why none of the kernels can run the call, as far as they agree, or None."""
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
        if not isinstance(term, KINDS):
            return f"it has no kernel for {type(term).__name__}"
    for term in () if request.value_bias is None else request.value_bias.terms:
        if not isinstance(term, RelativeValues):
            return f"it has no kernel for {type(term).__name__}"
    if len({term.q_start for terms in relative_terms(request) for term in terms}) > 1:
        return "its kernels take relative keys and values of one q_start"
    return _refused_products(request)


def _refused_products(request: Request) -> str | None:
    """Return the reason why the kernels for products with vectors of offsets do not take what is beside them."""
    terms = () if request.bias is None else request.bias.terms
    found = [term for term in terms if isinstance(term, RelativeProducts)]
    if not found:
        return None
    if request.value_bias is not None or any(isinstance(term, Dense) for term in terms):
        return "it takes RelativeProducts without Dense and RelativeValues beside them"
    for of_keys in (False, True):
        width = sum(term.vectors.shape[-1] for term in found if term.of_keys == of_keys)
        if not of_keys:
            width += sum(term.table.shape[-1] for term in terms if isinstance(term, RelativeKeys))
        if width > WIDEST:
            return f"it takes RelativeProducts of up to {WIDEST} columns together, and got {width}"
        widest = max(width, request.q.shape[-1], request.v.shape[-1])
        if request.q.dtype == torch.float32 and widest > WIDEST_SINGLE:
            return f"in float32 it takes RelativeProducts of widths up to {WIDEST_SINGLE}, and got {widest}"
    return None


class Call(NamedTuple):
    """What the choice of kernels looks at."""

    request: Request
    terms: list[Structured]  # of the bias, without relative keys
    relatives: list[RelativeKeys | RelativeValues]
    heads: int
    q_len: int
    k_len: int
    width: int  # of q and k, as kernels see it
    v_width: int
    shared: bool  # whether all sequences have the same bias
    dense: bool  # whether there is a dense term
    ranks: list[int]  # of low-rank terms, and of segments

    @classmethod
    def of(cls, request: Request) -> Call:
        every = () if request.bias is None else request.bias.terms
        terms = [term for term in every if not isinstance(term, RelativeKeys)]
        keys, values = relative_terms(request)
        ranks = [term.left.shape[-1] for term in terms if isinstance(term, LowRank)]
        ranks += [term.num_segments for term in terms if isinstance(term, SegmentTable)]
        return cls(
            request, terms, [*keys, *values], request.q.shape[1], request.q.shape[2], request.k.shape[2],
            whole_width(request.q.shape[3]), whole_width(request.v.shape[3]), all(term.batch == 1 for term in terms),
            any(isinstance(term, Dense) for term in terms), ranks,
        )  # fmt: skip

    @property
    def hopper_width(self) -> int | None:
        """Return the width to which heads are padded for Hopper's kernels; None: they are too wide."""
        from headway.attention.triton import hopper

        return hopper.whole_width(self.request.q.shape[3])

    @property
    def padded(self) -> bool:
        return self.width != self.request.q.shape[3] or self.v_width != self.request.v.shape[3]


def _products(call: Call) -> Reads | None:
    """Products with vectors of offsets, beside whatever is not refused."""
    return Reads.PARTS if any(isinstance(term, RelativeProducts) for term in call.terms) else None


def _relative(call: Call) -> Reads | None:
    """Relative keys and values with nothing beside them, up to some reach, of unpadded heads of width 64 on Hopper."""
    from headway.attention.triton import hopper, relative

    request = call.request
    takes = (
        len(call.relatives) > 0
        and not call.terms
        and request.masking.q_documents is None
        and _on_hopper(call)
        and call.request.q.shape[3] == hopper.FULL_WIDTH
        and max(term.clip for term in call.relatives) <= relative.LONGEST_REACH
        and (call.k_len >= relative.FEWEST_KEYS or not request.needs_grad)
        and request.scale > 0  # which keeps a masked score lowest
    )
    return Reads.PLACES if takes else None


def _hopper_segments(call: Call) -> Reads | None:
    """One table of two segments, perhaps beside Toeplitz terms that the batch shares."""
    found = [term for term in call.terms if isinstance(term, SegmentTable)]
    others = [term for term in call.terms if not isinstance(term, SegmentTable)]
    takes = (
        len(found) == 1
        and found[0].num_segments == 2
        and all(isinstance(term, Toeplitz) and term.batch == 1 for term in others)
        and not call.relatives
        and _on_hopper(call)
    )
    return Reads.SEGMENTS if takes else None


def _hopper_tile(call: Call) -> Reads | None:
    """A bias that the batch shares, as a matrix, where all scores of a head are one tile, of width 64."""
    from headway.attention.triton import hopper

    one_text = call.request.masking.q_documents is None
    shared = one_text and _hopper_shared(call) is not None and call.hopper_width == hopper.FULL_WIDTH
    takes = shared and hopper.is_tile(call.q_len, call.k_len)
    return _as_matrix(call) if takes else None


def _one_tile(call: Call) -> Reads | None:
    """The same on other GPUs, with every mask."""
    takes = not call.relatives and call.shared and _fits_one_tile(call)
    return _as_matrix(call) if takes else None


def _hopper(call: Call) -> Reads | None:
    """A bias that the batch shares. Factors are read in inference only, and their product joins that of q and k."""
    reads = _hopper_shared(call)
    trains = call.request.needs_grad or call.request.scale == 0
    return None if reads is Reads.FACTORS and trains else reads


def _general(call: Call) -> Reads:
    return Reads.PARTS


def _on_hopper(call: Call) -> bool:
    """Whether the Hopper kernels are for such heads and masks. What they take is listed in `hopper.py`."""
    from headway.attention.triton import hopper

    q = call.request.q
    v_width = call.request.v.shape[3]
    return hopper.takes_masks(call.request.masking) and hopper.takes(q.dtype, q.shape[3], v_width, q.device)


def _hopper_shared(call: Call) -> Reads | None:
    """How Hopper's kernels for a bias that the batch shares read it at any length, if they take the call."""
    from headway.attention.triton import hopper

    if call.relatives or not call.shared or not _on_hopper(call):
        return None
    few = call.ranks and hopper.multiplies_out(call.heads, call.q_len, call.k_len)
    if call.hopper_width == hopper.FULL_WIDTH or not call.request.needs_grad:
        if call.dense or few:
            return Reads.MATRIX
    elif call.dense:
        return None
    if call.ranks:
        return Reads.FACTORS if sum(call.ranks) <= hopper.MOST_RANK else None
    return Reads.TABLE if call.terms else Reads.NOTHING


def _as_matrix(call: Call) -> Reads:
    return Reads.MATRIX if call.terms else Reads.NOTHING


def _fits_one_tile(call: Call) -> bool:
    from headway.attention.triton import short

    return short.fits(call.request.q.dtype, call.q_len, call.k_len, call.width, call.v_width)


def _takes_dense(call: Call, kernels: Kernels) -> bool:
    """Whether kernels that were chosen for a call with a dense term take it; padded heads are not measured."""
    plain = not any(isinstance(term, SegmentTable) for term in call.terms)
    width = call.request.q.shape[3]
    unpadded = width == call.request.v.shape[3] == call.hopper_width
    return kernels is not Kernels.GENERAL and plain and (_fits_one_tile(call) or unpadded)


# In which form kernels read the bias of a call; None: they do not take it. The first that take a call run it.
FAMILIES: tuple[tuple[Kernels, Callable[[Call], Reads | None]], ...] = (
    (Kernels.PRODUCTS, _products),
    (Kernels.RELATIVE, _relative),
    (Kernels.HOPPER, _hopper_segments),
    (Kernels.HOPPER_TILE, _hopper_tile),
    (Kernels.ONE_TILE, _one_tile),
    (Kernels.HOPPER, _hopper),
    (Kernels.GENERAL, _general),
)
