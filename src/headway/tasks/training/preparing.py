"""Data that a run makes before it trains: what they are made of is written down, and what is being done is said."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from headway.storage import read_json, write_json


def claim(folder: Path, wanted: Mapping[str, Any]) -> None:
    """Write down what the data are made of; what an earlier attempt made of something else goes."""
    wanted = json.loads(json.dumps(wanted))
    record = folder / "text.json"
    if folder.exists() and not (record.exists() and read_json(record) == wanted):
        shutil.rmtree(folder)
    if not record.exists():
        write_json(record, wanted)


@contextmanager
def telling(show: bool) -> Iterator[Callable[[str], None]]:
    """A line on the terminal that says what is being done; elsewhere nothing."""
    console = Console(stderr=True)
    if not show or not console.is_terminal:
        yield lambda said: None
        return
    with console.status("") as status:
        yield lambda said: status.update(said)
