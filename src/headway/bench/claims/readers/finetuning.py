"""Sweeps of fine-tuning: at the best rate, the best checkpoint of each seed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from headway.bench.claims.readers.files import named
from headway.bench.claims.readers.pretraining import Pretrained
from headway.bench.claims.samples import Sample
from headway.storage import read_json

SINGLE = ("cola", "sst2", "builtin:acceptability")  # tasks of one text, which has no segments
FREE = ("bf16", "checkpoint", "evaluate")  # of the protocol


def glue(folder: Path, run: Pretrained) -> Iterator[Sample]:
    """Scores of the task's first dev split, by seed; nothing where the sweep is not finished."""
    for path, result in _result(folder):
        with named(path):
            for seed, score in result["rates"][0]["scores"].items():
                yield run.sample("glue", 100 * score, **_about(folder, path, run, result["task"], seed))


def xtreme(folder: Path, run: Pretrained) -> Iterator[Sample]:
    """Of each data set the mean over languages, of F1 and exact match their mean (Chen et al. 2021b, Table 3, Avg)."""
    for path, result in _result(folder):
        with named(path):
            for tuned in result["runs"]:
                if tuned["rate"] != result["rates"][0]["rate"]:
                    continue
                for data, languages in tuned["transfer"].items():
                    each = [[v for name, v in found.items() if name != "score"] for found in languages.values()]
                    value = 100 * fmean(fmean(metrics) for metrics in each)
                    yield run.sample("xtreme", value, **_about(folder, path, run, data, tuned["seed"]))


def _result(folder: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """The result of a sweep, under either name, if there is one."""
    for path in (folder / "result.json", folder / "summary.json"):
        if path.is_file():
            yield path, read_json(path)
            return


def _about(folder: Path, path: Path, run: Pretrained, block: str, seed: Any) -> dict[str, Any]:
    """What decides with which other sweeps it may be compared."""
    record = read_json(folder / "config.json")
    with named(folder / "config.json"):
        config = record["config"]
        grid = {"rates": config["grid"]["rates"], "limit": config["data"]["limit"]}
        grid |= {name: value for name, value in config["protocol"].items() if name not in FREE}
        default = "input" if run.setting.attention == "linformer" else "per-head"
        return {
            "unit": f"seed {run.seed}.{seed}",
            "block": block,
            "group": f"{run.group} {json.dumps(grid, sort_keys=True)}",
            "segments": None if config["task"] in SINGLE else config["start"]["segments"] or default,
            "scale": f"{run.scale}, fine-tuned with {len(config['grid']['seeds'])} seeds x {len(grid['rates'])} rates",
            "source": str(path),
        }
