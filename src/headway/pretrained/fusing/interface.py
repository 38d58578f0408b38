"""transformers' attention interface, answered by headway's attention, for models as they are.

transformers calls, by the name in `config._attn_implementation`, one function for the mask and one for attention. The
mask function keeps a causal mask as what it is, so that no (Lq, Lk) matrix is made: it returns None where nothing is
padding, (B, Lk) for padding in causal order, (B, 1, 1, Lk) for padding in any order, and (B, 1, Lq, Lk) for all else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, eager_mask, sdpa_mask

from headway.attention.call import attention
from headway.attention.eager import weighted
from headway.attention.request import checked
from headway.bias import Bias, Dense, LowRank
from headway.pretrained.fusing.family import ADDED, BY_NAME, FUSED, MASKED, Fused
from headway.running import may_read

# Arguments that change the scores or the cache in ways that headway's attention does not have.
UNSUPPORTED = ("softcap", "s_aux", "cache", "head_mask", "block_mask")


class Call(NamedTuple):
    """What headway's attention is given by one attention module."""

    q: Tensor  # (B, H, Lq, D)
    k: Tensor  # (B, Hk, Lk, D)
    bias: Bias | None
    mask: Tensor | None  # boolean, (B|1, H|1, Lq|1, Lk)
    causal: bool
    scale: float


_RECORDS: list[list[Call]] = []  # of `recording`, the innermost last


@contextmanager
def recording() -> Iterator[list[Call]]:
    """Record what fused models give attention, in a list that grows while they run."""
    calls: list[Call] = []
    _RECORDS.append(calls)
    try:
        yield calls
    finally:
        _RECORDS.pop()


def mask_by_name(*, config: Any = None, **kwargs: Any) -> Tensor | None:
    """Return the mask of `mask_of_call` for a model that was not fused; refuse one that computes attention itself."""
    if config is not None and not goes_through_interface(type(config).__module__):
        raise NotImplementedError(
            f"attn_implementation: {BY_NAME!r} cannot reach {config.model_type}, which computes attention itself and "
            f"would misread the mask. Load it without; headway.fuse takes the families that docs/fuse.md names."
        )
    found = mask_of_call(config=config, **kwargs)
    is_causal = kwargs.get("mask_function", causal_mask_function) is causal_mask_function
    if found is None and is_causal and config is not None and config.model_type == "umt5":
        # In transformers 5.17 its decoder says that it is not causal, so that the mask has to say so.
        return torch.ones(kwargs["batch_size"], kwargs["kv_length"], dtype=torch.bool, device=kwargs.get("device"))
    return found


def goes_through_interface(configuration: str) -> bool:
    """Whether the models beside a file of transformers with this configuration go through the attention interface."""
    modeling = configuration.replace(".configuration_", ".modeling_")
    file, name = sys.modules.get(modeling), modeling.rpartition(".")[2]
    for kind in [] if file is None else list(vars(file).values()):
        if isinstance(kind, type) and issubclass(kind, PreTrainedModel) and kind.__module__.endswith(f".{name}"):
            found: Any = kind
            return bool(found._can_set_attn_implementation())
    return True  # it is no file of transformers: nothing is known


goes_through_interface._dynamo_marked_constant = True  # type: ignore[attr-defined]  # see `scale_of` in deberta.py


def mask_of_call(
    *,
    attention_mask: Tensor | None = None,  # (B, Lk), True = a token
    mask_function: Any = causal_mask_function,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    **kwargs: Any,
) -> Tensor | None:
    """Return a mask in the smallest form that attention needs; the module's docstring lists the forms."""
    q_len, k_len = kwargs.get("q_length"), kwargs.get("kv_length")
    q_start, k_start = kwargs.get("q_offset", 0), kwargs.get("kv_offset", 0)
    padding_fits = attention_mask is None or attention_mask.shape[-1] == k_len
    if mask_function is bidirectional_mask_function and allow_is_bidirectional_skip and padding_fits:
        keep = padding_mask(attention_mask)
        return None if keep is None else keep[:, None, None, :]
    # A static cache gives the offset as a tensor, and more keys than there are tokens.
    known = q_len is not None and k_len is not None and not isinstance(q_start, Tensor)
    ends_meet = known and k_start == 0 and q_start + q_len == k_len
    if mask_function is causal_mask_function and allow_is_causal_skip and ends_meet and padding_fits:
        return padding_mask(attention_mask)
    return whole_mask(attention_mask=attention_mask, mask_function=mask_function, **kwargs)


def whole_mask(**kwargs: Any) -> Tensor | None:  # boolean (B, 1, Lq, Lk)
    """Return the mask of every query and key, as transformers makes it."""
    whole: Tensor | None = sdpa_mask(**{**kwargs, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})
    return whole


def mask_always(**kwargs: Any) -> Tensor:
    """Return the mask of `mask_of_call`, and one that lets everything pass in place of None."""
    found = mask_of_call(**{**kwargs, "allow_is_causal_skip": True})
    if found is None:
        found = torch.ones(kwargs["batch_size"], kwargs["kv_length"], dtype=torch.bool, device=kwargs.get("device"))
    return found


def padding_mask(attention_mask: Tensor | None) -> Tensor | None:  # boolean (B, Lk)
    """Return which keys are tokens; None where nothing is padding, if that can be read without waiting."""
    if attention_mask is None:
        return None
    keep = attention_mask.bool()
    return None if may_read(keep) and bool(keep.all()) else keep


def attend(
    module: nn.Module,
    query: Tensor,  # (B, H, Lq, D)
    key: Tensor,  # (B, Hk, Lk, D)
    value: Tensor,  # (B, Hk, Lk, D)
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:  # (B, Lq, H, D), and the weights (B, H, Lq, Lk) if they were asked for
    """Compute the attention of one layer; transformers calls this function."""
    for name in UNSUPPORTED:
        if kwargs.get(name) is not None:
            raise NotImplementedError(
                f"{type(module).__name__}: {name} is not supported by attn_implementation={BY_NAME!r}. "
                f"Use 'eager' for this model."
            )
    bias: Bias | None = None
    if isinstance(module, Fused):
        bias, attention_mask = module.bias_and_mask(position_bias, attention_mask, query, key)
    elif position_bias is not None:
        bias = Dense(position_bias)
    if is_causal is None:
        is_causal = getattr(module, "is_causal", None)
    if is_causal is None and attention_mask is None and query.shape[-2] > 1:
        raise NotImplementedError(
            f"{type(module).__name__}: it has no mask and does not say whether it is causal, which "
            f"attn_implementation={BY_NAME!r} must know. Use 'eager' for this model."
        )
    asked = kwargs.get("output_attentions", getattr(getattr(module, "config", None), "output_attentions", False))
    return run(
        query,
        key,
        value,
        bias=bias,
        mask=attention_mask,
        is_causal=bool(is_causal),
        scale=scaling,
        dropout=dropout if module.training else 0.0,
        with_weights=bool(asked),
    )


def run(
    q: Tensor,  # (B, H, Lq, D)
    k: Tensor,  # (B, Hk, Lk, D)
    v: Tensor,  # (B, Hk, Lk, D)
    *,
    bias: Bias | None,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
    dropout: float,
    with_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:  # (B, Lq, H, D), and the weights (B, H, Lq, Lk) if they were asked for
    """Run headway's attention with a mask of `mask_of_call`, or one that the model's caller gave."""
    causal = False
    if mask is None:
        causal = is_causal and q.shape[-2] > 1
    elif mask.dim() == 2:
        causal = q.shape[-2] > 1
        mask = None if may_read(mask) and bool(mask.all()) else mask[:, None, None, :]
    elif mask.dtype != torch.bool:
        mask, added = allowed_and_added(mask, q.shape[-2])
        bias = added + bias
    for calls in _RECORDS:
        calls.append(Call(q, k, bias, mask, causal, q.shape[-1] ** -0.5 if scale is None else scale))
    lengths = None if mask is None else lengths_of(mask, q.shape[0])
    arguments: dict[str, Any] = {
        "bias": bias,
        "value_bias": None,
        "mask": mask if lengths is None else None,
        "causal": causal,
        "lengths": lengths,
        "documents": None,
        "scale": scale,
        "dropout": dropout,
    }
    weights = None
    if with_weights:
        mixed, weights = weighted(checked(q, k, v, **arguments))
    else:
        mixed = attention(q, k, v, **arguments)
    return mixed.transpose(1, 2), weights


def lengths_of(
    mask: Tensor,  # boolean (B|1, H|1, Lq|1, Lk)
    batch: int,
) -> Tensor | None:  # (B,)
    """Return the number of keys of each sequence if the mask is padding on the right, on a CPU; otherwise None.

    With lengths in place of a mask, the padding is left out of the work. On a GPU to ask would wait for the device.
    """
    if mask.shape[1:3] != (1, 1) or not may_read(mask):
        return None
    keep = mask[:, 0, 0]
    lengths = keep.sum(-1)
    is_right = torch.equal(keep, torch.arange(keep.shape[1]) < lengths[:, None])
    return lengths.expand(batch) if is_right else None


def with_mean_of_values(
    mixed: Tensor,  # (B, Lq, H, D)
    weights: Tensor | None,  # (B, H, Lq, Lk)
    v: Tensor,  # (B, H, Lk, D)
    nothing: Tensor,  # boolean (B|1, 1, Lq|1, 1), True for a query that may attend to nothing
) -> tuple[Tensor, Tensor | None]:
    """Give queries that may attend to nothing the mean of all values, as eager attention does, without a gradient."""
    if may_read(nothing) and not bool(nothing.any()):
        return mixed, weights
    mixed = torch.where(nothing.transpose(1, 2), v.mean(2)[:, None], mixed)
    return mixed, None if weights is None else torch.where(nothing, 1 / v.shape[2], weights)


def split_heads(
    x: Tensor,  # (B, L, H * D)
    heads: int,
) -> Tensor:  # (B, H, L, D)
    """Split the last axis into heads."""
    return x.view(*x.shape[:-1], heads, -1).transpose(1, 2)


def allowed_and_added(
    mask: Tensor,  # (B|1, H|1, Lq|1, Lk), added to the scores
    q_len: int,
) -> tuple[Tensor, Bias]:
    """Split a matrix that is added to the scores: where it is as low as a number can be, nothing may attend."""
    allowed = mask > torch.finfo(mask.dtype).min
    added = mask.masked_fill(~allowed, 0.0)
    if added.shape[2] == 1:  # the same for every query
        return allowed, LowRank(added.new_ones(*added.shape[:2], q_len, 1), added.transpose(2, 3))
    return allowed, Dense(added)


def register() -> None:
    """Register attention and a mask function under each name: without a second one, masks would be left out."""
    masks = {BY_NAME: mask_by_name, FUSED: mask_of_call, MASKED: mask_always, ADDED: eager_mask}
    for name, mask in masks.items():
        AttentionInterface.register(name, attend)
        AttentionMaskInterface.register(name, mask)
