"""Rows of TSV and jsonl files as examples, with errors that name file and line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headway.bench.data.text.readers import Problems
from headway.bench.data.transfer.examples import Example
from headway.bench.data.transfer.task_sets import Table, TaskSet

Row = Mapping[str | int, Any]
NO_LABEL = ("", "-", "-1", "-1.0")  # how data sets write that annotators did not agree, or that it is kept back
SKIP = 'or pass on_error="skip" (--on-error skip) to leave such rows out'


def read_table(
    path: Path, table: Table, task: TaskSet, problems: Problems, *, labelled: bool, language: str
) -> list[Example]:
    """The examples of a file, those of one language where it holds several.

    Args:
        labelled: whether the file must have labels.
    """
    rows = _jsonl(path, problems) if path.suffix == ".jsonl" else _tsv(path, table, problems, labelled=labelled)
    return examples(rows, table, task, problems, labelled=labelled, language=language)


def examples(
    rows: Iterator[tuple[str, Row]], table: Table, task: TaskSet, problems: Problems, *, labelled: bool, language: str
) -> list[Example]:
    """The examples of rows, each with the place where it was read."""
    result: list[Example] = []
    seen: dict[str, str] = {}
    for number, (where, row) in enumerate(rows):
        if table.language is not None and row.get(table.language) != language:
            continue
        wanted = [table.first, table.second, table.label if labelled else None]
        lacking = [str(name) for name in wanted if name is not None and name not in row]
        if lacking:
            names = ", ".join(map(str, row))
            problems.add(f"{where}: expected the column {lacking[0]!r}, got {names}. Is it a file of {task.name}?")
            continue
        name = str(row[table.id]) if table.id is not None and table.id in row else str(number)
        if name in seen:
            problems.add(f"{where}: expected an id of its own, got {name!r} as in {seen[name]}. Mend the file, {SKIP}.")
            continue
        try:
            label = parse_label(row.get(table.label) if table.label is not None else None, task)
        except ValueError as error:
            problems.add(f"{where}: {error} Mend the row, {SKIP}.")
            continue
        seen[name] = where
        second = None if table.second is None else str(row[table.second])
        result.append(Example(name, str(row[table.first]), second, label))
    return result


def parse_label(value: Any, task: TaskSet) -> int | float | None:
    """The class's number, or the score; None where there is none."""
    text = "" if value is None else str(value).strip()
    if text in NO_LABEL:
        return None
    if task.kind == "number":
        try:
            score = float(text)
        except ValueError:
            score = float("nan")
        low, high = task.bounds
        if not low <= score <= high:
            raise ValueError(f"expected a score from {low:g} to {high:g}, got {text!r}.")
        return score
    text = task.aliases.get(text, text)
    if text not in task.labels:
        raise ValueError(f"expected a label among {', '.join(task.labels)}, got {text!r}.")
    return task.labels.index(text)


def _tsv(path: Path, table: Table, problems: Problems, *, labelled: bool) -> Iterator[tuple[str, Row]]:
    """Rows by column name, or by number where there is no header. Quotes and all but tab and newline are text."""
    names: list[str | int] | None = None
    for where, line in _lines(path, problems):
        cells = line.split("\t")
        if names is None:
            if table.header:
                names = [cell.strip() for cell in cells]
                continue
            assert table.width is not None
            unlabelled = not labelled and len(cells) == table.width - 1
            names = list(range(table.width - 1 if unlabelled else table.width))
        if len(cells) != len(names):
            problems.add(
                f"{where}: expected {len(names)} columns, got {len(cells)}: {line[:60]!r}. The row is cut off or "
                f"broken in two: fetch the file again, {SKIP}."
            )
            continue
        yield where, dict(zip(names, cells, strict=True))
    if names is None:
        problems.add(f"{path}: expected rows, got an empty file. Fetch it again.")


def _jsonl(path: Path, problems: Problems) -> Iterator[tuple[str, Row]]:
    empty = True
    for where, line in _lines(path, problems):
        if not line.strip():
            continue
        empty = False
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            problems.add(f"{where}: expected a JSON object, got {error}. Mend the line, {SKIP}.")
            continue
        if isinstance(row, dict):
            yield where, row
        else:
            problems.add(f"{where}: expected a JSON object, got {type(row).__name__}. Mend the line, {SKIP}.")
    if empty:
        problems.add(f"{path}: expected rows, got an empty file. Fetch it again.")


def _lines(path: Path, problems: Problems) -> Iterator[tuple[str, str]]:
    """Numbered lines, ended by newlines only: other ends of lines that Unicode knows stand inside texts."""
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            where = f"{path}, line {number}"
            try:
                yield where, raw.decode("utf-8-sig" if number == 1 else "utf-8").removesuffix("\n").removesuffix("\r")
            except UnicodeDecodeError as error:
                problems.add(f"{where}: expected UTF-8, got {error.reason} at byte {error.start}. Convert it, {SKIP}.")
