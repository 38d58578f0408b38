"""What the positions of pretrained models learned, and how they do on longer texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.bench.claims.readers.files import named
from headway.bench.claims.readers.pretraining import Pretrained
from headway.bench.claims.samples import Sample
from headway.bench.claims.settings import Setting
from headway.storage import read_json

HEADS = {"head r2": "r2", "head r2 without [CLS]": "r2_without_first"}  # measure -> name in measures.json
RANKS = {  # of the first layer, as Chen et al. (2021b), Sec. 3.1; a product of full matrices has full numerical rank
    "score rank": ("whole", "numerical"),
    "position rank": ("positions", "relative"),
}
Layers = list[list[float | None]]


def analysis(folder: Path, run: Pretrained) -> Iterator[Sample]:
    path = folder / "measures.json"
    found = read_json(path)
    with named(path):
        if found["table"] is not None:
            yield from _table(found["table"], run, str(path))
        for measure, name in HEADS.items():
            yield from heads(own(found["heads"][name], run.setting), run, measure, str(path))
        ranks = {} if found["texts"] is None else found["texts"]["ranks"]["average"]
        for measure, (kind, tolerance) in RANKS.items():
            if kind in ranks:
                first = ranks[kind][tolerance][:1]
                yield from heads(own(first, run.setting) if kind == "positions" else first, run, measure, str(path))


def _table(table: Mapping[str, Any], run: Pretrained, source: str) -> Iterator[Sample]:
    yield run.sample("table r2", table["r2"], source=source)
    yield run.sample("table r2 without [CLS]", table["r2_without_first"], source=source)
    yield run.sample("cosine", table["cosines"]["mean"], source=source)
    by_steps = run.sample("table r2 by steps", table["r2_without_first"], source=source)
    yield replace(by_steps, group=run.without_steps, size=float(run.steps))


def own(layers: Layers, setting: Setting) -> Layers:
    """Of numbers of position scores: layers, or heads, that share a table have the same, which count once."""
    if "+" in setting.encoding:  # what is at the input goes through each layer's own weights
        return layers
    if setting.sharing == "layer":
        return layers[:1]
    return [layer[:1] for layer in layers] if setting.sharing == "head" else layers


def heads(layers: Layers, run: Pretrained, measure: str, source: str) -> Iterator[Sample]:
    """A number of every layer and head."""
    for layer, each in enumerate(layers):
        for head, value in enumerate(each):
            if value is not None:
                yield run.sample(measure, value, unit=f"seed {run.seed}, head {layer}.{head}", source=source)


def training_trend(samples: list[Sample]) -> list[Sample]:
    """R^2 of runs that differ in nothing but their steps: of the shortest and of the longest."""
    by_run: dict[object, list[Sample]] = {}
    for sample in samples:
        if sample.measure == "table r2 by steps":
            by_run.setdefault((sample.setting, sample.group, sample.rate, sample.unit), []).append(sample)
    trend = []
    for found in by_run.values():
        short, *_, long = sorted([*found, *found], key=lambda sample: sample.size)
        if short.size < long.size:
            scale = f"{short.size:,.0f} and {long.size:,.0f} steps; {long.scale}"
            for measure, sample in (("table r2, fewest steps", short), ("table r2, most steps", long)):
                trend.append(replace(sample, measure=measure, scale=scale))
    return trend


def lengths(path: Path, run: Pretrained) -> Iterator[Sample]:
    """The loss at multiples of the length of training; none where a model has no positions."""
    record = read_json(path)
    with named(path):
        yield from by_length(record["losses"], run, str(path))


def by_length(losses: Mapping[str, float | None], run: Pretrained, source: str) -> Iterator[Sample]:
    for length, loss in losses.items():
        times, rest = divmod(int(length), run.length)
        if not rest and loss is not None:
            yield run.sample(f"loss at {times} x length", loss, source=source)
