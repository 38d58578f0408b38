"""The model that pretraining starts from: its weights, and the check that tokenizer and text fit it."""

from __future__ import annotations

import copy
from typing import Any

from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

import headway.pretrained.conversion  # noqa: F401  registers converted models with transformers
from headway.bench.tasks.pretrain.config import Start
from headway.encodings import EncodingChoice
from headway.models import EncoderForMaskedLM
from headway.pretrained.analysis.loading import load_masked_words, load_tokenizer
from headway.pretrained.conversion.converted import Converted, max_length_of


def load_start(start: Start, tokenizer: PreTrainedTokenizerFast, length: int) -> PreTrainedModel:
    """Load the model to start from; raise if tokenizer or length do not fit it."""
    assert start.model is not None
    model: PreTrainedModel = load_masked_words(start.model, revision=start.revision)
    own = load_tokenizer(start.model, revision=start.revision)
    if own.get_vocab() != tokenizer.get_vocab():
        raise ValueError(
            f"data: expected text cut by the tokenizer of {start.model}, got text of another, so that the ids would "
            f"stand for other words. Leave --data out, or give data that were made with --tokenizer {start.model}."
        )
    if start.encoding is not None:
        model = with_encoding(model, start.encoding)
    limit = _limit(model)
    if limit is not None and length > limit:
        raise ValueError(f"length: expected at most {limit} (the positions of {start.model}), got {length}.")
    return model


def with_encoding(model: Any, encoding: str) -> EncoderForMaskedLM:
    """Return a copy of one of headway's encoders whose encoding has other options and the same parameters.

    Segments stay as they are unless `encoding` says otherwise.
    """
    if not isinstance(model, EncoderForMaskedLM):
        raise ValueError(
            f"encoding: expected one of headway's encoders to give other options to, got a {type(model).__name__}. "
            f"`headway convert` gives other models other positions."
        )
    config = copy.deepcopy(model.config)
    was, asked = EncodingChoice.parse(config.encoding), EncodingChoice.parse(encoding)
    config.encoding = str(asked if asked.segments else asked.with_segments(was.segments, was.segment_sharing))
    changed = EncoderForMaskedLM(config)
    try:
        changed.load_state_dict(model.state_dict())
    except RuntimeError as error:
        raise ValueError(
            f"encoding: expected {was} with options that leave its parameters as they are, got {encoding}. "
            f"`headway convert` gives a model other positions."
        ) from error
    return changed


def _limit(model: Any) -> int | None:
    """Return the number of positions of a model, headway's, converted or transformers' own; None for no limit."""
    if isinstance(model, EncoderForMaskedLM | Converted):
        return max_length_of(model)
    for name, module in model.named_modules():
        if name.endswith(".position_embeddings") and isinstance(module, nn.Embedding):
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    return None
