"""`convert`: supplement or replace a pretrained model's positions by a bias on its scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headway.encodings import EncodingChoice
from headway.pretrained.conversion import hugging_face, own_encoders
from headway.pretrained.conversion.conversion import BIASES, Conversion
from headway.pretrained.conversion.converted import converted_class, encoding_of
from headway.pretrained.conversion.samples import draw_words, join_texts
from headway.pretrained.model_types import OWN

STARTS = ("fit", "equation", "zero", "random")
OPTIONS = ("kernels", "rank", "buckets", "max_distance")  # options of encodings that a conversion may choose
LONGEST_SAMPLE = 512  # tokens of a row that F_P is measured on


class Surgeon(Protocol):
    """Converts one kind of model: the module `hugging_face` transformers' encoders, `own_encoders` headway's own."""

    def plan(self, model: Any, to: EncodingChoice, mode: str, max_length: int | None) -> Conversion:
        """Check what is asked, and fill in what the model decides."""

    def build(self, model: Any, conversion: Conversion) -> PreTrainedModel:
        """Build the converted model, its bias as drawn."""

    def build_without_positions(self, model: Any, conversion: Conversion) -> PreTrainedModel:
        """Build the model with its positions taken out."""

    def count_positions(self, model: Any) -> int:
        """Count the positions that the model has."""

    def count_removed(self, model: Any) -> int:
        """Count the parameters that are gone when positions are replaced."""


def convert(
    model: Any,
    to: str,
    *,
    mode: str = "supplement",
    max_length: int | None = None,
    start: str | None = None,
    tokenizer: Any = None,
    texts: Sequence[str] | None = None,
    seed: int = 0,
) -> PreTrainedModel:
    """Copy an encoder, its positions supplemented or replaced by a bias on its scores.

    Paper:    Wennberg and Henter (2021), Eq. (4a), supplement, and (4b), replace; the biases: see each encoding
    Formula:  supplement: softmax(scale q k^T + bias) v, embeddings as they were
              replace: the same, with every row of the position table replaced by the mean row
    Departs:  Eq. (4b) leaves E_P out of the input altogether. Its mean, which says nothing of position, stays, so that
              words meet the LayerNorm that they know: the outputs are then nearer to the original's. F_P is measured,
              see `position_factors`; start="equation" takes Eq. (2) as it is written. A supplement starts at 0, where
              the model is the one it was; the paper's starts at the fit, start="fit" or "equation"
    Checked:  tests/unit/pretrained/conversion, tests/parity/test_convert.py, tests/parity/test_convert_relative.py

    Args:
        model: a BERT, RoBERTa, XLM-R, CamemBERT, ALBERT, DistilBERT or ELECTRA model, or one of headway's own encoders,
            with any head or none. It is not changed. Of the former comes a `Converted`; of the latter an
            encoder of the same class, whose configuration names the encoding: "learned+tisa", or "tisa".
        to: tisa, diet-rel, diet-abs, t5 or alibi, with or without options: "tisa:kernels=3", "diet-abs:rank=64",
            "t5:buckets=16,max_distance=64,sharing=layer". Unless it says so, nothing is shared, also where the
            encoding's own default is another, because heads and layers of pretrained models differ. ALBERT's layers,
            which share everything else, then have biases of their own; with sharing=layer they share that too.
            headway's encoders have one sharing for all encodings: where one that stays shares, so does the new one.
        mode: supplement or replace.
        max_length: longest text that the model is for; its own number of positions unless given. More needs "replace".
            DIET-ABS has no bias beyond it; of the others it is no limit, but what tokenizers and training are told.
            A fit knows nothing of positions beyond it: give it where a model's last positions were hardly trained.
        start: fit (to F_P as measured on texts), equation (to F_P by Eq. (2) as it is written), zero, or random;
            unless given, fit to replace and zero to supplement. ALiBi has nothing to fit, and changes the model from
            the start.
        tokenizer, texts: F_P is measured on these texts, such as the model is used for; without texts, on words drawn
            at random, between the tokenizer's special tokens; without a tokenizer, on words alone.
        seed: seed of the words drawn, and of a random start.
    """
    choice = _read_choice(to)
    surgeon = surgeon_for(model)
    _check_finite(model)
    if max_length is not None and max_length < 1:
        raise ValueError(f"max_length: expected a whole number of at least 1, got {max_length}.")
    conversion = surgeon.plan(model, choice, mode, max_length)
    start = _choose_start(choice.name, mode, start)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        converted = surgeon.build(model, conversion)
    known = min(surgeon.count_positions(model), conversion.max_length)
    if start == "fit":
        from headway.pretrained.conversion.fitting import fit
        from headway.pretrained.conversion.position_factors import position_factors

        rows, special = _sample_rows(model, known, tokenizer, texts, seed)
        without = surgeon.build_without_positions(model, conversion)
        fit(encoding_of(converted), position_factors(model, without, rows, first_is_special=special))
    elif start == "equation":
        from headway.pretrained.conversion.fitting import fit
        from headway.pretrained.conversion.position_factors import equation_factors

        fit(encoding_of(converted), equation_factors(model, known))
    elif start == "zero":
        from headway.pretrained.conversion.fitting import zero

        zero(encoding_of(converted))
    return converted


def surgeon_for(model: Any) -> Surgeon:
    """Return the module that converts this kind of model; raise if none does."""
    if getattr(getattr(model, "config", None), "model_type", None) == OWN:
        return own_encoders
    converted_class(model)  # raises for a model that cannot be converted
    return hugging_face


def _read_choice(to: str) -> EncodingChoice:
    """Read the encoding, and raise where a conversion cannot make it."""
    if to.partition(":")[0].strip() not in BIASES:
        raise ValueError(f"to: expected one of {', '.join(BIASES)}, got {to!r}.")
    choice = EncodingChoice.parse(to)
    if choice.segments is not None:
        raise ValueError(f"to: expected no segments, which stay as they are, got segments={choice.segments}.")
    for name in choice.options:
        if name not in OPTIONS:
            raise ValueError(f"to: expected options among {', '.join(OPTIONS)} and sharing, got {name}.")
    return choice


def _check_finite(model: Any) -> None:
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter.detach()).all():
            raise ValueError(
                f"{name}: expected finite weights, got NaN or infinity. The file is damaged, or training diverged."
            )


def _choose_start(to: str, mode: str, start: str | None) -> str:
    """Check the start that is asked for, or choose one."""
    if to == "alibi":
        if start is not None:
            raise ValueError(f"start: expected none given for alibi, whose slopes are fixed, got {start!r}.")
        return "random"  # there is nothing to draw
    if start is None:
        return "fit" if mode == "replace" else "zero"
    if start not in STARTS:
        raise ValueError(f"start: expected one of {', '.join(STARTS)}, got {start!r}.")
    return start


def _sample_rows(
    model: Any, positions: int, tokenizer: Any, texts: Sequence[str] | None, seed: int
) -> tuple[Tensor, bool]:
    """Return what F_P is measured on, (N, L), and whether it begins and ends as texts do."""
    from headway.pretrained.conversion.position_factors import ROWS

    length = min(LONGEST_SAMPLE, positions)
    if texts is None:
        return draw_words(model.config.vocab_size, tokenizer, length, ROWS, seed), tokenizer is not None
    if tokenizer is None:
        raise ValueError("tokenizer: expected the model's tokenizer beside texts, got none.")
    return join_texts(tokenizer, texts, length, ROWS, overlapping=True), True
