"""Read rows of files and of Hub datasets.

Files hold UTF-8 and may be compressed (.gz, .xz). Errors name the file and the line. A bad row stops the reader, or is
left out and counted, as `Problems` is asked to.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, TypeVar

from headway.storage import decode_line

MAX_LINE = 1 << 26  # bytes
SHOWN = 10  # messages kept of problems that are counted
FINGERPRINT_BYTES = 1 << 16
COMPRESSED: dict[str, Callable[[Path], Any]] = {".gz": gzip.open, ".xz": lzma.open}
T = TypeVar("T")


class DamagedFile(ValueError):
    """A compressed file that ends too early or cannot be decompressed."""


class Problems:
    """Raise the first problem of a source, or count all of them and keep the first ten messages.

    Args:
        on_error: "raise" or "skip".
        how_to_skip: what a user changes to skip bad rows; messages that are raised end with it.
    """

    def __init__(self, on_error: str = "raise", how_to_skip: str = "") -> None:
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error: expected raise or skip, got {on_error!r}. Use one of those.")
        self.on_error, self.how_to_skip = on_error, how_to_skip
        self.count = 0
        self.first: list[str] = []

    def add(self, message: str) -> None:
        if self.on_error == "raise":
            advice = f" To leave bad rows out and count them, use {self.how_to_skip}." if self.how_to_skip else ""
            raise ValueError(message + advice)
        self.count += 1
        if len(self.first) < SHOWN:
            self.first.append(message)

    def add_empty(self, path: Path) -> None:
        self.add(f"{path}: expected text, got an empty file. Fetch or write it again, or remove it.")

    def clear(self) -> None:
        self.count, self.first = 0, []


def read_lines(path: Path, problems: Problems) -> Iterator[tuple[int, str | None]]:
    """Yield the number and text of each line of a file; the text of a line that cannot be read is None.

    Lines end with a newline only, since other characters that Unicode calls line ends stand inside sentences. A
    damaged compressed file raises `DamagedFile`, whatever happens to bad lines: what follows is lost, not skipped.
    """
    number = start = 0  # of the line, and of its first byte
    try:
        with COMPRESSED[path.suffix](path) if path.suffix in COMPRESSED else path.open("rb") as file:
            while raw := file.readline(MAX_LINE):
                number += 1
                where = f"{path}, line {number}"
                if len(raw) == MAX_LINE and not raw.endswith(b"\n"):
                    start += len(raw) + _skip_line(file)
                    problems.add(f"{where}: expected less than {MAX_LINE >> 20} MiB a line. Break the text into lines.")
                    yield number, None
                    continue
                try:
                    yield number, decode_line(raw, where, start)
                except UnicodeError as error:
                    problems.add(str(error))
                    yield number, None
                start += len(raw)
    except (EOFError, lzma.LZMAError, gzip.BadGzipFile, zlib.error) as error:
        raise DamagedFile(
            f"{path}, after line {number}: expected more of the compressed file, got {error}. "
            f"It is cut off or damaged: fetch it again."
        ) from error


def until_damage(rows: Iterable[T], problems: Problems) -> Iterator[T]:
    """Yield rows up to the place where their compressed file is damaged, which is one problem among others."""
    try:
        yield from rows
    except DamagedFile as error:
        problems.add(str(error))


def read_json_lines(path: Path, problems: Problems) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the object of each line of a .jsonl file; blank lines are passed over."""
    empty = True
    for number, line in read_lines(path, problems):
        if line is not None and not line.strip():
            continue
        empty = False
        if line is None:
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # also numbers of too many digits, and brackets in brackets
            problems.add(f"{where}: expected a JSON object, got {error}. Correct the line.")
            continue
        if isinstance(row, dict):
            yield where, row
        else:
            problems.add(f"{where}: expected a JSON object, got {type(row).__name__}. Correct the line.")
    if empty:
        problems.add_empty(path)


def read_tsv(path: Path, problems: Problems, widths: Sequence[int] = ()) -> Iterator[tuple[str, list[str]]]:
    """Yield the place and the cells of each line of a .tsv file, its header included.

    All lines must have as many cells as the first. Quotes are plain characters: only tabs and newlines separate.

    Args:
        widths: numbers of cells that the first line may have; any unless given.
    """
    wanted = 0
    for number, line in read_lines(path, problems):
        if line is None:
            continue
        where, cells = f"{path}, line {number}", line.split("\t")
        if not wanted:
            wanted = len(cells) if not widths or len(cells) in widths else widths[0]
        if len(cells) == wanted:
            yield where, cells
        else:
            problems.add(
                f"{where}: expected {wanted} columns with tabs between them, got {len(cells)}: {line[:60]!r}. "
                f"The row is cut off, broken in two or has more columns: fetch the file again or correct the row."
            )
    if not wanted:
        problems.add_empty(path)


def read_json_file(path: Path, problems: Problems) -> Any:
    """Return the value that a JSON file holds, or None where it cannot be read and problems are skipped."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:  # not JSON, or not UTF-8
        problems.add(f"{path}: expected JSON, got {error}. It may be cut off: fetch it again.")
        return None


def read_parquet(path: Path, column: str, problems: Problems) -> Iterator[tuple[str, Any]]:
    """Yield the place and the value of each row of a column."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError(f"{path}: expected pyarrow, which reads parquet. pip install 'headway[hub]'.") from error
    row = 0
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            if column not in names:
                raise ValueError(
                    f"{path}: expected a column {column!r}, got {', '.join(names)}. Pass text_field=COLUMN."
                )
            for batch in file.iter_batches(batch_size=256, columns=[column]):
                for value in batch.column(0):
                    row += 1
                    try:
                        yield f"{path}, row {row}", value.as_py()
                    except UnicodeDecodeError as error:
                        problems.add(f"{path}, row {row}: expected UTF-8, got {error}. Correct the row.")
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's error, not one in what the file holds
            raise
        said = " ".join(str(error).split()).rstrip(".")
        problems.add(f"{path}: expected a parquet file, got {said}. Fetch or write it again.")
        return
    if row == 0:
        problems.add_empty(path)


def source_kind(source: str | os.PathLike[str]) -> Literal["builtin", "hub", "files"]:
    """Return what a source names: the built-in language, a dataset on the Hub, or a file or folder.

    A file or folder whose name is "builtin" or "hub" is written with its folder: ./hub.
    """
    first = os.fspath(source).split(":")[0]
    return "builtin" if first == "builtin" else "hub" if first == "hub" else "files"


class HubName(NamedTuple):
    """A dataset on the Hub, or a folder that the `datasets` library can load."""

    name: str
    config: str | None
    split: str

    @classmethod
    def parse(cls, source: str, split: str) -> HubName:
        """Read "hub:NAME[:CONFIG[:SPLIT]]"; `split` is the one to take unless the text says another."""
        _, *parts = source.split(":")
        if not any(parts[:1]) or len(parts) > 3:
            raise ValueError(
                f"source: expected hub:NAME[:CONFIG[:SPLIT]], got {source!r}. Write hub:wmt14:de-en:train."
            )
        name, config, said = [*parts, "", ""][:3]
        return cls(name, config or None, said or split)


def read_hub(dataset: HubName, *, stream: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the row of each row of a dataset.

    Args:
        stream: read rows as they arrive, rather than fetch and cache the whole split first.
    """
    name, config, split = dataset
    where = f"hub:{name}" + (f":{config}" if config else "")
    try:
        import datasets
    except ImportError as error:
        raise ImportError(f"{where}: expected the datasets library. pip install 'headway[hub]'.") from error
    try:
        rows = datasets.load_dataset(name, config, split=split, **({"streaming": True} if stream else {}))
    except (OSError, ValueError) as error:  # not there, offline, no such configuration or split
        raise ValueError(
            f"{where}: expected a dataset with split {split}, got: {error}. Check the name, the network, and HF_TOKEN "
            f"for a private dataset; or name a folder with the files."
        ) from error
    for number, row in enumerate(rows, start=1):
        yield f"{where}, {split}, row {number}", row


def file_fingerprint(path: Path) -> list[Any]:
    """Return the name and size of a file and a hash of both its ends: cheap, and different for most changes."""
    size = path.stat().st_size
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(FINGERPRINT_BYTES))
        file.seek(max(0, size - FINGERPRINT_BYTES))
        digest.update(file.read())
    return [path.name, size, digest.hexdigest()[:16]]


def file_checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_share(text: str) -> float:
    """Return a number from 0 to 1 that depends on the text alone, by which splits are drawn."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") / 2**64


def _skip_line(file: BinaryIO) -> int:
    """Read to the end of the line and return how many bytes that was."""
    size = 0
    while raw := file.readline(MAX_LINE):
        size += len(raw)
        if raw.endswith(b"\n"):
            break
    return size
