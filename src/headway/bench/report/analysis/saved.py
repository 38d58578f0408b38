"""The files that `headway analyze` saved about one model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.storage import read_json

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Saved:
    """A folder with measures.json and arrays.npz; config.json where a command made them."""

    folder: Path
    measures: dict[str, Any]
    arrays: dict[str, Array]  # by dotted name, such as "heads.mean"
    config: dict[str, Any] | None
    command: str | None
    environment: dict[str, Any] | None

    @property
    def name(self) -> str:
        """Return the model's name."""
        if self.config is None:
            return f"a {self.measures['model']['model_type']} model"
        source = Path(self.config["model"])  # many folders are called "model", so that their parent is named too
        return str(Path(*source.parts[-2:])) if self.config["weights"] else str(source)

    @property
    def curve_terms(self) -> list[str]:
        """Return the names of the terms of a bias that is a sum."""
        start = "curves.terms."
        return [name.removeprefix(start) for name in self.arrays if name.startswith(start)]

    def per_head(self, name: str) -> Array:
        """Reshape an array over layers and heads to one row for each head: (layers * H, ...)."""
        array = self.arrays[name]
        return array.reshape(-1, *array.shape[2:])


def read_saved(folder: str | os.PathLike[str]) -> Saved:
    """Read a folder, and check that its two files are of one analysis."""
    folder = Path(folder)
    measures = read_json(folder / "measures.json")
    arrays_file = folder / "arrays.npz"
    if not arrays_file.is_file():
        raise FileNotFoundError(
            f"{arrays_file}: expected the arrays beside measures.json, got none. Analyse the model again."
        )
    with np.load(arrays_file, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    if not isinstance(measures, dict) or measures.get("arrays") != shapes:
        raise ValueError(
            f"{folder}: expected measures.json and arrays.npz of one analysis, got two that differ. "
            f"Analyse the model again."
        )
    config_file = folder / "config.json"
    record = read_json(config_file) if config_file.is_file() else {}
    return Saved(folder, measures, arrays, record.get("config"), record.get("command"), record.get("environment"))
