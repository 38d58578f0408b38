"""One reader a format: a file or a Hub dataset as a stream of documents, with errors that name file and line."""

from __future__ import annotations

import gzip
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO

Document = list[str]  # lines: sentences or paragraphs

MAX_DOCUMENT = 1_000_000  # characters; what follows becomes another document
MAX_LINE = 1 << 26  # bytes
COMPRESSED: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".xz": lzma.open}
TORN = (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error)
SKIP = 'leave such lines out (--skip-bad-lines; of open_corpus, on_error="skip")'


class Problems:
    """What is wrong with a corpus: raised at once, or counted with the first few messages."""

    def __init__(self, on_error: str = "raise") -> None:
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error: expected raise or skip, got {on_error!r}. Use one of those.")
        self.on_error = on_error
        self.count = 0
        self.first: list[str] = []

    def add(self, message: str) -> None:
        if self.on_error == "raise":
            raise ValueError(message)
        self.count += 1
        if len(self.first) < 10:
            self.first.append(message)

    def clear(self) -> None:
        self.count, self.first = 0, []


def read_text(path: Path, problems: Problems, text_field: str = "") -> Iterator[Document]:
    """A sentence or paragraph a line, a blank line between documents."""
    empty = True
    for has_text, lines in groupby((line for _, line in _lines(path, problems)), key=bool):
        if has_text:
            empty = False
            yield from bounded(lines)
    if empty:
        problems.add(f"{path}: expected text, got an empty file. Remove it, or write it again.")


def read_jsonl(path: Path, problems: Problems, text_field: str) -> Iterator[Document]:
    """A JSON object a line, each with the text of a document."""
    empty = True
    for number, line in _lines(path, problems):
        if not line:
            continue
        empty = False
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # also numbers of too many digits, and brackets in brackets
            problems.add(f"{where}: expected a JSON object, got {error}. Mend the line, or {SKIP}.")
            continue
        if not isinstance(row, dict):
            problems.add(f"{where}: expected a JSON object, got {type(row).__name__}. Mend the line, or {SKIP}.")
            continue
        yield from _row(row, text_field, where, problems)
    if empty:
        problems.add(f"{path}: expected text, got an empty file. Remove it, or write it again.")


def read_parquet(path: Path, problems: Problems, text_field: str) -> Iterator[Document]:
    """A document a row."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError(f"{path}: expected pyarrow, which reads parquet. pip install 'headway[hub]'.") from error
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if text_field not in names:
                raise ValueError(
                    f"{path}: expected a column {text_field!r}, got {', '.join(names)}. Pass text_field=COLUMN."
                )
            row = 0
            for batch in file.iter_batches(batch_size=256, columns=[text_field]):
                for value in batch.column(0):
                    row += 1
                    where = f"{path}, row {row}"
                    try:
                        text = value.as_py()
                    except UnicodeDecodeError as error:
                        problems.add(f"{where}: expected UTF-8, got {error}. Mend the row, or {SKIP}.")
                        continue
                    yield from _row({text_field: text}, text_field, where, problems)
            if row == 0:
                problems.add(f"{path}: expected text, got a file without rows. Remove it, or write it again.")
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # not of what the file holds
            raise
        said = " ".join(str(error).split()).rstrip(".")
        problems.add(f"{path}: expected a parquet file, got {said}. Fetch or write it again.")


def read_hub(name: str, config: str | None, split: str, problems: Problems, text_field: str) -> Iterator[Document]:
    """The rows of a dataset on the Hub as documents."""
    for where, row in hub_rows(name, config, split):
        yield from _row(row, text_field, where, problems)


def hub_rows(name: str, config: str | None, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a dataset on the Hub (or in a folder that `datasets` can load), streamed, and what to call each."""
    where = f"hub:{name}"
    try:
        import datasets
    except ImportError as error:
        raise ImportError(f"{where}: expected the datasets library. pip install 'headway[hub]'.") from error
    try:
        rows = datasets.load_dataset(name, config, split=split, streaming=True)
    except (OSError, ValueError) as error:  # not there, offline, no such configuration or split
        raise ValueError(
            f"{where}: expected a dataset with configuration {config} and split {split}, got: {error}. "
            f"Check the name, the network, and HF_TOKEN for a private dataset."
        ) from error
    for number, row in enumerate(rows, start=1):
        yield f"{where}, row {number}", row


READERS: dict[str, Callable[[Path, Problems, str], Iterator[Document]]] = {
    ".txt": read_text,
    ".jsonl": read_jsonl,
    ".parquet": read_parquet,
}


def bounded(lines: Iterable[str]) -> Iterator[Document]:
    """The document, in parts where it is very long; nothing where it has no text."""
    part: Document = []
    size = 0
    for line in lines:
        for piece in _pieces(line):
            part.append(piece)
            size += len(piece)
            if size >= MAX_DOCUMENT:
                yield part
                part, size = [], 0
    if part:
        yield part


def _pieces(line: str) -> Iterator[str]:
    """The line, cut at spaces where it is longer than a document."""
    start = 0
    while len(line) - start > MAX_DOCUMENT:
        space = line.rfind(" ", start + 1, start + MAX_DOCUMENT + 1)
        end = space if space > 0 else start + MAX_DOCUMENT
        yield line[start:end].strip()
        start = end + (space > 0)
    yield line[start:].strip()


def _row(row: dict[str, Any], text_field: str, where: str, problems: Problems) -> Iterator[Document]:
    text = row.get(text_field)
    if text_field not in row:
        fields = ", ".join(map(str, row)) or "none"
        problems.add(f"{where}: expected a field {text_field!r}, got {fields}. Pass text_field=NAME, or {SKIP}.")
    elif not isinstance(text, str):
        problems.add(f"{where}: expected {text_field!r} to be text, got {text!r:.50}. Mend the row, or {SKIP}.")
    elif not _encodes(text):
        problems.add(f"{where}: expected Unicode text, got half of a surrogate pair. Mend the row, or {SKIP}.")
    else:
        yield from bounded([line for part in text.split("\n") if (line := part.strip())])


def _encodes(text: str) -> bool:
    """Whether the text is UTF-8; JSON may hold escapes that are not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _lines(path: Path, problems: Problems) -> Iterator[tuple[int, str]]:
    """The numbered lines of a text file, without white space at their ends."""
    number = 0
    try:
        with COMPRESSED.get(path.suffix, _open)(path) as file:
            start = 0
            while raw := file.readline(MAX_LINE):
                number += 1
                if len(raw) == MAX_LINE and not raw.endswith(b"\n"):
                    start += len(raw) + _skip_line(file)
                    problems.add(
                        f"{path}, line {number}: expected less than {MAX_LINE >> 20} MiB a line, got more. "
                        f"Break the text into lines, or {SKIP}."
                    )
                    continue
                text = _decode(raw, path, number, start, problems)
                start += len(raw)
                if text is not None:
                    yield number, text.strip()
    except TORN as error:
        problems.add(
            f"{path}, after line {number}: expected more of the compressed file, got {error}. "
            f"It is cut off or damaged: fetch it again."
        )


def _skip_line(file: BinaryIO) -> int:
    """Read to the end of the line and return how many bytes that was."""
    size = 0
    while raw := file.readline(MAX_LINE):
        size += len(raw)
        if raw.endswith(b"\n"):
            break
    return size


def _open(path: Path) -> BinaryIO:
    return path.open("rb")


def _decode(raw: bytes, path: Path, number: int, start: int, problems: Problems) -> str | None:
    try:
        text = raw.decode("utf-8-sig" if start == 0 else "utf-8")
        if "\0" not in text:
            return text
        problems.add(
            f"{path}, line {number}: expected text, got characters of number 0, as UTF-16 has for Latin letters. "
            f"Convert the file (iconv -f UTF-16LE -t UTF-8), or {SKIP}."
        )
        return None
    except UnicodeDecodeError as error:
        utf16 = start == 0 and raw[:2] in (b"\xff\xfe", b"\xfe\xff")
        problems.add(
            f"{path}, line {number}: expected UTF-8, got byte 0x{raw[error.start]:02x} at byte {start + error.start} "
            f"of the text ({error.reason}). Convert the file (iconv -f {'UTF-16' if utf16 else 'LATIN1'} -t UTF-8), "
            f"or {SKIP}."
        )
        return None
