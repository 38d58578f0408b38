"""Readers of the public formats of tasks: tables (TSV, jsonl), SQuAD's JSON, and the rows of Hub datasets.

Paper:  Rajpurkar et al. (2016), "SQuAD: 100,000+ Questions for Machine Comprehension of Text". XQuAD, MLQA and
        TyDiQA-GoldP share its format
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from headway.bench.data.reading import HubName, Problems, read_hub, read_json_file, read_json_lines, read_tsv
from headway.bench.data.transfer.spec import Answer, Example, Question, Table, TaskSpec

Row = Mapping[str | int, Any]
NO_LABEL = ("", "-", "-1", "-1.0")  # how data sets write that annotators did not agree, or that it is kept back
REPEAT = "#"  # between an id and the number of its repetition


# Tables


def read_table(
    path: Path, table: Table, task: TaskSpec, problems: Problems, *, labelled: bool, language: str
) -> list[Example]:
    """Return the examples of a .tsv or .jsonl file, those of one language where it holds several.

    Args:
        labelled: whether the file must have labels.
    """
    rows = read_json_lines(path, problems) if path.suffix == ".jsonl" else _tsv_rows(path, table, problems, labelled)
    return _examples(rows, table, task, problems, labelled=labelled, language=language)


def parse_label(value: Any, task: TaskSpec) -> int | float | None:
    """Return the number of a class, or a score; None where there is no label."""
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


def _examples(
    rows: Iterator[tuple[str, Any]], table: Table, task: TaskSpec, problems: Problems, *, labelled: bool, language: str
) -> list[Example]:
    result: list[Example] = []
    seen: dict[str, str] = {}
    for number, (where, row) in enumerate(rows):
        if table.language is not None and row.get(table.language) != language:
            continue
        wanted = [table.first, table.second, table.label if labelled else None]
        missing = [str(name) for name in wanted if name is not None and name not in row]
        if missing:
            names = ", ".join(map(str, row))
            problems.add(f"{where}: expected the column {missing[0]!r}, got {names}. Is it a file of {task.name}?")
            continue
        name = str(row[table.id]) if table.id is not None and table.id in row else str(number)
        if name in seen:
            problems.add(f"{where}: expected an id of its own, got {name!r} as in {seen[name]}. Correct the file.")
            continue
        try:
            label = parse_label(row.get(table.label) if table.label is not None else None, task)
        except ValueError as error:
            problems.add(f"{where}: {error} Correct the row.")
            continue
        seen[name] = where
        second = None if table.second is None else str(row[table.second])
        result.append(Example(name, str(row[table.first]), second, label))
    return result


def _tsv_rows(path: Path, table: Table, problems: Problems, labelled: bool) -> Iterator[tuple[str, Row]]:
    """Yield rows by column name, or by number where there is no header."""
    if table.has_header:
        rows = read_tsv(path, problems)
        names = next(([cell.strip() for cell in cells] for _, cells in rows), [])
        for where, cells in rows:
            yield where, dict(zip(names, cells, strict=True))
    else:
        assert table.width is not None
        widths = (table.width,) if labelled else (table.width, table.width - 1)
        for where, cells in read_tsv(path, problems, widths):
            yield where, dict(enumerate(cells))


# Questions


def read_squad(path: Path, problems: Problems, *, repeated_ids: bool = False) -> list[Question]:
    """Return the questions of a file. Empty answers, as in data sets that keep theirs back, count as none."""
    content = read_json_file(path, problems)
    return [] if content is None else _questions(_entries(path, content, problems), problems, repeated_ids)


def _questions(entries: Iterator[tuple[str, dict[str, Any]]], problems: Problems, repeated_ids: bool) -> list[Question]:
    """Return the questions of entries with id, question, context and answers, each with its place."""
    result = []
    seen: dict[str, int] = {}
    for where, entry in entries:
        try:
            question = _question(entry)
        except ValueError as error:
            problems.add(f"{where}: {error} Correct it.")
            continue
        times = seen[question.id] = seen.get(question.id, 0) + 1
        if times > 1:
            if not repeated_ids:
                problems.add(f"{where}: expected an id of its own, got one for the second time. Correct it.")
                continue
            question = Question(f"{question.id}{REPEAT}{times}", question.question, question.context, question.answers)
        result.append(question)
    return result


def _entries(path: Path, content: Any, problems: Problems) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the place and the entry of each question."""
    for number, article in enumerate(_list(content, "data", f"{path}", problems), start=1):
        where = f"{path}, article {number}"
        for at, paragraph in enumerate(_list(article, "paragraphs", where, problems), start=1):
            for entry in _list(paragraph, "qas", f"{where}, paragraph {at}", problems):
                name = entry.get("id") if isinstance(entry, dict) else None
                place = f"{where}, paragraph {at}, question {name!r}"
                if isinstance(entry, dict):
                    yield place, {**entry, "context": paragraph.get("context")}
                else:
                    problems.add(f"{place}: expected an object, got {entry!r:.40}. Correct it.")


def _list(owner: Any, key: str, where: str, problems: Problems) -> list[Any]:
    value = owner.get(key) if isinstance(owner, dict) else None
    if isinstance(value, list):
        return value
    problems.add(f"{where}: expected a list {key!r}, got {value!r:.40}. Is it in the format of SQuAD?")
    return []


def _question(entry: dict[str, Any]) -> Question:
    if entry.get("id") is None:
        raise ValueError("expected an 'id', got none.")
    context = _text(entry, "context")
    answers = (_answer(answer, context) for answer in entry.get("answers") or ())
    return Question(str(entry["id"]), _text(entry, "question"), context, tuple(a for a in answers if a is not None))


def _text(entry: dict[str, Any], key: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"expected a text as {key!r}, got {value!r:.40}.")
    return value


def _answer(answer: Any, context: str) -> Answer | None:
    text, start = (answer.get(key) if isinstance(answer, dict) else None for key in ("text", "answer_start"))
    if not isinstance(text, str) or not isinstance(start, int):
        raise ValueError(f"expected answers with a text and a start, got {answer!r:.60}.")
    if not text.strip():
        return None
    if start < 0 or context[start : start + len(text)] != text:
        found = context[max(0, start) : max(0, start) + len(text)]
        raise ValueError(f"expected the answer {text!r:.60} at character {start} of its text, got {found!r:.60}.")
    return Answer(text, start)


# The Hub


def read_hub_split(
    task: TaskSpec, source: str, split: str, language: str, problems: Problems
) -> list[Example] | list[Question]:
    """Return the examples of a split of a Hub dataset.

    Args:
        source: "hub", or "hub:NAME[:CONFIG]" for a copy of the data set with the same columns.
    """
    hub = task.hub
    if hub is None or split not in hub.splits:
        raise ValueError(f"{task.name}: expected a folder for its split {split}, got {source!r}. It is not on the Hub.")
    _, _, given = source.partition(":")
    name, _, config = given.partition(":")
    config = config or task.fill_in(hub.config or "", language)
    rows = read_hub(HubName(name or hub.name, config or None, hub.splits[split]), stream=False)
    if hub.table is None:
        prefix = hub.prefixes.get(language, "")
        entries = ((where, _entry(row)) for where, row in rows if str(row["id"]).startswith(prefix))
        return _questions(entries, problems, task.repeated_ids)
    named = ((where, _with_label_name(row, hub.table.label, task)) for where, row in rows)
    return _examples(named, hub.table, task, problems, labelled=False, language=language)


def _with_label_name(row: dict[str, Any], column: Any, task: TaskSpec) -> Row:
    """Replace the number of a class by its name; the Hub counts classes in the order of our names."""
    label = row.get(column)
    if task.kind == "classes" and isinstance(label, int) and 0 <= label < len(task.labels):
        label = task.labels[label]
    return {**row, column: label}


def _entry(row: dict[str, Any]) -> dict[str, Any]:
    """List answers one by one; the Hub has a list of texts and one of starts."""
    answers = row["answers"]
    pairs = zip(answers["text"], answers["answer_start"], strict=True)
    return {**row, "answers": [{"text": text, "answer_start": start} for text, start in pairs]}
