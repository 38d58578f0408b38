"""`convert`: a pretrained model's positions supplemented, or replaced, by a bias on its scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from headway.convert.conversion import BIASES, Conversion
from headway.convert.converted import Converted, encoding_of
from headway.convert.families import FAMILIES
from headway.convert.registry import CONFIGS, converted_class
from headway.convert.samples import rows_of_text, rows_of_words
from headway.encodings import ENCODINGS, option_names

STARTS = ("fit", "zero", "random")
OPTIONS = {"kernels": "tisa", "rank": "diet-abs", "buckets": "t5", "max_distance": "t5"}
LONGEST_SAMPLE = 512  # tokens of the texts that F_P is measured on


def convert(
    model: Any,
    to: str,
    *,
    mode: str = "supplement",
    kernels: int | None = None,
    rank: int | None = None,
    buckets: int | None = None,
    max_distance: int | None = None,
    sharing: str | None = None,
    max_length: int | None = None,
    start: str | None = None,
    tokenizer: Any = None,
    texts: Sequence[str] | None = None,
    seed: int = 0,
) -> Converted:
    """A copy of a transformers encoder whose positions are supplemented or replaced by a bias on its scores.

    Paper:    Wennberg and Henter (2021), Eq. (4a), supplement, and (4b), replace; the biases: see each encoding
    Formula:  supplement: softmax(scale q k^T + bias) v, embeddings as they were
              replace: the same, with every row of the position table replaced by the mean row
    Departs:  Eq. (4b) leaves E_P out of the input altogether. Its mean, which says nothing of position, stays, so that
              words meet the LayerNorm that they know: the outputs are then nearer to the original's. F_P is measured,
              see `headway.convert.measured.position_factors`. A supplement starts at 0, where the model is the one it
              was; the paper's starts at the fit, start="fit"
    Checked:  tests/unit/convert, tests/parity/test_convert.py

    Args:
        model: a BERT, RoBERTa, XLM-R, CamemBERT, ALBERT, DistilBERT or ELECTRA model with any head or none. It is left
            as it is.
        to: tisa, diet-rel, diet-abs, t5 or alibi.
        mode: supplement or replace.
        kernels: of TISA; 5 unless given.
        rank: of DIET-ABS; the head width unless given.
        buckets, max_distance: of T5; 32 and 128 unless given.
        sharing: none, head or layer; none unless given, also where the encoding's own default is another, because heads
            and layers of pretrained models differ. ALBERT's layers, which share everything else, then have biases of
            their own; with layer they share that too.
        max_length: longest text that the model is for; its own number of positions unless given. More needs "replace".
            DIET-ABS has no bias beyond it; of the others it is no limit, but what tokenizers and training are told.
        start: fit (to the model's own F_P), zero, or random; unless given, fit to replace and zero to supplement. ALiBi
            has nothing to fit, and changes the model from the start.
        tokenizer, texts: F_P is measured on these texts, such as the model is used for; without texts, on words drawn
            at random, between the tokenizer's special tokens; without a tokenizer, on words alone.
        seed: of the words drawn, and of a random start.
    """
    given = {"kernels": kernels, "rank": rank, "buckets": buckets, "max_distance": max_distance}
    conversion = _planned(model, to, mode, sharing, max_length, _options(to, given))
    start = _start(to, mode, start)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        converted = operated(model, conversion)
    if start == "fit":
        rows, special = _rows(model, tokenizer, texts, seed)
        _fit(model, converted, rows, special)
    elif start == "zero":
        from headway.convert.initialise import zero

        zero(encoding_of(converted))
    return converted


def operated(model: Any, conversion: Conversion) -> Converted:
    """The converted model, its bias as drawn."""
    kind = converted_class(model)
    settings = {name: value for name, value in model.config.to_dict().items() if name not in ("model_type", "dtype")}
    settings["position_bias"] = conversion.to_dict()
    if conversion.replaces:
        settings["max_position_embeddings"] = conversion.max_length
        settings.pop("sinusoidal_pos_embds", None)  # DistilBERT would draw the table anew
    converted: Converted = kind(CONFIGS[model.config.model_type](**settings)).to(model.device, model.dtype)
    state = model.state_dict()
    if conversion.replaces:
        base = "" if model.base_model is model else f"{model.base_model_prefix}."
        name = f"{base}embeddings.position_embeddings.weight"
        state[name] = _position_table(model).mean(0, keepdim=True).to(state[name])
    lost, unknown = converted.load_state_dict(state, strict=False)
    wrong = [*unknown, *(name for name in lost if "position_bias." not in name)]
    assert not wrong, f"a converted model has the weights of its original, got {wrong}"
    converted.train(model.training)
    return converted


def _position_table(model: Any) -> Tensor:  # (L, E), float64
    """The rows that positions use."""
    table = model.base_model.embeddings.position_embeddings
    first = table.padding_idx + 1 if FAMILIES[model.config.model_type].after_padding else 0
    rows: Tensor = table.weight.detach()[first:].double()
    return rows


def _options(to: str, given: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, checked to be the encoding's."""
    options = {name: value for name, value in given.items() if value is not None}
    if to not in BIASES:
        raise ValueError(f"to: expected one of {', '.join(BIASES)}, got {to!r}.")
    for name in options:
        if name not in option_names(ENCODINGS[to]):
            raise ValueError(
                f"{name}: expected none given, because it is an option of {OPTIONS[name]}, got {name} for {to}."
            )
    return options


def _planned(
    model: Any, to: str, mode: str, sharing: str | None, max_length: int | None, options: dict[str, Any]
) -> Conversion:
    converted_class(model)  # raises for a model that cannot be converted
    config = model.config
    if getattr(config, "is_decoder", False):
        raise NotImplementedError(
            "model: expected an encoder, got a decoder (config.is_decoder), which is not supported."
        )
    kind = getattr(config, "position_embedding_type", None) or "absolute"
    if kind != "absolute":
        raise NotImplementedError(
            f"model: expected absolute position embeddings, got a checkpoint of type {kind!r}. "
            f"Load it with headway.convert.load_relative; its positions are relative already."
        )
    _check_finite(model)
    positions = len(_position_table(model))
    if max_length is not None and mode == "supplement" and max_length > positions:
        raise ValueError(
            f"max_length: expected at most {positions}, the model's positions, which stay in mode 'supplement', got "
            f"{max_length}. Use mode='replace' for longer texts."
        )
    if sharing is None and ENCODINGS[to].default_sharing is not None:
        sharing = "none"
    return Conversion(
        encoding=to,
        mode=mode,
        sharing=sharing,
        max_length=positions if max_length is None else max_length,
        options=options,
    )


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


def _rows(model: Any, tokenizer: Any, texts: Sequence[str] | None, seed: int) -> tuple[Tensor, bool]:
    """What F_P is measured on, (N, L), and whether it begins and ends as texts do."""
    from headway.convert.measured import ROWS

    length = min(LONGEST_SAMPLE, len(_position_table(model)))
    if texts is None:
        return rows_of_words(model.config.vocab_size, tokenizer, length, ROWS, seed), tokenizer is not None
    if tokenizer is None:
        raise ValueError("tokenizer: expected the model's tokenizer beside texts, got none.")
    return rows_of_text(tokenizer, texts, length, ROWS, overlapping=True), True


def _fit(model: Any, converted: Converted, rows: Tensor, special: bool) -> None:
    from headway.convert.initialise import fit
    from headway.convert.measured import position_factors

    # A supplement keeps its positions: what they do is seen in a twin without them.
    without = converted
    if not converted.conversion.replaces:
        without = operated(model, replace(converted.conversion, mode="replace"))
    fit(encoding_of(converted), position_factors(model, without, rows, first_is_special=special))
