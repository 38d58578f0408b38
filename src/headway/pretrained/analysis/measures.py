"""`analyze`: measure everything of one model, and save what was found."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from headway.pretrained.analysis.anatomy import Reading
from headway.pretrained.analysis.fused_models import CARRIED, FusedModel, read_fused
from headway.pretrained.analysis.head_measures import (
    Curves,
    HeadMeasures,
    bias_curves,
    curves_of,
    measure_heads,
    measure_scores,
    shrink,
)
from headway.pretrained.analysis.loading import is_fused_family, read, revision_of
from headway.pretrained.analysis.matrices import Array
from headway.pretrained.analysis.position_table import TableMeasures, gram, measure_table
from headway.pretrained.analysis.scores import has_segments, segment_attention, segment_scores
from headway.pretrained.analysis.text_measures import (
    TextMeasures,
    measure_text_scores,
    measure_tokens,
    tokenize,
    tokenize_texts,
)
from headway.storage import atomic_path

Progress = Callable[[int, int, str], None]  # steps done, steps in all, what was done

# Fields of one number or more for every offset, position, pixel or text: in the arrays, not in the JSON.
LARGE = frozenset(
    {"offsets", "count", "mean", "variance", "std", "by_offset", "norms", "neighbours", "jump", "edges", "counts"}
    | {"gram_picture", "picture", "corner", "attention", "each", "terms"}
)


DIGITS = 6  # kept of floats in the JSON


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What was analysed."""

    model_type: str
    layers: int
    heads: int
    head_dim: int
    width: int
    causal: bool
    positions: int  # analysed
    limit: int | None  # that the model has
    position_parameters: int  # of the table added to the input
    shared_layers: tuple[int, ...]  # for each layer, the first with the same queries and keys
    revision: str | None  # the commit on the Hub that it was loaded from, where it was


@dataclass(frozen=True, eq=False)
class SegmentMeasures:
    """What segments do in each layer and head."""

    scores: Array  # (layers, H, S, S)
    attention: Array  # (layers, H, 32, 32), from positions and two segments alone


@dataclass(frozen=True, eq=False)
class Measures:
    """All that `analyze` finds; None where a model, or the call, has nothing to measure it on."""

    model: ModelFacts
    table: TableMeasures | None
    gram_picture: Array | None  # (P, P), E_P E_P^T made small
    heads: HeadMeasures
    segments: SegmentMeasures | None
    curves: Curves | None
    texts: TextMeasures | None

    def to_json(self) -> dict[str, Any]:
        """Return the numbers per model, layer, head and window, ready for JSON: finite, rounded to six digits."""
        small: dict[str, Any] = to_plain(self, leave_out=LARGE)
        return small

    def arrays(self) -> dict[str, Array]:
        """Return every array by its dotted name, such as "heads.mean"."""
        return flatten(self)

    def save(self, folder: str | os.PathLike[str]) -> list[Path]:
        """Write measures.json and arrays.npz, each whole or not at all."""
        json_path, arrays_path = Path(folder) / "measures.json", Path(folder) / "arrays.npz"
        arrays = self.arrays()
        content = {**self.to_json(), "arrays": {name: list(array.shape) for name, array in arrays.items()}}
        with atomic_path(json_path) as temporary:
            temporary.write_text(json.dumps(content, separators=(",", ":"), allow_nan=False) + "\n", encoding="utf-8")
        with atomic_path(arrays_path) as temporary, open(temporary, "wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        return [json_path, arrays_path]


def analyze(
    model: Any,
    tokenizer: Any = None,
    texts: Sequence[str] | None = None,
    positions: int | None = None,
    *,
    stack: str = "encoder",
    formula: str = "model",
    kernels: Sequence[int] = (1, 3, 5),
    text_length: int | None = None,
    carried: bool = True,
    seed: int = 0,
    progress: Progress | None = None,
) -> Measures:
    """Measure what a model's positions learned.

    Args:
        model: a transformers or headway model, with any head or none; see `headway.pretrained.analysis.FAMILIES`. Of a
            model of text that `headway.fuse` takes and that is none of these, scores are recorded while it runs.
        tokenizer: the model's own, needed for `texts`.
        texts: real texts, for ranks and for what heads really attend to; each is cut to `text_length` tokens: 128
            unless given, or all that the model has room for.
        positions: how many to analyse; all that the model has unless given, 512 where there is no limit.
        stack: encoder or decoder of an encoder-decoder.
        formula: F_P as the model computes its scores (model) or by Eq. (2) of Wennberg and Henter (2021) as it is
            written (equation); see `position_scores`. Profiles, Toeplitz R^2 and TISA kernels follow it.
        kernels: numbers of kernels to fit to every head's profile.
        carried: also measure positions as they arrive through the network; needs a forward pass of `positions` tokens.
        progress: called with steps done, steps in all, and what was done.
    """
    if texts is not None and tokenizer is None:
        raise ValueError("tokenizer: expected the model's tokenizer, because texts were given, got None.")
    kind = getattr(getattr(model, "config", None), "model_type", None)
    if is_fused_family(kind):
        if formula != "model":
            raise ValueError(f"formula: expected model for {kind}, which is measured while it runs, got {formula!r}.")
        return _analyze_fused(
            read_fused(model, stack=stack),
            tokenizer,
            texts,
            positions,
            kernels=kernels,
            text_length=text_length,
            seed=seed,
            progress=progress,
        )
    reading = read(model, stack=stack)
    length = reading.length(positions)
    tokens = None if texts is None else tokenize(reading, tokenizer, texts, text_length)
    steps = _Steps(progress, 3 + len(reading.layers) + len(tokens or ()))
    table = None if reading.positions is None else reading.positions[:length]
    table_measures = None if table is None else measure_table(table)
    steps.done("position table")
    heads = measure_heads(
        reading,
        length,
        formula=formula,
        kernels=kernels,
        carried=carried,
        seed=seed,
        progress=lambda n: steps.done(f"layer {n}"),
    )
    segments = _measure_segments(reading, length) if has_segments(reading) else None
    steps.done("segments")
    curves = bias_curves(reading, length)
    steps.done("bias curves")
    return Measures(
        model=_describe(reading, length, revision_of(model)),
        table=table_measures,
        gram_picture=None if table is None else shrink(gram(table))[0],
        heads=heads,
        segments=segments,
        curves=curves,
        texts=None
        if tokens is None
        else measure_tokens(reading, tokens, progress=lambda n: steps.done(f"text {n + 1}")),
    )


def _analyze_fused(
    model: FusedModel,
    tokenizer: Any,
    texts: Sequence[str] | None,
    positions: int | None,
    *,
    kernels: Sequence[int],
    text_length: int | None,
    seed: int,
    progress: Progress | None,
) -> Measures:
    """Measure a model whose scores are recorded while it runs."""
    tokens = None
    if texts is not None:
        tokens = tokenize_texts(
            tokenizer,
            texts,
            text_length,
            words=model.words,
            limit=model.limit,
            takes_segments=model.takes_segments,
        )
    layers = model.position_scores(positions)
    length, first = layers[0].length, layers[0]
    table = None if model.positions is None else model.positions[:length]
    steps = _Steps(progress, 1 + len(layers) + len(tokens or ()))
    heads = measure_scores(
        lambda layer: layers[layer],
        range(len(layers)),
        formula=CARRIED,
        kernels=kernels,
        seed=seed,
        progress=lambda n: steps.done(f"layer {n}"),
    )
    curves = None if all(scores.bias is None for scores in layers) else curves_of(layers)
    steps.done("bias curves")
    facts = ModelFacts(
        model_type=model.model_type,
        layers=len(layers),
        heads=first.heads,
        head_dim=int(first.queries.shape[-1]),
        width=int(model.model.config.hidden_size),
        causal=first.causal,
        positions=length,
        limit=model.limit,
        position_parameters=0 if model.positions is None else model.positions.size,
        shared_layers=tuple(range(len(layers))),
        revision=revision_of(model.model),
    )
    return Measures(
        model=facts,
        table=None if table is None else measure_table(table),
        gram_picture=None if table is None else shrink(gram(table))[0],
        heads=replace(heads, r2_carried=heads.r2),
        segments=None,
        curves=curves,
        texts=None
        if tokens is None
        else measure_text_scores(
            ((ids, model.text_scores(ids, segments)) for ids, segments in tokens),
            head_dim=facts.head_dim,
            causal=facts.causal,
            adds_to_scores=curves is not None,
            progress=lambda n: steps.done(f"text {n + 1}"),
        ),
    )


class _Steps:
    """Counts the steps that are done, and reports them."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.number = progress, total, 0

    def done(self, what: str) -> None:
        self.number += 1
        if self.progress is not None:
            self.progress(self.number, self.total, what)


def _describe(reading: Reading, length: int, revision: str | None) -> ModelFacts:
    first = reading.layers[0]
    return ModelFacts(
        model_type=reading.model_type,
        layers=len(reading.layers),
        heads=first.heads,
        head_dim=first.head_dim,
        width=int(first.query_weight.shape[1]),
        causal=reading.causal,
        positions=length,
        limit=reading.limit,
        position_parameters=0 if reading.positions is None else reading.positions.size,
        shared_layers=reading.alike,
        revision=revision,
    )


def _measure_segments(reading: Reading, length: int) -> SegmentMeasures:
    layers = range(len(reading.layers))
    return SegmentMeasures(
        scores=np.stack([segment_scores(reading, layer) for layer in layers]),
        attention=np.stack([segment_attention(reading, layer, min(32, length)) for layer in layers]),
    )


def to_plain(value: Any, *, leave_out: Set[str] = frozenset()) -> Any:
    """Turn dataclasses and arrays into dictionaries, lists, strings and finite numbers; None for what is not finite.

    Args:
        leave_out: names of fields that are left out unless they hold one number.
    """
    if is_dataclass(value):
        return {
            name: to_plain(part, leave_out=leave_out)
            for name, part in _parts(value)
            if name not in leave_out or isinstance(part, float)
        }
    if isinstance(value, dict):
        return {str(name): to_plain(part, leave_out=leave_out) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(part, leave_out=leave_out) for part in value]
    if isinstance(value, np.ndarray):
        return to_plain(value.tolist(), leave_out=leave_out)
    if isinstance(value, np.generic):
        return to_plain(value.item(), leave_out=leave_out)
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if np.isfinite(value) else None
    return value


def flatten(value: Any) -> dict[str, Array]:
    """Return every array by its dotted name; floats as float32."""
    return {
        ".".join(path): array.astype(np.float32) if array.dtype == np.float64 else array
        for path, array in _arrays(value, ())
    }


def _arrays(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Array]]:
    if isinstance(value, np.ndarray):
        yield path, value
    elif is_dataclass(value) or isinstance(value, dict):
        for name, part in value.items() if isinstance(value, dict) else _parts(value):
            yield from _arrays(part, (*path, str(name)))


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    return ((field.name, getattr(value, field.name)) for field in fields(value))
