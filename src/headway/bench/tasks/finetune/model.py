"""A pretrained encoder, ours or any of transformers', with a new head and the loss of a task."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedModel,
)

import headway.pretrained.conversion  # noqa: F401  registers converted models
from headway.bench.data.text.tokenizers import highest_id
from headway.bench.data.transfer.spec import TaskSpec
from headway.bench.tasks.finetune.config import FinetuneConfig, Start
from headway.bench.tasks.training.objective import Batch, Objective
from headway.models import EncoderConfig
from headway.models.pretrained import quiet_transformers

PROBLEMS = {"classes": "single_label_classification", "number": "regression"}


class TransferLoss(Objective):
    """An encoder with its loss: cross-entropy for classes and for both ends of an answer, squared error for numbers.

    In evaluation it returns scores: (B, classes), (B, 1), or (B, L, 2) with minus infinity in the padding.
    """

    def __init__(self, model: PreTrainedModel, kind: str) -> None:
        super().__init__()
        self.model, self.kind = model, kind
        takes = inspect.signature(model.forward).parameters
        self.takes_lengths = "lengths" in takes
        config = model.config
        if isinstance(config, EncoderConfig):
            self.takes_segments = config.choice.segments != "none"
        else:
            self.takes_segments = "token_type_ids" in takes and getattr(config, "type_vocab_size", 0) > 1

    def count(self, batch: Batch) -> Tensor:
        return torch.tensor(len(batch["lengths"]))

    def forward(self, batch: Batch, count: Tensor) -> Tensor:
        scores = self.scores(batch)
        if not self.training:
            return scores
        labels = batch["labels"]
        if self.kind == "number":
            return F.mse_loss(scores[:, 0], labels, reduction="sum") / count
        if self.kind == "classes":
            return F.cross_entropy(scores, labels, reduction="sum") / count
        return F.cross_entropy(scores, labels, reduction="sum") / (
            2 * count
        )  # scores (B, L, 2), labels (B, 2): the classes are the L places

    def scores(self, batch: Batch) -> Tensor:
        """Return scores in float32. Encoders that take lengths get them, which is fastest; others get a mask."""
        ids, lengths = batch["input_ids"], batch["lengths"]
        inside = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        given: dict[str, Tensor] = {"lengths": lengths} if self.takes_lengths else {"attention_mask": inside.long()}
        if self.takes_segments:
            given["token_type_ids"] = batch["token_type_ids"]
        output = self.model(input_ids=ids, **given)
        if self.kind != "spans":
            logits: Tensor = output.logits
            return logits.float()
        scores = torch.stack([output.start_logits, output.end_logits], -1).float()
        return scores.masked_fill(~inside[..., None], -torch.inf)


def load_tokenizer(start: Start) -> Any:
    """Load the tokenizer; raise unless it pads, after the text."""
    source = start.tokenizer or start.model
    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        part = "model" if start.tokenizer is None else "tokenizer"
        raise ValueError(
            f"{part}: expected a folder with a tokenizer, or a name on the Hub, got {source!r}: {error}"
        ) from error
    if tokenizer.pad_token_id is None:
        raise ValueError(f"tokenizer: that of {source} has no padding token. Add one, and save the tokenizer there.")
    if tokenizer.padding_side != "right":
        raise NotImplementedError(
            f"tokenizer: expected one that pads after the text, got {source}, which pads before it. "
            f"Encoders that read their summary from the last token are not supported."
        )
    return tokenizer


def load_model(config: FinetuneConfig, tokenizer: Any, seed: int) -> PreTrainedModel:
    """Load the encoder with a head for the task; the seed draws the head, and segments that the checkpoint lacks.

    Weights are read from safetensors only. A checkpoint without any other tensor of the encoder is an error.
    """
    start, task = config.start, config.task_spec
    settings = AutoConfig.from_pretrained(start.model, **_head(task), **_segments(start, task))
    _check_length(settings, tokenizer, config.protocol.length)
    _check_words(settings, tokenizer)
    kind = AutoModelForQuestionAnswering if task.kind == "spans" else AutoModelForSequenceClassification
    torch.manual_seed(seed)
    with quiet_transformers():
        model, info = kind.from_pretrained(
            start.model,
            config=settings,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # a head of another task; anything else raises below
            output_loading_info=True,
            dtype=torch.float32,
        )
    body = f"{model.base_model_prefix}."
    lost = [
        name
        for name in sorted({*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])})
        if name.startswith(body) and "pooler" not in name and not name.startswith(f"{body}segments.")
    ]
    if lost:
        raise ValueError(
            f"model: {start.model} has no weights for {len(lost)} tensors of {type(model).__name__}, such as "
            f"{lost[0]}. Is it another kind of model?"
        )
    return model


def _head(task: TaskSpec) -> dict[str, Any]:
    if task.kind == "spans":
        return {}
    labels = task.labels or ("score",)
    return {
        "num_labels": len(labels),
        "id2label": dict(enumerate(labels)),
        "label2id": {label: number for number, label in enumerate(labels)},
        "problem_type": PROBLEMS[task.kind],
    }


def _segments(start: Start, task: TaskSpec) -> dict[str, Any]:
    """Return the encoding with the segments that pairs need; only our encoders can change theirs."""
    settings = AutoConfig.from_pretrained(start.model)
    if not isinstance(settings, EncoderConfig):
        if start.segments is not None:
            raise ValueError(
                f"segments: expected none given for {start.model}, a model of type {settings.model_type}, got "
                f"{start.segments!r}. Only encoders of this library can change theirs."
            )
        return {}
    if not task.pair:
        return {}
    if start.segments is None and settings.choice.segments != "none":
        return {}
    segments = start.segments or settings.pair_segments
    sharing = start.segment_sharing or settings.choice.segment_sharing if segments == "per-head" else None
    sharing = settings.choice.sharing if sharing == "positions" else sharing
    return {"encoding": str(settings.choice.with_segments(segments, sharing))}


def _check_length(settings: Any, tokenizer: Any, length: int) -> None:
    most = min(tokenizer.model_max_length, position_limit(settings))
    if length > most:
        raise ValueError(f"length: the model has {most} positions, got {length}. Give --length {most} or less.")


def _check_words(settings: Any, tokenizer: Any) -> None:
    words = getattr(settings, "vocab_size", None)
    if words is not None and highest_id(tokenizer) >= words:
        raise ValueError(
            f"tokenizer: expected ids below {words} (from the model), got {highest_id(tokenizer)}. "
            f"Give the tokenizer the model was trained with."
        )


def position_limit(settings: Any) -> int:
    """Return the number of tokens of the longest text that a model of this configuration has positions for."""
    if isinstance(settings, EncoderConfig) and settings.attention != "linformer" and settings.build()[0].extends:
        return 1 << 30
    return getattr(settings, "max_position_embeddings", None) or 1 << 30
