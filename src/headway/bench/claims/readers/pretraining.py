"""Pretraining runs, and what other results say of their models."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.bench.claims.readers.files import named
from headway.bench.claims.samples import Sample
from headway.bench.claims.settings import Setting
from headway.storage import read_json

TEXT = ("length", "packed", "mask_probability")  # of the text; where it came from is the folder's name
FREE = ("bf16", "compile", "accumulate", "position_rate")  # of the optimisation; the last is chosen for each encoding


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
    tokens: float
    loss: float
    scale: str
    source: str

    def sample(self, measure: str, value: float, **rest: Any) -> Sample:
        """A number of this model."""
        known = {
            "setting": self.setting, "unit": f"seed {self.seed}", "group": self.group, "rate": self.rate,
            "merit": -self.loss, "size": self.tokens, "scale": self.scale, "source": self.source,
        }  # fmt: skip
        return Sample(measure=measure, value=float(value), **{**known, **rest})


Reader = Callable[[Path, Pretrained], Iterator[Sample]]


def pretrained(folder: Path, samples: list[Sample]) -> Pretrained | None:
    """A finished run, whose own numbers join the samples; None where there is none."""
    path = folder / "result.json"
    if not path.is_file():
        return None
    result, record = read_json(path), read_json(folder / "config.json")
    with named(folder / "config.json"):
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
    with named(path):
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
    """What two runs must share to be compared, as text."""
    model = {name: value for name, value in config["model"].items() if name not in ("encoding", "sharing", "options")}
    text = {name: config["text"].get(name) for name in of_text} if of_text else {}
    plan = {name: value for name, value in config["optimisation"].items() if name not in (*FREE, *left_out)}
    return json.dumps({"model": model, "text": text, "optimisation": plan}, sort_keys=True)


def _scale(config: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    plan, text = config["optimisation"], config["text"]
    return (
        f"{config['model']['preset']}, {result['tokens'] / 1e6:,.0f}M tokens ({plan['steps']:,} steps of "
        f"{plan['batch']:,} sequences of {text['length']})"
    )


class Join:
    """Reads results that belong to pretrained models; a note where the model is not there."""

    def __init__(self, runs: Mapping[str, Pretrained], samples: list[Sample], notes: list[str]) -> None:
        self.runs, self.samples, self.notes = runs, samples, notes

    def __call__(self, path: Path, name: str, read: Reader) -> None:
        asked = [name]
        config = path / "config.json"
        if config.is_file():
            record = read_json(config)
            with named(config):
                start = record["config"].get("start")
                model = record["config"]["model"] if start is None else start["model"]
                asked += Path(model).parts[::-1]
        run = next((self.runs[each] for each in asked if each in self.runs), None)
        if run is None:
            self.notes.append(f"{path}: its encoding is not known, because no pretraining run is called {name}")
        else:
            self.samples += read(path, run)
