"""Files that are not as their command writes them are named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Say which file it is that lacks something, and what."""
    try:
        yield
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(
            f"{path}: expected what the project's command writes, got a file that lacks it "
            f"({type(error).__name__}: {error}). Write it again with that command, or remove it."
        ) from error
