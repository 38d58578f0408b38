"""A table of all encodings: where each acts, how many parameters it has, whether it extends beyond max_length."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from headway.encodings.choice import encoding
from headway.encodings.registry import ENCODINGS


@dataclass(frozen=True, kw_only=True, slots=True)
class Overview:
    """One row of the table."""

    name: str
    places: tuple[str, ...]
    sharing: str | None  # default; None if it has nothing to share
    parameters: int
    extends: bool
    paper: str


def overview(*, num_layers: int = 12, num_heads: int = 12, head_dim: int = 64, max_length: int = 512) -> list[Overview]:
    """Describe every encoding with its default options, by default for BERT-base."""
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
