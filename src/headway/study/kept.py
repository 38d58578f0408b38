"""Results of jobs in one small file: what is left of a study when the machine that did it, and its models, are gone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.storage import atomic_path

NAME = "jobs.jsonl"  # one job a line: its key, its result, and what it took

Records = Mapping[str, Mapping[str, Any]]  # by key


def write_kept(folder: Path, records: Records) -> Path:
    """Write the records of jobs that are done."""
    path = folder / NAME
    lines = [json.dumps(records[key], ensure_ascii=False, separators=(",", ":")) for key in sorted(records)]
    with atomic_path(path) as temporary:
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def read_kept(folder: Path) -> dict[str, dict[str, Any]]:
    """The records of a folder that `headway report --keep` wrote."""
    path = folder / NAME
    if not path.is_file():
        raise FileNotFoundError(
            f"kept: expected {NAME} in {folder}, got none. `headway report STUDY --keep {folder}` writes it."
        )
    records = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            record = json.loads(line)
            records[record["key"]] = {**record, "result": dict(record["result"]), "seconds": float(record["seconds"])}
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{path}, line {number}: expected the result of a job, got {line[:60]!r}.") from error
    return records
