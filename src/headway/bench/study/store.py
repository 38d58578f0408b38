"""The folders of jobs; and the results of many jobs in one small file, which can be committed without the models."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headway.bench.study.job import DATA_KINDS, READ, Job
from headway.storage import atomic_path, file_name, read_json, write_json

RECORDS = "jobs.jsonl"  # one job a line: its key, its result, and what it took


class Unreadable(ValueError):
    """A result file that is there and cannot be used."""


class Store:
    """A folder with a folder for each job, named by its key: job.json from the start, log.txt, result.json at the end.

    Args:
        kept: folder to which `export_study` wrote results of jobs that ran elsewhere; it has none of the other files
            of these jobs, such as models.
    """

    def __init__(self, path: Path, *, kept: Path | None = None) -> None:
        self.path, self.kept = path, kept
        self._kept = {} if kept is None else read_records(kept)

    def folder(self, key: str) -> Path:
        return self.path / key

    def write_request(self, job: Job) -> Path:
        """Write the job's job.json, unless it is there, and the results that it reads; return the job's folder."""
        folder = self.folder(job.key)
        request = {"key": job.key, **asdict(job)}
        if not (folder / "job.json").is_file() or read_json(folder / "job.json")["config"] != request["config"]:
            write_json(folder / "job.json", request)  # an older version may have written the configuration differently
        for name, key in job.reads.items():
            record = self.result(key)
            assert record is not None, f"{job.label}: {key} is not done"
            write_json(folder / READ / f"{name}.json", record["result"])
        return folder

    def is_here(self, key: str) -> bool:
        """Return whether the job finished in this store, so that other jobs can read its folder."""
        return (self.folder(key) / "result.json").is_file()

    def result(self, key: str) -> dict[str, Any] | None:
        """Return the result of a job, from its result.json or the committed file, or None if it is not done."""
        path = self.folder(key) / "result.json"
        if not path.is_file():
            return self._kept.get(key)
        try:
            record = read_json(path)
        except ValueError as error:
            raise Unreadable(str(error)) from error
        if not isinstance(record, dict) or record.get("key") != key or not isinstance(record.get("result"), dict):
            raise Unreadable(f"{path}: expected the result of {key}, got something else.")
        return record

    def difference_from_kept(self, job: Job) -> str:
        """Describe how text that was prepared here differs from the text of the kept result; return "" if it does not.

        Prepared text must be the same on every machine, unlike the models that are trained on it.
        """
        here, kept = self.result(job.key), self._kept.get(job.key)
        if job.kind not in DATA_KINDS or here is None or kept is None:
            return ""
        before, now = kept["result"], here["result"]
        changed = [
            f"{name} was {before[name]} and is {now[name]}" for name in now if before.get(name, now[name]) != now[name]
        ]
        if not changed:
            return ""
        return (
            f"{job.label}: the data differ from those of the results in {self.kept}: {'; '.join(changed)}. Put the old "
            f"files back, or leave --kept out and name another --out to begin anew."
        )

    def set_aside(self, key: str, why: str = "unreadable") -> Path:
        """Rename a result that cannot be used, so that the job is done again; return its new path."""
        path = self.folder(key) / "result.json"
        aside = path.with_name(f"result.{why}-{time.time_ns()}.json")
        path.rename(aside)
        return aside


def export_study(folder: Path, target: Path) -> list[Path]:
    """Copy what is worth committing: results.json, the measures of each analysis, and the results of all jobs.

    From the results of jobs, `headway study --kept` can continue the study on another machine.
    """
    results = read_json(folder / "results.json")
    kept = [target / "results.json", write_records(target, _records(results, folder, target))]
    with atomic_path(kept[0]) as temporary:
        temporary.write_text(json.dumps(results, ensure_ascii=False) + "\n", encoding="utf-8")
    for row, analysis in results["analysis"].items():
        place = Path("analysis", file_name(row), "measures.json")
        measures = folder / results["study"]["store"] / analysis["folder"] / "analysis" / "measures.json"
        if not measures.is_file() and results["study"].get("kept"):
            measures = folder / results["study"]["kept"] / place
        if measures.is_file():
            kept.append(target / place)
            content = measures.read_bytes()
            with atomic_path(kept[-1]) as temporary:
                temporary.write_bytes(content)
    return kept


def write_records(folder: Path, records: Mapping[str, Mapping[str, Any]]) -> Path:
    """Write the records of finished jobs to a file, one a line; return its path."""
    path = folder / RECORDS
    lines = [json.dumps(records[key], ensure_ascii=False, separators=(",", ":")) for key in sorted(records)]
    with atomic_path(path) as temporary:
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def read_records(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the records in a folder that `headway report --keep` wrote."""
    path = folder / RECORDS
    if not path.is_file():
        raise FileNotFoundError(
            f"kept: expected {RECORDS} in {folder}, got none. `headway report STUDY --keep {folder}` writes it."
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
    """Return the records of finished jobs by key, from the store or, where it has none, from earlier records."""
    about = results["study"]
    earlier: dict[str, Any] = read_records(folder / about["kept"]) if about.get("kept") else {}
    for place in (folder, target):
        if (place / RECORDS).is_file():
            earlier |= read_records(place)
    records = {}
    for key in dict.fromkeys(job["key"] for job in results["jobs"] if job["state"] == "done"):
        path = folder / about["store"] / key / "result.json"
        if path.is_file():
            records[key] = read_json(path)
        elif key in earlier:
            records[key] = earlier[key]
        else:
            raise FileNotFoundError(
                f"keep: job {key} is done, but its result is not in {path.parent}, and --kept would lack it. Put the "
                f"job's folder back, or run the study again; nothing was written."
            )
    return records
