"""One job of a study: its description, its folder, and how it runs; `python -m headway.bench.study.job FOLDER`."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from headway.bench.processes import end_with_parent
from headway.bench.study.kept import read_kept
from headway.encodings import EncodingChoice
from headway.storage import config_hash, exclusive, read_json, remove_leftovers, write_json

MADE = ("text", "pairs")  # kinds of jobs that make what others are trained on
FORMAT = 1  # part of every key: raise it when jobs of an older version must not be reused


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A kind of work and its configuration.

    Args:
        kind: a name in `headway.bench.study.kinds.KINDS`.
        config: plain values, as JSON has them.
        needs: what is read of other jobs: a name that the kind knows, and the other job's key.
        label: for people; equal jobs may have different ones.
        alone: not beside other jobs, because time is measured.
        weights: parameters of the model that is trained, roughly, for estimates of time.
    """

    kind: str
    config: Mapping[str, Any]
    needs: Mapping[str, str] = field(default_factory=dict)
    label: str = ""
    alone: bool = False
    weights: float = 0.0

    @property
    def key(self) -> str:
        """KIND-HASH; equal for equal work, in whatever study."""
        asked = {"kind": self.kind, "config": _as_hashed(self.config), "needs": self.needs, "format": FORMAT}
        return f"{self.kind}-{config_hash(asked)}"


def _as_hashed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Write encodings as jobs did when the committed results were made, so that the keys of these stay valid.

    Then an encoding was not one text: models had `encoding`, `options` (`encoding_options` where parameters were
    counted), `sharing`, which was that of segments too, and, if they had any, `segments`; conversions had options
    beside `to`; and rows of a table of costs separated options by colons, `sharing` first. Nothing is run in this form.
    """
    found = dict(config)
    if isinstance(model := found.get("model"), Mapping):
        counted = "vocabularies" in found
        choice = EncodingChoice.parse(model["encoding"])
        found["model"] = {
            **model,
            "encoding": choice.name,
            "sharing": choice.sharing,
            "encoding_options" if counted else "options": choice.options,
            **({} if choice.segments is None else {"segments": choice.segments}),
            **_unlike_positions(choice),
        }
    if isinstance(start := found.get("start"), Mapping) and start.get("segment_sharing") == "positions":
        found["start"] = {name: value for name, value in start.items() if name != "segment_sharing"}
    if found.get("change"):
        choice = EncodingChoice.parse(found["change"]["to"])
        sharing = {} if choice.sharing is None else {"sharing": choice.sharing}
        found["change"] = {**found["change"], "to": choice.name, **choice.options, **sharing}
    if "encodings" in found:
        found["encodings"] = [_row_as_hashed(text) for text in found["encodings"]]
        found["baseline"] = _row_as_hashed(found["baseline"])
    return found


def _row_as_hashed(text: str) -> str:
    choice = EncodingChoice.parse(text)
    said = {"sharing": choice.sharing, **choice.options, "segments": choice.segments, **_unlike_positions(choice)}
    return ":".join([choice.name, *(f"{name}={value}" for name, value in said.items() if value is not None)])


def _unlike_positions(choice: EncodingChoice) -> dict[str, str]:
    """Return the sharing of segments if it differs from that of positions, which it was before it could be chosen."""
    own = choice.segment_sharing or "none"
    return {} if choice.segments != "per-head" or own == (choice.sharing or "none") else {"segment_sharing": own}


class Unreadable(ValueError):
    """A result file that is there and cannot be used."""


class Store:
    """A folder of jobs, each in a folder of its key: job.json when it is asked, log.txt, and result.json at the end.

    Args:
        kept: a folder with results of jobs that ran elsewhere (`headway.bench.study.kept`); it has none of the other
            files of these jobs, such as models.
    """

    def __init__(self, path: Path, *, kept: Path | None = None) -> None:
        self.path, self.kept = path, kept
        self._kept = {} if kept is None else read_kept(kept)

    def folder(self, key: str) -> Path:
        return self.path / key

    def ask(self, job: Job) -> Path:
        """Write down what is asked, where it is not."""
        folder = self.folder(job.key)
        asked = {"key": job.key, **asdict(job)}
        if not (folder / "job.json").is_file() or read_json(folder / "job.json")["config"] != asked["config"]:
            write_json(folder / "job.json", asked)  # again where it was written before its configuration's form changed
        return folder

    def is_here(self, key: str) -> bool:
        """Whether the job was done in this store, so that others can read its folder."""
        return (self.folder(key) / "result.json").is_file()

    def result(self, key: str) -> dict[str, Any] | None:
        """What the job's result.json says, or what was kept of it, or None where it is not done."""
        path = self.folder(key) / "result.json"
        if not path.is_file():
            return self._kept.get(key)
        try:
            found = read_json(path)
        except ValueError as error:
            raise Unreadable(str(error)) from error
        if not isinstance(found, dict) or found.get("key") != key or not isinstance(found.get("result"), dict):
            raise Unreadable(f"{path}: expected the result of {key}, got something else.")
        return found

    def unlike_kept(self, job: Job) -> str:
        """What to say where text that was made here is another than the one of which the result was kept; else nothing.

        It is the same on every machine, unlike all that is trained on it.
        """
        here, kept = self.result(job.key), self._kept.get(job.key)
        if job.kind not in MADE or here is None or kept is None:
            return ""
        before, now = kept["result"], here["result"]
        changed = [
            f"{name} was {before[name]} and is {now[name]}" for name in now if before.get(name, now[name]) != now[name]
        ]
        if not changed:
            return ""
        return (
            f"{job.label}: expected it as it was for what is kept in {self.kept}, got another: {'; '.join(changed)}. "
            f"Put the old files back, or leave --kept out and name another --out to begin anew."
        )

    def set_aside(self, key: str, why: str = "unreadable") -> Path:
        """Rename a result that cannot be used, so that the job is done again; nothing is deleted."""
        path = self.folder(key) / "result.json"
        aside = path.with_name(f"result.{why}-{time.time_ns()}.json")
        path.rename(aside)
        return aside


def do(folder: Path) -> None:
    """Do the job of a folder, unless it is done. Two that ask for the same job take turns."""
    from headway.bench.study.kinds import KINDS

    with exclusive(folder):
        remove_leftovers(folder)
        if (folder / "result.json").is_file():
            return
        asked = read_json(folder / "job.json")
        inputs = {name: folder.parent / key for name, key in asked["needs"].items()}
        for name, path in inputs.items():
            if not (path / "result.json").is_file():
                raise FileNotFoundError(f"{name}: expected a finished job in {path}, got none. Do that one first.")
        wall, cpu = time.perf_counter(), _cpu()
        result = KINDS[asked["kind"]](asked["config"], inputs, folder)
        done = {"key": asked["key"], "result": result, "seconds": time.perf_counter() - wall}
        write_json(folder / "result.json", {**done, "cpu_seconds": _cpu() - cpu, "bytes": _size(folder)})


def do_and_report(folder: Path) -> int:
    """Do the job of a folder; return 0 when it is done, and 1, after printing the traceback, when it failed."""
    try:
        do(folder)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _cpu() -> float:
    """Seconds of this process and of those it waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m headway.bench.study.job FOLDER")
    end_with_parent()
    sys.exit(do_and_report(Path(sys.argv[1])))
