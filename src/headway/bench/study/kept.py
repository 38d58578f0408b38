"""Results of jobs in one small file: what is left of a study when the machine that did it, and its models, are gone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headway.storage import atomic_path, file_name, read_json

NAME = "jobs.jsonl"  # one job a line: its key, its result, and what it took

Records = Mapping[str, Mapping[str, Any]]  # by key


def keep_study(folder: Path, target: Path) -> list[Path]:
    """Copy what is worth committing: results.json on one line, what each analysis measured, and the jobs' results.

    With the last of these `headway study --kept` goes on elsewhere.
    """
    results = read_json(folder / "results.json")
    kept = [target / "results.json", write_kept(target, _records(results, folder, target))]
    with atomic_path(kept[0]) as temporary:
        temporary.write_text(json.dumps(results, ensure_ascii=False) + "\n", encoding="utf-8")
    for row, found in results["analysis"].items():
        place = Path("analysis", file_name(row), "measures.json")
        measures = folder / results["study"]["store"] / found["folder"] / "analysis" / "measures.json"
        if not measures.is_file() and results["study"].get("kept"):
            measures = folder / results["study"]["kept"] / place
        if measures.is_file():
            kept.append(target / place)
            content = measures.read_bytes()
            with atomic_path(kept[-1]) as temporary:
                temporary.write_bytes(content)
    return kept


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


def _records(results: dict[str, Any], folder: Path, target: Path) -> dict[str, Any]:
    """Of the jobs that are done, by key; of those that were done elsewhere, or are gone, what was kept before."""
    about = results["study"]
    earlier: dict[str, Any] = read_kept(folder / about["kept"]) if about.get("kept") else {}
    for place in (folder, target):
        if (place / NAME).is_file():
            earlier |= read_kept(place)
    found = {}
    for key in dict.fromkeys(job["key"] for job in results["jobs"] if job["state"] == "done"):
        path = folder / about["store"] / key / "result.json"
        if path.is_file():
            found[key] = read_json(path)
        elif key in earlier:
            found[key] = earlier[key]
        else:
            raise FileNotFoundError(
                f"keep: expected the result of {key}, which is done, in {path.parent}, got none: it would be lost to "
                f"--kept. Put the job's folder back, or run the study again; nothing was written."
            )
    return found
