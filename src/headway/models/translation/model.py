"""The translation model: encoder, decoder and output projection, as a transformers model."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import DynamicCache, EncoderDecoderCache, GenerationMixin
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput
from transformers.utils import can_return_tuple

from headway.encodings import Encoding
from headway.models.losses import IGNORED, label_count
from headway.models.pretrained import HeadwayPreTrainedModel
from headway.models.translation.config import TranslationConfig
from headway.models.translation.decoding import Decoding, Hypothesis
from headway.models.translation.layers import Linear
from headway.models.translation.losses import fused_cross_entropy, lookup_with_weight, smoothed_cross_entropy
from headway.models.translation.stacks import Decoder, Encoder
from headway.models.translation.translate import translate
from headway.running import autocast_dtype, may_read


class TranslationModel(HeadwayPreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """The Transformer (Vaswani et al. 2017) with any encoding in encoder and decoder.

    Sequences are padded on the right. `translate` decodes fastest; transformers' `generate` works as well.
    """

    config_class = TranslationConfig
    config: TranslationConfig
    base_model_prefix = "translation"
    main_input_name = "input_ids"
    accepts_loss_kwargs = True  # tells transformers' Trainer that forward takes num_items_in_batch
    _no_split_modules: ClassVar[list[str]] = ["EncoderLayer", "DecoderLayer"]
    _tied_weights_keys: ClassVar[dict[str, str]] = {"output.weight": "encoder.words.weight"}
    _resettable: ClassVar[tuple[type[nn.Module], ...]] = (Encoding, Linear)

    def __init__(self, config: TranslationConfig) -> None:
        super().__init__(config)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.output = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draw embeddings with deviation E^-0.5, which `embed_words` scales to 1; other modules reset themselves."""
        if isinstance(module, nn.Embedding | nn.Linear):
            nn.init.normal_(module.weight, std=self.config.hidden_size**-0.5)
        else:
            super()._init_weights(module)

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        use_cache: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        loss_only: bool = False,
    ) -> Seq2SeqLMOutput:
        """Compute the scores of all words after each target position, (B, Lt, V), and the loss if there are labels.

        Args:
            input_ids: (B, Ls) the source; or pass `encoder_outputs`, the encoder's output for it.
            attention_mask: (B, Ls) ones for words, then zeros for padding. Another order raises on the CPU; on other
                devices checking it would wait, and only the number of ones is used.
            decoder_input_ids: (B, Lt) the target from the start token on; made from the labels unless given.
            decoder_attention_mask: (B, Lt) ones, then zeros. The causal mask already hides padding on the right, so
                this changes only outputs at padding.
            labels: (B, Lt) the words to predict, ending with the end token; -100 and padding are ignored.
            past_key_values: cached keys and values of the positions before decoder_input_ids; the call extends them.
            use_cache: whether to return them; by default as configured, and not if there are labels.
            num_items_in_batch: divisor of the summed loss in place of this batch's number of labels.
            output_attentions: also return all attention weights, before dropout, computed by the plain formula.
            output_hidden_states: also return the input of each layer and the last output, of encoder and decoder.
            loss_only: compute only the loss, not the scores: for training, much faster on a CPU. Needs labels.
        """
        with_weights = self.config.output_attentions if output_attentions is None else output_attentions
        with_states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        if loss_only and labels is None:
            raise ValueError("labels: loss_only=True needs labels, got none.")
        if decoder_input_ids is None:
            if labels is None:
                raise ValueError("decoder_input_ids, labels: expected at least one of them, got neither.")
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        source = encoder_outputs
        embeds, decoder_embeds, words = self._embed_both(
            None if source is not None else input_ids, decoder_input_ids, loss_only
        )
        if source is None:
            source = self.encoder(None, attention_mask, with_weights, with_states, inputs_embeds=embeds)
        elif isinstance(source, tuple):
            source = BaseModelOutput(*source)
        if source.last_hidden_state.shape[0] != decoder_input_ids.shape[0]:
            raise ValueError(
                f"decoder_input_ids: expected {source.last_hidden_state.shape[0]} rows (from the source), got "
                f"{decoder_input_ids.shape[0]}."
            )
        if not isinstance(past_key_values, EncoderDecoderCache | None):
            raise TypeError(
                f"past_key_values: expected an EncoderDecoderCache, got {type(past_key_values).__name__}. Make one of "
                f"two caches: EncoderDecoderCache(DynamicCache(), DynamicCache())."
            )
        if use_cache is None:
            use_cache = self.config.use_cache and labels is None and not self.training
        if past_key_values is None and use_cache:
            past_key_values = self._new_cache()
        if loss_only and labels is not None and decoder_attention_mask is None:
            decoder_attention_mask = self._mask_up_to_last_label(labels)
        decoded = self.decoder(
            decoder_embeds,
            source.last_hidden_state,
            attention_mask,
            decoder_attention_mask,
            past_key_values,
            with_weights,
            with_states,
        )
        logits = loss = None
        if not loss_only:
            logits = self.output(decoded.last_hidden_state)
        if labels is not None:
            loss = self._loss(decoded.last_hidden_state, logits, words, labels, num_items_in_batch)
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=past_key_values,
            decoder_hidden_states=decoded.hidden_states,
            decoder_attentions=decoded.attentions,
            cross_attentions=decoded.cross_attentions,
            encoder_last_hidden_state=source.last_hidden_state,
            encoder_hidden_states=source.hidden_states,
            encoder_attentions=source.attentions,
        )

    def translate(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **options: Any
    ) -> list[list[Hypothesis]]:
        """Translate each source, (B, Ls) and padded on the right; return its translations, best first.

        The options are those of `Decoding`: beam=4, length_penalty=0.6, n_best=1, max_length_ratio=1.0,
        max_length_plus=50, sample=False, temperature=1.0, top_k=None, top_p=None, seed=None. It is fastest in half
        precision (model.bfloat16()).
        """
        return translate(self, input_ids, attention_mask, Decoding(**options))

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Shift the labels to the right by one, beginning with the start token."""
        shifted = labels.roll(1, dims=1)
        shifted[:, 0] = self.config.decoder_start
        return shifted.masked_fill(shifted == IGNORED, self.config.pad_token_id)

    def _embed_both(
        self, ids: Tensor | None, decoder_ids: Tensor, loss_only: bool
    ) -> tuple[Tensor | None, Tensor, Tensor | None]:
        """Embed source and target; also return the output weight if the loss is to be `fused_cross_entropy`."""
        encoder, weight = self.encoder, self.output.weight
        fuses = loss_only and self._can_fuse_loss()
        if fuses and ids is not None and weight is encoder.words.weight:
            source, target, words = lookup_with_weight(weight, ids, decoder_ids)
            return source * encoder.scale, target * encoder.scale, words
        embeds = None if ids is None else encoder.embed_words(ids)
        return embeds, encoder.embed_words(decoder_ids), weight if fuses else None

    def _can_fuse_loss(self) -> bool:
        """Return whether `fused_cross_entropy` applies: on a CPU, in full precision, with a plain output layer."""
        weight = self.output.weight
        full = weight.dtype in (torch.float32, torch.float64) and autocast_dtype(weight.device.type) is None
        return type(self.output) is nn.Linear and full and may_read(weight)

    def _loss(
        self,
        x: Tensor,  # (B, Lt, E), the decoder's output
        logits: Tensor | None,
        words: Tensor | None,
        labels: Tensor,
        count: Tensor | int | None,
    ) -> Tensor:
        smoothing = self.config.label_smoothing
        labels = self._checked_labels(labels, x.shape[:2])
        if logits is None and may_read(labels):
            labelled = labels != IGNORED
            x, labels = x[labelled], labels[labelled]
        if words is not None:
            return fused_cross_entropy(x, words, labels, smoothing, float(label_count(labels, count)))
        return smoothed_cross_entropy(self.output(x) if logits is None else logits, labels, smoothing, count)

    def _checked_labels(self, labels: Tensor, shape: torch.Size) -> Tensor:
        """Return the labels with -100 at padding; raise ValueError if a shape or an id is wrong."""
        if labels.shape != shape:
            raise ValueError(f"labels: expected {tuple(shape)} (from decoder_input_ids), got {tuple(labels.shape)}.")
        if may_read(labels) and labels.numel():
            lowest, highest = labels.masked_fill(labels == IGNORED, 0).aminmax()
            if lowest < 0 or highest >= self.config.vocab_size:
                raise ValueError(
                    f"labels: expected 0 to {self.config.vocab_size - 1} (vocab_size), or {IGNORED} for none, got "
                    f"{int(lowest if lowest < 0 else highest)}."
                )
        return labels.masked_fill(labels == self.config.pad_token_id, IGNORED)

    def _mask_up_to_last_label(self, labels: Tensor) -> Tensor | None:
        """Return ones up to the last label of each row, then zeros; later positions have no part in the loss."""
        if not may_read(labels):
            return None  # useful only where padding is removed
        labelled = self._checked_labels(labels, labels.shape) != IGNORED
        return labelled.flip(1).cummax(1).values.flip(1)

    def _new_cache(self) -> EncoderDecoderCache:
        return EncoderDecoderCache(DynamicCache(), DynamicCache())

    # Methods that transformers expects of a model.

    def get_encoder(self, modality: str | None = None) -> nn.Module:
        return self.encoder

    def get_decoder(self) -> nn.Module:
        return self.decoder

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.words

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.encoder.words = value

    def get_output_embeddings(self) -> nn.Linear:
        return self.output

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.output = new_embeddings
