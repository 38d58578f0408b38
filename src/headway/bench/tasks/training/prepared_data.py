"""Data that a run makes before it trains: what they are made of is written down, and what is being done is said."""

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
    """Write down what the data are made of: how, and fingerprints of what is read.

    What an earlier attempt made of something else goes.
    """
    wanted = json.loads(json.dumps({**settings, "sources": sources}))
    record = folder / "text.json"
    if folder.exists() and not (record.exists() and read_json(record) == wanted):
        record.unlink(missing_ok=True)  # first, so that what is left of the rest is never taken for whole
        shutil.rmtree(folder)
    if not record.exists():
        write_json(record, wanted)


def has_settings(folder: Path, settings: Mapping[str, Any]) -> bool:
    """Whether data made in that way are there, of whatever sources."""
    record = folder / "text.json"
    if not record.exists():
        return False
    there = read_json(record)
    same: bool = {name: there.get(name) for name in settings} == json.loads(json.dumps(settings))
    return same


def sources_changed(folder: Path, sources: Sequence[Any]) -> bool:
    """Whether what the data were made of is another today. Of what is gone (None) nothing is known; data stay data."""
    record = folder / "text.json"
    return record.exists() and fingerprints_changed(read_json(record)["sources"], sources)


def fingerprints_changed(before: Sequence[Any], sources: Sequence[Any]) -> bool:
    """The same of fingerprints that were written down."""
    today = json.loads(json.dumps(sources))
    return len(before) != len(today) or any(
        now is not None and now != then for then, now in zip(before, today, strict=True)
    )


def fingerprint_if_present(fingerprint: Callable[..., Any], *of: Any) -> Any:
    """A fingerprint, or None where what it is of does not exist."""
    try:
        return fingerprint(*of)
    except FileNotFoundError:
        return None


@contextmanager
def status_line(show: bool) -> Iterator[Callable[[str], None]]:
    """A line on the terminal that says what is being done; elsewhere nothing."""
    console = Console(stderr=True)
    if not show or not console.is_terminal:
        yield lambda said: None
        return
    with console.status("") as status:
        yield lambda said: status.update(said)
