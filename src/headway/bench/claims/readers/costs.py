"""What position costs: times of whole models, and parameters."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headway.bench.claims.samples import Sample, naming
from headway.bench.claims.settings import Setting
from headway.bench.cost.contestant import Contestant, row_name
from headway.encodings.choice import EncodingChoice
from headway.models.parameters import PAPER
from headway.storage import read_json


def costs(paths: list[Path]) -> Iterator[Sample]:
    """Yield milliseconds of every round. Rows are compared within one file; the newest that has both sides counts."""
    for path in sorted(paths):
        record = read_json(path)
        with naming(path):
            for row in record["measurements"]:
                setting = _setting(row["row"], row["model"])
                for mode in ("training", "inference"):
                    if setting is not None and row[mode] is not None:
                        yield from _rounds(path, record["environment"], row, mode, setting)


def _rounds(
    path: Path, environment: Mapping[str, Any], row: Mapping[str, Any], mode: str, setting: Setting
) -> Iterator[Sample]:
    for number, seconds in enumerate(row[mode]["seconds"]):
        yield Sample(
            measure=f"{mode} time",
            setting=setting,
            value=1e3 * seconds,
            unit=f"round {number}",
            block=f"{row['model']}, n = {row['length']}",
            length=row["length"],
            group=path.name,
            size=_date(path),
            scale=f"{environment.get('gpu') or environment.get('processor') or 'a CPU'}, torch {environment['torch']}",
            source=str(path),
        )


def _setting(row: str, model: str) -> Setting | None:
    """Return the setting of a row of `headway cost`; None for other libraries' models."""
    if Contestant(row).theirs:
        return None
    return Setting.of({"encoding": row_name(row), "preset": model})


def _date(path: Path) -> float:
    """Return 20261116 for a name that ends in 2026-11-16, a little more for 2026-11-16_2, and 0 without a date."""
    found = re.search(r"(\d{4})-(\d\d)-(\d\d)(?:_(\d+))?$", path.stem)
    if found is None:
        return 0.0
    *date, number = found.groups(default="0")
    return int("".join(date)) + int(number) / 1000


def parameters(path: Path) -> Iterator[Sample]:
    """Yield the parameters of rows of Chen et al. (2021b), Table 6, in millions; the newest file counts."""
    rows = read_json(path)
    with naming(path):
        for row in rows:
            encoding, *_ = PAPER[row["model"]]
            for language in ("English", "multilingual"):
                yield Sample(
                    measure=f"{language} parameters",
                    setting=Setting.of({"preset": "bert-base", "encoding": encoding}),
                    value=row[language.lower()] / 1e6,
                    unit="row",
                    segments=EncodingChoice.parse(encoding).segments,
                    group=path.name,
                    size=_date(path),
                    scale="the same models, counted",
                    source=str(path),
                )
