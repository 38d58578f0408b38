"""Encoders with a head: for masked words, for classes or numbers, and for spans of text."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import MaskedLMOutput, QuestionAnsweringModelOutput, SequenceClassifierOutput
from transformers.utils import can_return_tuple

from headway.bias.checks import check_ids, check_integer
from headway.models.config import EncoderConfig
from headway.models.encoder import EncoderModel, EncoderPreTrainedModel
from headway.models.losses import cross_entropy, span_loss, upcast
from headway.models.norm import LayerNorm
from headway.running import may_read


class MaskedLMHead(nn.Module):
    """A layer with GELU and LayerNorm, then the scores of all words by the word embeddings and a bias."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.transform = nn.Linear(config.hidden_size, config.hidden_size)
        self.norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, x: Tensor) -> Tensor:  # (..., E) to (..., vocabulary)
        x = self.norm(F.gelu(self.transform(x)))
        if x.device.type == "cuda":
            return aligned_linear(x, self.decoder)
        scores: Tensor = self.decoder(x)
        return scores


def aligned_linear(x: Tensor, linear: nn.Linear, multiple: int = 64) -> Tensor:  # (..., E) to (..., outputs)
    """Compute linear(x) with the weight zero-padded to a multiple of outputs, for the speed of tensor cores.

    They read and write at full speed only rows of a multiple of 16 bytes, which the scores of BERT's 30,522 words are
    not.
    """
    outputs = linear.weight.shape[0]
    spare = -outputs % multiple
    weight, bias = F.pad(linear.weight, (0, 0, 0, spare)), F.pad(linear.bias, (0, spare))
    return F.linear(x, weight, bias)[..., :outputs]


class EncoderForMaskedLM(EncoderPreTrainedModel):
    """The encoder with a head that predicts masked words; its output weight is that of the word embeddings."""

    _tied_weights_keys: ClassVar[dict[str, str]] = {"prediction.decoder.weight": "encoder.words.weight"}
    accepts_loss_kwargs = True  # tells transformers' Trainer that forward takes num_items_in_batch

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.encoder = EncoderModel(config, add_pooling_layer=False)
        self.prediction = MaskedLMHead(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        return self.prediction.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.prediction.decoder = new_embeddings

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        documents: Tensor | None = None,
        lengths: Tensor | None = None,
        labels: Tensor | None = None,
        masked_positions: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> MaskedLMOutput:
        """Compute the scores of all words at every position, (B, L, vocabulary), or at N masked ones, (N, vocabulary).

        Args:
            labels: (B, L) words to predict, -100 = none; (N,) with masked_positions. Without any label the loss is 0.
            masked_positions: (N,) indices into B * L. The scores are computed there only, which saves most of the
                head's time. With a fixed N, and label -100 in unused places, the model compiles once.
            num_items_in_batch: divisor of the summed loss in place of this batch's number of labels.
        The other arguments are those of `EncoderModel`.
        """
        output = self.encoder(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            documents=documents,
            lengths=lengths,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        x = output.last_hidden_state
        expected = tuple(x.shape[:2])
        if masked_positions is not None:
            expected = _check_positions(masked_positions, x.shape[0] * x.shape[1])
            x = x.flatten(0, 1).index_select(0, masked_positions)
        logits = self.prediction(x)
        loss = None
        if labels is not None:
            if tuple(labels.shape) != expected:
                given = "(B, L) of the input" if masked_positions is None else "masked_positions"
                raise ValueError(f"labels: expected {expected} (from {given}), got {tuple(labels.shape)}.")
            loss = cross_entropy(logits, labels, count=num_items_in_batch)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=output.hidden_states, attentions=output.attentions
        )


def _check_positions(masked_positions: Tensor, places: int) -> tuple[int, ...]:
    if masked_positions.dim() != 1:
        raise ValueError(
            f"masked_positions: expected (N,) indices into B * L, got {tuple(masked_positions.shape)}. "
            f"From a mask (B, L), compute mask.flatten().nonzero()[:, 0]."
        )
    check_integer("masked_positions", masked_positions)
    if may_read(masked_positions) and masked_positions.numel():
        check_ids("masked_positions", masked_positions, places, "B * L")
    return tuple(masked_positions.shape)


class EncoderForSequenceClassification(EncoderPreTrainedModel):
    """The encoder with a classifier, for classes, for several labels at once, or for numbers (`problem_type`)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        if config.num_labels < 1:
            raise ValueError(f"num_labels: expected at least 1 (1 is a number to predict), got {config.num_labels}.")
        self.num_labels = config.num_labels
        self.encoder = EncoderModel(config)
        dropout = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        lengths: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> SequenceClassifierOutput:
        """Compute scores, (B, num_labels), of one text or pair in each row; packed texts are not supported.

        Args:
            labels: (B,) classes, -100 = none; (B, num_labels) zeros and ones for several labels at once; numbers for
                regression. Where the configuration has no `problem_type`, the first labels decide, as in transformers.
        The other arguments are those of `EncoderModel`.
        """
        output = self.encoder(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            lengths=lengths,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        logits = self.classifier(self.dropout(output.pooler_output))
        return SequenceClassifierOutput(
            loss=None if labels is None else self._loss(logits, labels),
            logits=logits,
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.config.problem_type is None:
            if self.num_labels == 1:
                self.config.problem_type = "regression"
            elif labels.dtype in (torch.long, torch.int):
                self.config.problem_type = "single_label_classification"
            else:
                self.config.problem_type = "multi_label_classification"
        if self.config.problem_type == "single_label_classification":
            return cross_entropy(logits, labels.flatten())
        logits = upcast(logits)
        if labels.numel() != logits.numel():
            raise ValueError(
                f"labels: expected {tuple(logits.shape)} for {self.config.problem_type}, got {tuple(labels.shape)}."
            )
        labels = labels.reshape(logits.shape).to(logits.dtype)
        loss = F.mse_loss if self.config.problem_type == "regression" else F.binary_cross_entropy_with_logits
        return loss(logits, labels)


class EncoderForQuestionAnswering(EncoderPreTrainedModel):
    """The encoder with two scores for each token: that an answer begins there, and that it ends there."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__(config)
        self.encoder = EncoderModel(config, add_pooling_layer=False)
        self.spans = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        lengths: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> QuestionAnsweringModelOutput:
        """Compute the scores of the first and the last token of an answer, (B, L) each; one question and text a row.

        Args:
            start_positions, end_positions: (B,) where the answer begins and ends; beyond the sequence = no answer here.
        The other arguments are those of `EncoderModel`.
        """
        if (start_positions is None) != (end_positions is None):
            raise ValueError("start_positions, end_positions: expected both or neither, got one of them.")
        output = self.encoder(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            lengths=lengths,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
            return_dict=True,
        )
        start, end = self.spans(output.last_hidden_state).unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = (span_loss(start, start_positions) + span_loss(end, end_positions)) / 2
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start.contiguous(),
            end_logits=end.contiguous(),
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )
