"""All encodings side by side: where each acts, what it costs in parameters, whether it extends."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from headway.encodings.choice import encoding
from headway.encodings.registry import ENCODINGS


@dataclass(frozen=True, kw_only=True, slots=True)
class Overview:
    """One encoding in one line."""

    name: str
    places: tuple[str, ...]
    sharing: str | None  # its default; None where it has nothing to share
    parameters: int
    extends: bool
    paper: str


def overview(*, num_layers: int = 12, num_heads: int = 12, head_dim: int = 64, max_length: int = 512) -> list[Overview]:
    """Every encoding with its default options, for BERT-base unless other sizes are given."""
    rows = []
    for name, kind in ENCODINGS.items():
        with torch.device("meta"):  # shapes without memory
            built = encoding(name, num_layers=num_layers, num_heads=num_heads, head_dim=head_dim, max_length=max_length)
        rows.append(
            Overview(
                name=name,
                places=kind.places,
                sharing=kind.default_sharing,
                parameters=sum(parameter.numel() for parameter in built.parameters()),
                extends=kind.extends,
                paper=kind.paper,
            )
        )
    return rows
