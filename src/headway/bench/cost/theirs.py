"""transformers' own BERT, as it comes and in its faster settings, with which our rows are compared.

Which setting is fastest depends on versions: in transformers 5.17 a model that is compiled or recorded as a CUDA graph
makes an attention mask of ones, and torch's fastest kernels take no mask; 5.22 makes none. So each setting is a row of
its own, and ratios are over the fastest (`CostTable.fastest_transformers`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import sdpa_kernel
from transformers import AttentionInterface, AttentionMaskInterface, BertConfig, BertForMaskedLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_outputs import MaskedLMOutput

from headway.attention.sdpa import CUDNN_FIRST

ALLOWED: dict[str, tuple[Any, ...]] = {
    "compile": (True, False),
    "graphs": (True, False),
    "mask": (True, False),
    "kernels": ("torch", "cudnn"),
    "head": ("all", "masked"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class TheirSettings:
    """How transformers' BERT is run.

    Args:
        compile, graphs: false leaves out torch.compile, or the replay as a CUDA graph, where other rows have it.
        mask: false never makes an attention mask, also where transformers makes one of ones.
        kernels: "torch" is torch's own choice of an attention kernel; "cudnn" prefers cuDNN's, which takes mask=false.
        head: "all" computes the scores of all words at every place, as BertForMaskedLM does; "masked" at the masked
            places alone, as our models do.
    """

    compile: bool = True
    graphs: bool = True
    mask: bool = True
    kernels: str = "torch"
    head: str = "all"

    def __post_init__(self) -> None:
        for field in fields(self):
            value, allowed = getattr(self, field.name), ALLOWED[field.name]
            if value not in allowed:
                names = ", ".join(str(each).lower() for each in allowed)
                raise ValueError(f"transformers: expected {field.name} to be one of {names}, got {value!r}.")
        if self.kernels == "cudnn" and self.mask:
            raise ValueError(
                "transformers: kernels=cudnn expects mask=false; cuDNN's kernels are wrong with some masks."
            )

    @classmethod
    def of(cls, options: dict[str, Any]) -> TheirSettings:
        """Return the settings that a row's text names."""
        if unknown := set(options) - set(ALLOWED):
            names = ", ".join(ALLOWED)
            raise ValueError(f"transformers: expected options among {names}, got {', '.join(sorted(unknown))}.")
        return cls(**options)

    @property
    def attention(self) -> str:
        """Return the name of its attention in transformers' registries."""
        if self.mask:
            return "sdpa"
        return "headway_no_mask_cudnn" if self.kernels == "cudnn" else "headway_no_mask"

    def build(self, sizes: dict[str, Any]) -> BertForMaskedLM:
        """Build the model; `sizes` are those of a BertConfig."""
        AttentionInterface.register("headway_no_mask", sdpa_attention_forward)
        AttentionInterface.register("headway_no_mask_cudnn", cudnn_attention_forward)
        for name in ("headway_no_mask", "headway_no_mask_cudnn"):
            AttentionMaskInterface.register(name, no_mask)
        model = BertForMaskedLM if self.head == "all" else BertAtMaskedPlaces
        return model(BertConfig(**sizes, attn_implementation=self.attention))


class BertAtMaskedPlaces(BertForMaskedLM):  # type: ignore[misc]
    """BertForMaskedLM whose head sees the masked places alone; parameters, encoder and loss are the same."""

    def forward(
        self,
        input_ids: Tensor,  # (B, L)
        masked_positions: Tensor,  # (N,) indices into B * L
        labels: Tensor,  # (N,)
        **given: Any,
    ) -> MaskedLMOutput:
        hidden = self.bert(input_ids, **given).last_hidden_state
        scores = self.cls(hidden.flatten(0, 1).index_select(0, masked_positions))  # (N, vocabulary)
        return MaskedLMOutput(loss=F.cross_entropy(scores, labels), logits=scores)


def no_mask(*args: Any, **given: Any) -> None:
    """Return no mask: the sequences have no padding."""


def cudnn_attention_forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **given: Any
) -> tuple[Tensor, None]:
    """Run transformers' SDPA attention with cuDNN's kernels preferred."""
    with sdpa_kernel(list(CUDNN_FIRST), set_priority=True):
        output: Tensor = sdpa_attention_forward(module, query, key, value, attention_mask, **given)[0]
    return output, None
