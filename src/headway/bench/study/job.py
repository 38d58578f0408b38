"""One job of a study: its description, its folder, and how it runs; `python -m headway.bench.study.job FOLDER`."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.bench.processes import end_with_parent
from headway.encodings import EncodingChoice
from headway.storage import config_hash, exclusive, read_json, remove_leftovers, write_json

DATA_KINDS = ("text", "pairs")  # kinds of jobs that prepare what others are trained on
READ = "read"  # folder inside a job's, with one file for each result that it reads
FORMAT = 1  # part of every key: raise it when jobs of an older version must not be reused


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """A kind of work and its configuration.

    Args:
        kind: a name in `headway.bench.study.kinds.KINDS`.
        config: plain values, as JSON has them.
        needs: keys of the jobs whose folders this one reads, by the names that its kind uses for them.
        reads: keys of the jobs of which it reads the result alone, by name. Their folders may be gone, as where
            results were exported.
        label: description that is shown; equal jobs may have different ones.
        alone: whether it must run alone, because it measures time.
        weights: approximate number of parameters of the model that is trained, for estimates of time.
    """

    kind: str
    config: Mapping[str, Any]
    needs: Mapping[str, str] = field(default_factory=dict)
    reads: Mapping[str, str] = field(default_factory=dict)
    label: str = ""
    alone: bool = False
    weights: float = 0.0

    @property
    def key(self) -> str:
        """Return KIND-HASH. Equal jobs have equal keys, also in different studies, which therefore can share them."""
        hashed = {"kind": self.kind, "config": _as_hashed(self.config), "needs": self.needs, "format": FORMAT}
        return f"{self.kind}-{config_hash({**hashed, 'reads': self.reads} if self.reads else hashed)}"

    @property
    def after(self) -> dict[str, str]:
        """The keys of all jobs that must be done before this one."""
        return {**self.needs, **self.reads}


def _as_hashed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration in the form of the first version of this program, so that old jobs keep their hashes.

    In that form `intervals` is called `rhythm`, and an encoding is not one text: models have `encoding`, `options`
    (`encoding_options` where parameters are counted), `sharing`, which was that of segments too, and, if they have any,
    `segments`; conversions have options beside `to`; rows of a table of costs separate options by colons, `sharing`
    first.
    """
    found = {"rhythm" if name == "intervals" else name: value for name, value in config.items()}
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
    options = {"sharing": choice.sharing, **choice.options, "segments": choice.segments, **_unlike_positions(choice)}
    return ":".join([choice.name, *(f"{name}={value}" for name, value in options.items() if value is not None)])


def _unlike_positions(choice: EncodingChoice) -> dict[str, str]:
    """Return the sharing of segments if it differs from that of positions; the first version could not choose it."""
    own = choice.segment_sharing or "none"
    return {} if choice.segments != "per-head" or own == (choice.sharing or "none") else {"segment_sharing": own}


def run_job(folder: Path) -> None:
    """Do the job of a folder, unless it is done. A lock keeps two processes from doing the same job."""
    from headway.bench.study.kinds import KINDS

    with exclusive(folder):
        remove_leftovers(folder)
        if (folder / "result.json").is_file():
            return
        request = read_json(folder / "job.json")
        inputs = {name: folder.parent / key for name, key in request["needs"].items()}
        for name, path in inputs.items():
            if not (path / "result.json").is_file():
                raise FileNotFoundError(
                    f"{name}: this job needs the result of {path}, which is not finished. Do that job first."
                )
        inputs |= {name: folder / READ / f"{name}.json" for name in request.get("reads", {})}
        wall, cpu = time.perf_counter(), _cpu()
        result = KINDS[request["kind"]](request["config"], inputs, folder)
        done = {"key": request["key"], "result": result, "seconds": time.perf_counter() - wall}
        write_json(folder / "result.json", {**done, "cpu_seconds": _cpu() - cpu, "bytes": _size(folder)})


def run_and_report(folder: Path) -> int:
    """Do the job of a folder; return 0 when it is done, and 1, after printing the traceback, when it failed."""
    try:
        run_job(folder)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _cpu() -> float:
    """Return the CPU seconds of this process and of those that it waited for."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m headway.bench.study.job FOLDER")
    end_with_parent()
    sys.exit(run_and_report(Path(sys.argv[1])))
