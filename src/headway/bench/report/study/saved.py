"""What a study saved, read and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headway.storage import read_json

PARTS = (
    "study",
    "rows",
    "columns",
    "cells",
    "claims",
    "recipes",
    "pretraining",
    "analysis",
    "cost",
    "baselines",
    "jobs",
)


def read_results(folder: Path) -> dict[str, Any]:
    """The results of a study's folder."""
    path = folder / "results.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder}: expected the folder of a study with results.json, got none. `headway study` writes it."
        )
    found = read_json(path)
    missing = [part for part in PARTS if not isinstance(found, dict) or part not in found]
    if missing:
        raise ValueError(
            f"{path}: expected the results of a study, got a file without {', '.join(missing)}. "
            f"Give the command of the study again; what is done is not done twice."
        )
    return dict(found)
