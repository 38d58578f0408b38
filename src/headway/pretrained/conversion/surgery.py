"""`convert`: a pretrained model's positions supplemented, or replaced, by a bias on its scores."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from headway.encodings import EncodingChoice
from headway.pretrained.conversion import hugging_face, own_encoders
from headway.pretrained.conversion.conversion import BIASES
from headway.pretrained.conversion.converted import encoding_of
from headway.pretrained.conversion.families import OWN
from headway.pretrained.conversion.registry import converted_class
from headway.pretrained.conversion.samples import rows_of_text, rows_of_words

STARTS = ("fit", "zero", "random")
OPTIONS = ("kernels", "rank", "buckets", "max_distance")  # of encodings, as far as a conversion may choose them
LONGEST_SAMPLE = 512  # tokens of the texts that F_P is measured on


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
    """A copy of an encoder whose positions are supplemented or replaced by a bias on its scores.

    Paper:    Wennberg and Henter (2021), Eq. (4a), supplement, and (4b), replace; the biases: see each encoding
    Formula:  supplement: softmax(scale q k^T + bias) v, embeddings as they were
              replace: the same, with every row of the position table replaced by the mean row
    Departs:  Eq. (4b) leaves E_P out of the input altogether. Its mean, which says nothing of position, stays, so that
              words meet the LayerNorm that they know: the outputs are then nearer to the original's. F_P is measured,
              see `position_factors` in `measured.py`. A supplement starts at 0, where the model is the one it
              was; the paper's starts at the fit, start="fit"
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
        start: fit (to the model's own F_P), zero, or random; unless given, fit to replace and zero to supplement. ALiBi
            has nothing to fit, and changes the model from the start.
        tokenizer, texts: F_P is measured on these texts, such as the model is used for; without texts, on words drawn
            at random, between the tokenizer's special tokens; without a tokenizer, on words alone.
        seed: of the words drawn, and of a random start.
    """
    choice = _checked(to)
    room = room_of(model)
    _check_finite(model)
    if max_length is not None and max_length < 1:
        raise ValueError(f"max_length: expected a whole number of at least 1, got {max_length}.")
    conversion = room.planned(model, choice, mode, max_length)
    start = _start(choice.name, mode, start)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        converted: PreTrainedModel = room.operated(model, conversion)
    if start == "fit":
        from headway.pretrained.conversion.initialise import fit
        from headway.pretrained.conversion.measured import position_factors

        known = min(room.positions(model), conversion.max_length)
        rows, special = _rows(model, known, tokenizer, texts, seed)
        without = room.without_positions(model, conversion)
        fit(encoding_of(converted), position_factors(model, without, rows, first_is_special=special))
    elif start == "zero":
        from headway.pretrained.conversion.initialise import zero

        zero(encoding_of(converted))
    return converted


def room_of(model: Any) -> ModuleType:
    """Where a model is operated on: both modules have planned, operated, without_positions, positions and removed."""
    if getattr(getattr(model, "config", None), "model_type", None) == OWN:
        return own_encoders
    converted_class(model)  # raises for a model that cannot be converted
    return hugging_face


def _checked(to: str) -> EncodingChoice:
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


def _start(to: str, mode: str, start: str | None) -> str:
    if to == "alibi":
        if start is not None:
            raise ValueError(f"start: expected none given for alibi, whose slopes are fixed, got {start!r}.")
        return "random"  # there is nothing to draw
    if start is None:
        return "fit" if mode == "replace" else "zero"
    if start not in STARTS:
        raise ValueError(f"start: expected one of {', '.join(STARTS)}, got {start!r}.")
    return start


def _rows(model: Any, positions: int, tokenizer: Any, texts: Sequence[str] | None, seed: int) -> tuple[Tensor, bool]:
    """What F_P is measured on, (N, L), and whether it begins and ends as texts do."""
    from headway.pretrained.conversion.measured import ROWS

    length = min(LONGEST_SAMPLE, positions)
    if texts is None:
        return rows_of_words(model.config.vocab_size, tokenizer, length, ROWS, seed), tokenizer is not None
    if tokenizer is None:
        raise ValueError("tokenizer: expected the model's tokenizer beside texts, got none.")
    return rows_of_text(tokenizer, texts, length, ROWS, overlapping=True), True
