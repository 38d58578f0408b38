"""Lines from a file or standard input, translated in their order as they come."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TextIO

from headway.bench.data.text.readers import Problems
from headway.bench.data.translation.readers import lines
from headway.storage import atomic_path, check_file

BLOCK = 4096  # lines of a file that are sorted by length together
STANDARD = "-"


def blocks(source: str) -> Iterator[list[str]]:
    """The lines of a file, many at a time; of standard input ("-"), as many as have come, so that nobody waits."""
    if source == STANDARD:
        yield from _arrived(sys.stdin.buffer)
        return
    path = Path(source)
    if not path.is_file():
        raise FileNotFoundError(f"input: expected a file, or - for standard input, got {source!r}, which is none.")
    each = (line or "" for _, line in lines(path, Problems("raise"), otherwise=""))
    while block := list(islice(each, BLOCK)):
        yield block


def check_output(path: str | None) -> None:
    """Raise where a file could not be written in the end; None and "-" are standard output."""
    if path is not None and path != STANDARD:
        check_file(path)


@contextmanager
def output(path: str | None) -> Iterator[TextIO]:
    """A file that is there when it is whole, or standard output."""
    check_output(path)
    with nullcontext() if path in (None, STANDARD) else atomic_path(str(path)) as temporary:
        if temporary is None:
            yield sys.stdout
        else:
            with temporary.open("w", encoding="utf-8") as file:
                yield file


def _arrived(file: BinaryIO) -> Iterator[list[str]]:
    waiting: queue.Queue[str | Exception | None] = queue.Queue(BLOCK)

    def read() -> None:
        try:
            for number, raw in enumerate(file, start=1):
                waiting.put(_decoded(raw, number))
            waiting.put(None)
        except Exception as error:  # raised where lines are asked for
            waiting.put(error)

    threading.Thread(target=read, daemon=True, name="standard input").start()
    block: list[str] = []
    while True:
        item = waiting.get()
        if isinstance(item, str):
            block.append(item)
            if not waiting.empty() and len(block) < BLOCK:
                continue
        if block:
            yield block
            block = []
        if isinstance(item, Exception):
            raise item
        if item is None:
            return


def _decoded(raw: bytes, number: int) -> str:
    try:
        return raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"standard input, line {number}: expected UTF-8, got byte 0x{raw[error.start]:02x} ({error.reason}). "
            f"Convert it (iconv -f LATIN1 -t UTF-8)."
        ) from error


def read_lines(path: str) -> list[str]:
    """All lines of a text file."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"input: expected a text file, got {path!r}, which is none. Check the path.")
    return [line or "" for _, line in lines(Path(path), Problems("raise"), otherwise="")]
