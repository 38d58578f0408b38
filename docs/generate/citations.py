"""The entries of docs/references.bib, found by how the encodings name their papers."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

BIBLIOGRAPHY = Path(__file__).parents[1] / "references.bib"


@cache
def entries() -> dict[str, str]:
    parts = re.split(r"\n(?=@)", BIBLIOGRAPHY.read_text())
    return {re.match(r"@\w+\{(\w+),", part)[1]: part.strip() for part in parts}


def citations(paper: str) -> list[str]:
    """BibTeX of "Dai et al. 2019, Sec. 3.3; Yang et al. 2019": first author and year are the key."""
    found = []
    for part in paper.split(";"):
        author, year = re.match(r"\s*(\w+).*?(\d{4}[a-z]?)", part).groups()
        key = f"{author.lower()}{year}"
        if key not in entries():
            raise KeyError(f"references.bib: expected an entry {key}, for {paper!r}; it has {', '.join(entries())}.")
        found.append(entries()[key])
    return found
