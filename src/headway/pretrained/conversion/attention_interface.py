"""The attention of converted models, by the name that transformers finds it under.

What is added to the scores travels as a keyword argument from the model's call to its attention modules;
`headway.pretrained.fusing.interface` runs the attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import bidirectional_mask_function

from headway.bias import Bias, Dense, RelativeKeys
from headway.encodings import Encoding
from headway.pretrained.fusing.interface import padding_mask, run, whole_mask

NAME = "headway_converted"  # "headway" is that of models as they are (headway.pretrained.fusing)
ARGUMENT = "headway_pass"


@dataclass
class PassState:
    """What the layers share in one forward pass."""

    encoding: Encoding
    meets_keys: bool = False
    with_weights: bool = False
    calls: int = 0  # of attention so far: ALBERT's layers are one module, which cannot know which of them it is

    def bias(self, layer: int, q: Tensor, k: Tensor, scale: float) -> Bias | None:
        """Make the bias that a layer adds to the scores of its queries and keys."""
        bias = self.encoding.bias(layer, q.shape[-2], k.shape[-2])
        if self.meets_keys and bias is not None:
            bias = bias + bias_of_keys(bias, k, scale)
        return bias


def bias_of_keys(bias: Bias, k: Tensor, scale: float) -> Bias:
    """Make the bias scale * k[j] . table[j - i], which `relative_key_query` has beside that of the queries.

    It is the transpose of relative keys whose queries are k and whose table is reversed. No structured bias is a
    product with the keys: the whole matrix is made, B * H * Lq * Lk numbers a layer, and kept for the backward pass.
    """
    assert isinstance(bias, RelativeKeys)
    reversed_table = RelativeKeys(bias.table.flip(1), q_len=k.shape[-2], k_len=bias.q_len)
    return Dense(reversed_table.dense(k, scale=scale).transpose(-1, -2))


def attend(
    module: nn.Module,
    query: Tensor,  # (B, H, Lq, D)
    key: Tensor,  # (B, H, Lk, D)
    value: Tensor,  # (B, H, Lk, D)
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:  # (B, Lq, H, D), and the weights (B, H, Lq, Lk) if they were asked for
    """Compute the attention of one layer of a converted model."""
    state: PassState | None = kwargs.get(ARGUMENT)
    if state is None:
        raise ValueError(
            f"{type(module).__name__}: expected the bias of a converted model, got none. Call the model itself, not a "
            f"part of it; a model that was not converted cannot use attn_implementation={NAME!r}."
        )
    layer: int | None = getattr(module, "headway_layer", None)
    if layer is None:
        layer = state.calls
        state.calls += 1
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return run(
        query,
        key,
        value,
        bias=state.bias(layer, query, key, scale),
        mask=_check_boolean(attention_mask),
        is_causal=False,
        scale=scale,
        dropout=dropout,
        with_weights=state.with_weights,
    )


def key_mask(
    *,
    attention_mask: Tensor | None = None,  # (B, Lk)
    mask_function: Any = bidirectional_mask_function,
    **kwargs: Any,
) -> Tensor | None:  # boolean (B, 1, 1, Lk); (B, 1, Lq, Lk) for a mask that differs between queries
    """Return the padding mask as attention takes it, one row a sequence; None where no padding is to be seen."""
    if mask_function is not bidirectional_mask_function:
        return whole_mask(attention_mask=attention_mask, mask_function=mask_function, **kwargs)
    keep = padding_mask(attention_mask)
    return None if keep is None else keep[:, None, None, :]


def _check_boolean(mask: Tensor | None) -> Tensor | None:
    """Raise for a mask that is not boolean: a mask with four axes that a caller gives arrives here unchanged."""
    if mask is None or mask.dtype == torch.bool:
        return mask
    raise TypeError(
        f"attention_mask: expected (B, L), or boolean (B, 1, Lq, Lk), True = may attend, got {mask.dtype} of shape "
        f"{tuple(mask.shape)}. Compare to make it boolean (mask >= 0)."
    )


def register() -> None:
    """Register both functions under one name: without the second, transformers would leave masks out."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, key_mask)
