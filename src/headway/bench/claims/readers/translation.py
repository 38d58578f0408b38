"""BLEU of every translated system, and the paired bootstrap of those that one file compares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import NormalDist
from typing import Any

from headway.bench.claims.readers.encoders import group
from headway.bench.claims.samples import Sample, naming
from headway.bench.claims.settings import Setting
from headway.storage import read_json

Z = NormalDist().inv_cdf(0.975)
LEAST_Z = 0.05  # of a p-value that says anything of an interval's width


def translation(
    corpus: Path, samples: list[Sample], errors: dict[tuple[str, str, str], float], notes: list[str]
) -> None:
    """Read everything in a corpus's folder; of two scores of one system the first file's counts."""
    runs: dict[str, Mapping[str, Any]] = {}
    for path in sorted(corpus.glob("*/config.json")):
        record, result = read_json(path), path.parent / "result.json"
        with naming(path):
            runs[path.parent.name] = record["config"]
        if result.is_file():
            losses = read_json(result)
            with naming(result):
                runs[path.parent.name] = {**record["config"], "loss": losses["saved_loss"]}
    found: dict[str, Sample] = {}
    for path in sorted([*corpus.glob("*.json"), *corpus.glob("*/*.json")]):
        if path.name in ("config.json", "result.json"):
            continue
        record = read_json(path)
        with naming(path):
            run_of = {system: _run(system, path, runs) for system in record["systems"]}
            for system, name in run_of.items():
                if name is None:
                    notes.append(f"{path}: {system} is of no run in {corpus}, whose configuration would say what it is")
                elif name not in found:
                    found[name] = _bleu(corpus.name, name, runs[name], record["systems"][system], path)
            _bootstrap(record["bootstrap"]["rows"], run_of, corpus.name, errors)
    samples += found.values()


def _run(system: str, path: Path, runs: Mapping[str, Any]) -> str | None:
    """Return the run that translated a file: its folder's or its own name, or the folder of the scores."""
    asked = [*Path(system).parts[-2::-1], Path(system).name.split(".")[0], path.parent.name]
    return next((name for name in asked if name in runs), None)


def _bleu(corpus: str, name: str, config: Mapping[str, Any], scores: Mapping[str, Any], path: Path) -> Sample:
    plan, setting = config["optimisation"], Setting.of(config["model"])
    return Sample(
        measure="bleu",
        setting=setting,
        value=scores["bleu"],
        unit=f"seed {config['seed']}",
        block=corpus,
        group=f"{corpus} {group(config, ())} {scores['sentences']} {scores['bleu_signature']}",
        rate=plan.get("position_rate", 1.0) if setting.has_parameters else None,
        merit=-config.get("loss", 0.0),
        size=float(plan["steps"] * plan["step_tokens"]),
        scale=f"{config['model']['preset']}, {corpus}, {plan['steps']:,} steps of {plan['step_tokens']:,} tokens, "
        f"{scores['sentences']:,} test sentences",
        source=f"{path}: {name}",
    )


def _bootstrap(
    every: list[Mapping[str, Any]],
    run_of: Mapping[str, str | None],
    corpus: str,
    errors: dict[tuple[str, str, str], float],
) -> None:
    """Add half widths of 95 % intervals of differences from the first system.

    The file has the paired test's p-value, two-sided; as if the difference were normal, its error is |difference| / z.
    p is at least 1 / (samples + 1), which makes intervals of large differences too wide, never too narrow.
    """
    rows = [row for row in every if row["metric"] == "BLEU" and run_of[row["system"]] is not None]
    first = next((row for row in rows if row["p_value"] is None), None)
    for row in rows:
        if first is None or row is first:
            continue
        z = NormalDist().inv_cdf(1 - min(row["p_value"], 1 - 1e-9) / 2)
        difference = abs(row["score"] - first["score"])
        unpaired = math.hypot(row["interval"], first["interval"])  # wider than the paired one
        half = Z * difference / z if difference and z > LEAST_Z else unpaired
        pair = str(run_of[row["system"]]), str(run_of[first["system"]])
        for a, b in (pair, pair[::-1]):
            errors[a, b, corpus] = half
