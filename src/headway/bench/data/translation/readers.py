"""One reader a format: two parallel files, a table or Hub rows as a stream of pairs; errors name file and line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from headway.bench.data.text.readers import COMPRESSED, TORN, Problems, hub_rows

MAX_LINE = 1 << 24  # bytes
SKIP = "or leave such rows out with --on-error skip"


class Pair(NamedTuple):
    """A sentence, its translation, and the place where they were read."""

    source: str
    target: str
    where: str


def read_files(source: Path, target: Path, problems: Problems) -> Iterator[Pair]:
    """Two files whose lines with the same number are a pair."""
    both = zip_longest(lines(source, problems), lines(target, problems), fillvalue=(0, None))
    for (number, one), (other_number, other) in both:
        if number != other_number:
            raise misaligned(source, target, min(number, other_number) or max(number, other_number) - 1)
        if one is not None and other is not None:
            yield Pair(one.strip(), other.strip(), f"{source}, line {number}")


def misaligned(source: Path, target: Path, after: int) -> ValueError:
    counts = {path: sum(1 for _ in lines(path, Problems("skip"))) for path in (source, target)}
    return ValueError(
        f"target: expected as many lines in {target} as in {source} ({counts[source]:,}), got {counts[target]:,}: "
        f"one of them ends after line {after:,}. Line n of the one must translate line n of the other."
    )


def read_table(path: Path, problems: Problems) -> Iterator[Pair]:
    """A sentence, a tab, and its translation a line."""
    for number, line in lines(path, problems):
        if line is None:
            continue
        where = f"{path}, line {number}"
        columns = line.split("\t")
        if len(columns) != 2:
            problems.add(
                f"{where}: expected a sentence, one tab and its translation, got {len(columns)} columns. "
                f"Mend the line, cut the file to two columns (cut -f1,2), {SKIP}."
            )
            continue
        yield Pair(columns[0].strip(), columns[1].strip(), where)


def read_jsonl(path: Path, problems: Problems, languages: tuple[str, str]) -> Iterator[Pair]:
    """A JSON object a line, such as {"translation": {"de": ..., "en": ...}} or {"de": ..., "en": ...}."""
    for number, line in lines(path, problems):
        if line is None or not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            problems.add(f"{where}: expected a JSON object, got {error}. Mend the line, {SKIP}.")
            continue
        yield from _row(row, languages, where, problems)


def read_hub(
    name: str, config: str | None, split: str, problems: Problems, languages: tuple[str, str]
) -> Iterator[Pair]:
    """The rows of a dataset on the Hub as pairs."""
    for where, row in hub_rows(name, config, split):
        yield from _row(row, languages, where, problems)


def lines(path: Path, problems: Problems, otherwise: str = f", {SKIP}") -> Iterator[tuple[int, str | None]]:
    """The numbered lines of a text file, without their ends; None for one that cannot be read.

    Lines end with a newline only: other characters that Unicode calls line ends stand inside sentences.

    Args:
        otherwise: what else a reader of the message could do about a line that is no text.
    """
    number = 0
    try:
        with COMPRESSED[path.suffix](path) if path.suffix in COMPRESSED else path.open("rb") as file:
            while raw := file.readline(MAX_LINE):
                number += 1
                yield number, _decoded(raw, f"{path}, line {number}", number == 1, problems, otherwise)
    except TORN as error:  # always raised: the other file of a pair would go on
        raise ValueError(
            f"{path}, after line {number}: expected more of the compressed file, got {error}. "
            f"It is cut off or damaged: fetch it again."
        ) from error
    if number == 0:
        raise ValueError(f"{path}: expected text, got an empty file. Write it again, or name another.")


def _decoded(raw: bytes, where: str, first: bool, problems: Problems, otherwise: str) -> str | None:
    if len(raw) == MAX_LINE:
        raise ValueError(f"{where}: expected less than {MAX_LINE >> 20} MiB a line, got more. Is it a text file?")
    try:
        return raw.decode("utf-8-sig" if first else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        problems.add(
            f"{where}: expected UTF-8, got byte 0x{raw[error.start]:02x} ({error.reason}). "
            f"Convert the file (iconv -f LATIN1 -t UTF-8){otherwise}."
        )
        return None


def _row(row: Any, languages: tuple[str, str], where: str, problems: Problems) -> Iterator[Pair]:
    texts = row.get("translation", row) if isinstance(row, dict) else row
    source, target = (texts.get(language) if isinstance(texts, dict) else None for language in languages)
    if not isinstance(source, str) or not isinstance(target, str):
        got = ", ".join(map(str, texts)) if isinstance(texts, dict) else repr(row)[:50]
        problems.add(f"{where}: expected text in {languages[0]} and {languages[1]}, got {got}. Mend the row, {SKIP}.")
        return
    yield Pair(" ".join(source.split()), " ".join(target.split()), where)
