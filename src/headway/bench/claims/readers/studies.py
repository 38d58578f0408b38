"""Studies: the cells of their tables, losses by length, and what their models learned."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.bench.claims.readers.encoders import (
    GLUE,
    SINGLE,
    XTREME,
    Pretrained,
    analysis,
    by_length,
    heads,
    without_shared,
)
from headway.bench.claims.samples import Sample, naming
from headway.bench.claims.settings import Setting
from headway.encodings.choice import EncodingChoice, with_one_encoding
from headway.storage import file_name, read_json


def study(path: Path, samples: list[Sample], notes: list[str]) -> None:
    """Read a study, whose rows differ in nothing but the encoding and make a group of their own."""
    found = read_json(path)
    with naming(path):
        if found["study"]["size"] == "quick":
            notes.append(f"{path}: the built-in language is not what the papers speak of")
            return
        for row in (each for each in found["rows"] if not each.get("derived")):
            run = _run(found, row, path)
            samples += _cells(found, row, run)
            kept = path.parent / "analysis" / file_name(row["name"])
            if (kept / "measures.json").is_file():
                samples += analysis(kept, run)
            elif row["name"] in found["analysis"]:
                samples += _shown(found["analysis"][row["name"]], run)


def _run(found: Mapping[str, Any], row: Mapping[str, Any], path: Path) -> Pretrained:
    """Return the row's first pretraining, or what stands for it in a study without any."""
    about, setting = found["study"], Setting.of({**row, "preset": _preset(found)})
    runs = [each for each in found["pretraining"] if each["row"] == row["name"]]
    text = (found["recipes"].get("pretraining") or {}).get("text") or {}
    first = runs[0] if runs else {"seed": 0, "evaluation_loss": 0.0, "tokens": 0}
    size = f", {first['tokens'] / 1e6:,.0f}M tokens" if runs else ""
    return Pretrained(
        setting=setting,
        seed=str(first["seed"]),
        steps=0,
        length=text.get("length", 1),
        group=f"study {path.parent.name}",
        without_steps=f"study {path.parent.name}",
        rate=first.get("position_rate", row.get("position_rate", 1.0)) if setting.has_parameters else None,
        rate_chosen="learning_rate" in first,
        tokens=float(first["tokens"]),
        loss=first["evaluation_loss"],
        scale=f"{_preset(found)}{size} (study {about['name']}, size {about['size']})",
        source=str(path),
    )


def _preset(found: Mapping[str, Any]) -> str:
    recipes = found["recipes"]
    first = recipes.get("pretraining") or next(iter(recipes.values()), None) or {}
    return str((first.get("model") or {}).get("preset", ""))


def _cells(found: Mapping[str, Any], row: Mapping[str, Any], first: Pretrained) -> Iterator[Sample]:
    """Yield one number a seed of the columns that claims are judged by."""
    segments = EncodingChoice.parse(with_one_encoding(row)["encoding"]).segments
    losses = {str(each["seed"]): each["evaluation_loss"] for each in found["pretraining"] if each["row"] == row["name"]}
    for column, cells in zip(found["columns"], found["cells"], strict=True):
        source = column["source"]
        recipe = json.dumps([found["recipes"].get(name) for name in ("pretraining", f"fine-tuning, {column['task']}")])
        for seed, value in cells[row["name"]]["values"].items():
            pretrained, several, _ = seed.partition(".")  # and the seed of fine-tuning
            run = replace(first, seed=seed, loss=losses.get(pretrained, first.loss) if several else first.loss)
            if source == "lengths" and not column["task"]:  # those of a task are after a further training
                yield from by_length({column["value"]: value}, run, run.source)
            elif source == "pretrain" and column["value"] == "evaluation_loss":
                yield run.sample("loss", value, recipe=recipe)
            elif source == "finetune":
                about: dict[str, Any] = {"block": column["name"], "recipe": recipe}
                if column["task"] not in SINGLE:
                    about["segments"] = segments
                for measure in _benchmarks(column):
                    yield run.sample(measure, value, **about)
            elif source == "translate":
                yield run.sample("bleu", value, block=f"{column['name']}, {Path(run.source).parent.name}")


def _benchmarks(column: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the measures that a column of fine-tuning belongs to; probes and questions in English belong to none."""
    first, _, rest = column["value"].partition("/")
    if first == "transfer":
        data = rest.partition("/")[0]
        return ("xtreme", "xnli") if data == "xnli" else ("xtreme",) if data in XTREME else ()
    return ("glue",) if column["task"].partition(",")[0] in GLUE else ()


def _shown(kept: Mapping[str, Any], run: Pretrained) -> Iterator[Sample]:
    yield from heads(without_shared(kept["toeplitz_r2"], run.setting), run, "head r2", run.source)
    ranks = kept["ranks"]
    if ranks is not None and "positions" in ranks:
        first = ranks["positions"]["relative"][:1]
        yield from heads(without_shared(first, run.setting), run, "position rank", run.source)
