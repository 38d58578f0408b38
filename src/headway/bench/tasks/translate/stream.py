"""Lines to translate, from a file or as they arrive on standard input, and the file to write."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TextIO

from headway.bench.data.reading import Problems, read_lines
from headway.storage import atomic_path, check_file, decode_line

BLOCK = 4096  # number of lines that are sorted by length together
STANDARD = "-"


def blocks(source: str) -> Iterator[list[str]]:
    """Yield the lines of a file in blocks; from standard input ("-"), those that have arrived, without waiting."""
    if source == STANDARD:
        yield from _arrived_lines(sys.stdin.buffer)
        return
    if not Path(source).is_file():
        raise FileNotFoundError(f"input: expected a file, or - for standard input, got {source!r}: no such file.")
    lines = file_lines(source)
    while block := list(islice(lines, BLOCK)):
        yield block


def file_lines(path: str) -> Iterator[str]:
    """Yield the lines of a text file; raise where it is not there or empty."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"input: expected a text file, got {path!r}: no such file. Check the path.")
    problems, empty = Problems("raise"), True
    for _, line in read_lines(Path(path), problems):
        empty = False
        yield line or ""
    if empty:
        problems.add_empty(Path(path))


def check_output(path: str | None) -> None:
    """Raise if a file cannot be written; None and "-" are standard output."""
    if path is not None and path != STANDARD:
        check_file(path)


@contextmanager
def output(path: str | None) -> Iterator[TextIO]:
    """Open a file that appears when it is complete, or standard output."""
    check_output(path)
    with nullcontext() if path in (None, STANDARD) else atomic_path(str(path)) as temporary:
        if temporary is None:
            yield sys.stdout
        else:
            with temporary.open("w", encoding="utf-8") as file:
                yield file


def _arrived_lines(file: BinaryIO) -> Iterator[list[str]]:
    waiting: queue.Queue[str | Exception | None] = queue.Queue(BLOCK)

    def read() -> None:
        try:
            start = 0
            for number, raw in enumerate(file, start=1):
                waiting.put(decode_line(raw, f"standard input, line {number}", start).strip())
                start += len(raw)
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
