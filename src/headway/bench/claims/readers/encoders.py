"""Results of pretrained encoders: losses, fine-tuning, what their positions learned, losses on longer texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from headway.bench.claims.samples import Sample, naming
from headway.bench.claims.settings import Setting
from headway.encodings.choice import EncodingChoice, with_one_encoding
from headway.storage import read_json

# Settings by which runs may differ and still be compared.
TEXT = ("length", "packed", "mask_probability")  # all others say where the text came from, as the folder's name does
FREE_OF_PRETRAINING = ("bf16", "compile", "accumulate", "position_rate")  # the last is chosen for each encoding
FREE_OF_FINETUNING = ("bf16", "checkpoint", "evaluate")
AT_CHANCE = ("mrpc", "rte", "wnli")  # of GLUE: models of the size of ours do not learn them, so they count nowhere
GLUE = ("cola", "sst2", "stsb", "mnli", "qqp", "qnli")
XTREME = ("xnli", "xquad", "mlqa", "tydiqa")
SINGLE = ("cola", "sst2", "builtin:acceptability")  # tasks of one text, which has no segments
HEADS = {"head r2": "r2", "head r2 without [CLS]": "r2_without_first"}  # measure -> name in measures.json
RANKS = {  # of the first layer, as Chen et al. (2021b), Sec. 3.1; a product of full matrices has full numerical rank
    "score rank": ("whole", "numerical"),
    "position rank": ("positions", "relative"),
}
Layers = list[list[float | None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pretrained:
    """A pretrained model, to which other results belong.

    Args:
        group, without_steps: see `Sample.group`; the second is shared by runs that differ in their steps, too.
        length: tokens of its sequences.
        loss: at the end, on held-out text.
    """

    setting: Setting
    seed: str
    steps: int
    length: int
    group: str
    without_steps: str
    rate: float | None
    rate_chosen: bool = False
    tokens: float
    loss: float
    scale: str
    source: str

    def sample(self, measure: str, value: float, **rest: Any) -> Sample:
        """Make a sample of this model."""
        known = {
            "setting": self.setting, "unit": f"seed {self.seed}", "group": self.group, "rate": self.rate,
            "rate_chosen": self.rate_chosen, "merit": -self.loss, "size": self.tokens, "scale": self.scale,
            "source": self.source,
        }  # fmt: skip
        return Sample(measure=measure, value=float(value), **{**known, **rest})


Reader = Callable[[Path, Pretrained], Iterator[Sample]]


def pretrained(folder: Path, samples: list[Sample]) -> Pretrained | None:
    """Read a finished run and add its own numbers to the samples; return None where there is none."""
    path = folder / "result.json"
    if not path.is_file():
        return None
    result, record = read_json(path), read_json(folder / "config.json")
    with naming(folder / "config.json"):
        config = record["config"]
        setting = Setting.of(config["model"])
        facts = {
            "setting": setting,
            "seed": str(config["seed"]),
            "steps": config["optimisation"]["steps"],
            "length": config["text"]["length"],
            "group": group(config, TEXT),
            "without_steps": group(config, TEXT, "steps"),
            "rate": config["optimisation"].get("position_rate", 1.0) if setting.has_parameters else None,
        }
    with naming(path):
        run = Pretrained(
            **facts,
            tokens=result["tokens"],
            loss=result["evaluation_loss"],
            scale=_scale(config, result),
            source=str(path),
        )
        samples.append(run.sample("loss", run.loss))
        samples.append(run.sample("model parameters", result["parameters"]))
    return run


def group(config: Mapping[str, Any], of_text: tuple[str, ...], *left_out: str) -> str:
    """Write as text what two runs must share to be compared."""
    model = with_one_encoding(config["model"])
    model["encoding"] = EncodingChoice.parse(model["encoding"]).segments  # all that must be the same of it
    text = {name: config["text"].get(name) for name in of_text} if of_text else {}
    plan = {
        name: value for name, value in config["optimisation"].items() if name not in (*FREE_OF_PRETRAINING, *left_out)
    }
    return json.dumps({"model": model, "text": text, "optimisation": plan}, sort_keys=True)


def _scale(config: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    plan, text = config["optimisation"], config["text"]
    return (
        f"{config['model']['preset']}, {result['tokens'] / 1e6:,.0f}M tokens ({plan['steps']:,} steps of "
        f"{plan['batch']:,} sequences of {text['length']})"
    )


class Join:
    """Reads results that belong to pretrained models; leaves a note where the model is not there."""

    def __init__(self, runs: Mapping[str, Pretrained], samples: list[Sample], notes: list[str]) -> None:
        self.runs, self.samples, self.notes = runs, samples, notes

    def __call__(self, path: Path, name: str, read: Reader) -> None:
        asked = [name]
        config = path / "config.json"
        if config.is_file():
            record = read_json(config)
            with naming(config):
                start = record["config"].get("start")
                model = record["config"]["model"] if start is None else start["model"]
                asked += Path(model).parts[::-1]
        run = next((self.runs[each] for each in asked if each in self.runs), None)
        if run is None:
            self.notes.append(f"{path}: its encoding is not known, because no pretraining run is called {name}")
        else:
            self.samples += read(path, run)


def glue(folder: Path, run: Pretrained) -> Iterator[Sample]:
    """Yield scores of the task's first dev split at the best rate, by seed; nothing where the sweep is not finished."""
    for path, result in _sweep_result(folder):
        with naming(path):
            for seed, score in result["rates"][0]["scores"].items():
                if result["task"] not in AT_CHANCE:
                    yield run.sample("glue", 100 * score, **_about_sweep(folder, path, run, result["task"], seed))


def xtreme(folder: Path, run: Pretrained) -> Iterator[Sample]:
    """Yield the mean over languages of each data set.

    Of F1 and exact match it is their mean (Chen et al. 2021b, Table 3, Avg).
    """
    for path, result in _sweep_result(folder):
        with naming(path):
            for tuned in result["runs"]:
                if tuned["rate"] != result["rates"][0]["rate"]:
                    continue
                for data, languages in tuned["transfer"].items():
                    each = [[v for name, v in found.items() if name != "score"] for found in languages.values()]
                    value = 100 * fmean(fmean(metrics) for metrics in each)
                    for measure in ("xtreme", "xnli") if data.startswith("xnli") else ("xtreme",):
                        yield run.sample(measure, value, **_about_sweep(folder, path, run, data, tuned["seed"]))


def _sweep_result(folder: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yield the result of a sweep, under either of its names, if there is one."""
    for path in (folder / "result.json", folder / "summary.json"):
        if path.is_file():
            yield path, read_json(path)
            return


def _about_sweep(folder: Path, path: Path, run: Pretrained, block: str, seed: Any) -> dict[str, Any]:
    """Return the settings in which two sweeps must agree to be compared."""
    record = read_json(folder / "config.json")
    with naming(folder / "config.json"):
        config = record["config"]
        grid = {"rates": config["grid"]["rates"], "limit": config["data"]["limit"]}
        grid |= {name: value for name, value in config["protocol"].items() if name not in FREE_OF_FINETUNING}
        default = "input" if run.setting.attention in ("linformer", "performer") else "per-head"
        return {
            "unit": f"seed {run.seed}.{seed}",
            "block": block,
            "group": f"{run.group} {json.dumps(grid, sort_keys=True)}",
            "segments": None if config["task"] in SINGLE else config["start"]["segments"] or default,
            "scale": f"{run.scale}, fine-tuned with {len(config['grid']['seeds'])} seeds x {len(grid['rates'])} rates",
            "source": str(path),
        }


def analysis(folder: Path, run: Pretrained) -> Iterator[Sample]:
    path = folder / "measures.json"
    found = read_json(path)
    with naming(path):
        if found["table"] is not None:
            yield from _table(found["table"], run, str(path))
        for measure, name in HEADS.items():
            yield from heads(without_shared(found["heads"][name], run.setting), run, measure, str(path))
        ranks = {} if found["texts"] is None else found["texts"]["ranks"]["average"]
        for measure, (kind, tolerance) in RANKS.items():
            if kind in ranks:
                first = ranks[kind][tolerance][:1]
                yield from heads(
                    without_shared(first, run.setting) if kind == "positions" else first, run, measure, str(path)
                )


def _table(table: Mapping[str, Any], run: Pretrained, source: str) -> Iterator[Sample]:
    yield run.sample("cosine", table["cosines"]["mean"], source=source)
    if "r2_off_diagonal" in table:  # older analyses have none
        yield run.sample("table r2 off the diagonal", table["r2_off_diagonal"], source=source)
        by_steps = run.sample("table r2 by steps", table["r2_off_diagonal"], source=source)
        yield replace(by_steps, group=run.without_steps, size=float(run.steps))


def without_shared(layers: Layers, setting: Setting) -> Layers:
    """Leave out repeated numbers of position scores: layers or heads that share a table have the same ones."""
    choice = setting.encoding
    if len(choice.names) > 1:  # what is at the input goes through each layer's own weights
        return layers
    if choice.sharing == "layer":
        return layers[:1]
    return [layer[:1] for layer in layers] if choice.sharing == "head" else layers


def heads(layers: Layers, run: Pretrained, measure: str, source: str) -> Iterator[Sample]:
    """Yield a number of every layer and head."""
    for layer, each in enumerate(layers):
        for head, value in enumerate(each):
            if value is not None:
                yield run.sample(measure, value, unit=f"seed {run.seed}, head {layer}.{head}", source=source)


def training_trend(samples: list[Sample]) -> list[Sample]:
    """Return R² of the shortest and of the longest of runs that differ in nothing but their steps."""
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
    """Yield the loss at multiples of the length of training; nothing where a model has no positions."""
    record = read_json(path)
    with naming(path):
        yield from by_length(record["losses"], run, str(path))


def by_length(losses: Mapping[str, float | None], run: Pretrained, source: str) -> Iterator[Sample]:
    for length, loss in losses.items():
        times, rest = divmod(int(length), run.length)
        if not rest and loss is not None:
            yield run.sample(f"loss at {times} x length", loss, source=source)
