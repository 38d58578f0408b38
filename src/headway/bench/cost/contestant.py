"""A row of the table of costs: an encoding in one of our models, or transformers' own BERT."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from headway.bench.cost.theirs import TheirSettings
from headway.encodings.choice import EncodingChoice, read_value, split_choice
from headway.models import EncoderForMaskedLM, preset

TRANSFORMERS = "transformers"  # BertForMaskedLM with torch's attention, sdpa; options as in `TheirSettings`


@dataclass(frozen=True, slots=True)
class Contestant:
    """A row of the table, named by its text: an `EncodingChoice`, or "transformers" with options of `TheirSettings`."""

    text: str

    @property
    def theirs(self) -> bool:
        """Return whether the row is transformers' own model."""
        return self.name == TRANSFORMERS

    @property
    def name(self) -> str:
        """Return the encoding's name, or "transformers"."""
        return self.text.split(":")[0].strip()

    @property
    def choice(self) -> EncodingChoice:
        """Return the encoding of a row of ours."""
        return EncodingChoice.parse(self.text)

    @property
    def their_settings(self) -> TheirSettings:
        """Return the settings of a row of transformers."""
        _, options = split_choice(self.text)
        return TheirSettings.of({name: read_value(value) for name, value in options.items()})

    @property
    def at_masked_places(self) -> bool:
        """Return whether the scores of all words are computed at the masked places alone."""
        return not self.theirs or self.their_settings.head == "masked"

    @property
    def compiles(self) -> bool:
        """Return whether the model may be compiled, in a comparison that compiles models."""
        return not self.theirs or self.their_settings.compile

    @property
    def replays(self) -> bool:
        """Return whether steps may be replayed as CUDA graphs, in a comparison that replays them."""
        return not self.theirs or self.their_settings.graphs

    def segments(self, default: str) -> str:
        """Return where segments enter this row's model: none, input or per-head."""
        return "input" if self.theirs else self.choice.segments or default

    def check(self) -> None:
        """Raise where the name or an option is wrong."""
        if self.theirs:
            _ = self.their_settings
        else:
            preset("tiny", encoding=self.text)

    def build(self, model: str, *, length: int, dropout: float, segments: str) -> PreTrainedModel:
        """Build the model with its head for masked words."""
        sizes = preset(model)
        shared: dict[str, Any] = {
            "max_position_embeddings": max(length, sizes.max_position_embeddings),
            "hidden_dropout_prob": dropout,
            "attention_probs_dropout_prob": dropout,
        }
        if not self.theirs:
            choice = self.choice.with_segments(self.segments(segments), self.choice.segment_sharing)
            return EncoderForMaskedLM(preset(model, encoding=str(choice), **shared))
        for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
            shared[name] = getattr(sizes, name)
        return self.their_settings.build(shared)


def row_name(text: str) -> str:
    """Return the name of a row with options after commas; older results have "diet-abs:rank=64:sharing=layer"."""
    name, colon, options = text.partition(":")
    return name + colon + options.replace(":", ",")


def with_formula_attention(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy whose attention is the formula as written."""
    twin = copy.deepcopy(model)
    if isinstance(twin, EncoderForMaskedLM):
        twin.config.output_attentions = True  # the weights come from the plain formula
    else:
        twin.set_attn_implementation("eager")
        assert twin.config._attn_implementation == "eager"  # transformers only warns where it cannot set it
    return twin


@torch.no_grad()
def strengthen_weights(model: Any, length: int) -> None:
    """Draw weights with which attention and positions have an effect on the output.

    Initial weights are so small that attention is nearly an average and a bias nearly zero: a kernel that ignored
    either would still be nearly right, and the comparison with the formula would miss it. Here every layer's output is
    as large as its input, and the encoding's parameters are doubled until its bias changes the scores.
    """
    words = model.get_input_embeddings().weight
    for module in model.modules():
        if isinstance(module, nn.Linear) and module.weight is not words:
            module.weight.normal_(std=module.in_features**-0.5)
    if not isinstance(model, EncoderForMaskedLM):
        return
    encoding, config = model.encoder.encoding, model.config
    q = torch.randn(1, config.num_attention_heads, length, config.head_dim, device=model.device)
    while (bias := encoding.bias(0, length, length)) is not None:
        if bias.dense(q).std() >= 1 or not any(parameter.any() for parameter in encoding.parameters()):
            break
        for parameter in encoding.parameters():
            parameter.mul_(2)
