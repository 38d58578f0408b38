"""Data that a run prepares before it trains, with a record of the settings and sources that they were made from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from headway.storage import read_json, write_json


def begin_data(folder: Path, settings: Mapping[str, Any], sources: Sequence[Any]) -> None:
    """Record how data are made, and fingerprints of their sources; delete data that were made from anything else."""
    wanted = json.loads(json.dumps({**settings, "sources": sources}))
    record = folder / "text.json"
    if folder.exists() and not (record.exists() and read_json(record) == wanted):
        record.unlink(missing_ok=True)  # first, so that half-deleted data are never taken for complete
        shutil.rmtree(folder)
    if not record.exists():
        write_json(record, wanted)


def has_settings(folder: Path, settings: Mapping[str, Any]) -> bool:
    """Return whether there are data made with these settings, from any sources."""
    record = folder / "text.json"
    if not record.exists():
        return False
    there = read_json(record)
    same: bool = {name: there.get(name) for name in settings} == json.loads(json.dumps(settings))
    return same


def sources_changed(folder: Path, sources: Sequence[Any]) -> bool:
    """Return whether sources of the data have changed; a source that no longer exists (None) does not count."""
    record = folder / "text.json"
    return record.exists() and fingerprints_changed(read_json(record)["sources"], sources)


def fingerprints_changed(before: Sequence[Any], sources: Sequence[Any]) -> bool:
    """Return whether any of the recorded fingerprints has changed; one of None does not count."""
    today = json.loads(json.dumps(sources))
    return len(before) != len(today) or any(
        now is not None and now != then for then, now in zip(before, today, strict=True)
    )


def fingerprint_if_present(fingerprint: Callable[..., Any], *of: Any) -> Any:
    """Return a fingerprint, or None if its source does not exist."""
    try:
        return fingerprint(*of)
    except FileNotFoundError:
        return None


@contextmanager
def status_line(show: bool) -> Iterator[Callable[[str], None]]:
    """Show a line of status on the terminal, which the yielded function sets; elsewhere show nothing."""
    console = Console(stderr=True)
    if not show or not console.is_terminal:
        yield lambda said: None
        return
    with console.status("") as status:
        yield lambda said: status.update(said)
