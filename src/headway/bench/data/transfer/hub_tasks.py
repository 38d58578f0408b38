"""Data sets of tasks by their Hub name; the `datasets` library is imported only here and only when one is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headway.bench.data.text.readers import Problems
from headway.bench.data.transfer.examples import Example, Question
from headway.bench.data.transfer.squad import questions
from headway.bench.data.transfer.tables import Row, examples
from headway.bench.data.transfer.task_sets import TaskSet


def read_hub_task(
    task: TaskSet, source: str, split: str, language: str, names: dict[str, str], problems: Problems
) -> list[Example] | list[Question]:
    """The examples of a split.

    Args:
        source: "hub", or "hub:NAME[:CONFIG]" for a copy of the data set with the same columns.
        names: what stands for {language}, {context}, {question} and {prefix}.
    """
    hub = task.hub
    if hub is None or split not in hub.splits:
        raise ValueError(f"{task.name}: expected a folder for its split {split}, got {source!r}. It is not on the Hub.")
    _, _, given = source.partition(":")
    name, _, config = given.partition(":")
    config = config or (hub.config or "").format(**names)
    rows = _rows(name or hub.name, config or None, hub.splits[split])
    if hub.table is None:
        prefix = hub.prefixes.get(language, "")
        entries = ((where, _entry(row)) for where, row in rows if str(row["id"]).startswith(prefix))
        return questions(entries, problems, repeated_ids=task.repeated_ids)
    named = ((where, _with_label(row, hub.table.label, task)) for where, row in rows)
    return examples(named, hub.table, task, problems, labelled=False, language=language)


def _rows(name: str, config: str | None, split: str) -> Iterator[tuple[str, dict[str, Any]]]:
    where = f"hub:{name}" + (f":{config}" if config else "")
    try:
        import datasets
    except ImportError as error:
        raise ImportError(f"{where}: expected the datasets library. pip install 'headway[hub]'.") from error
    try:
        rows = datasets.load_dataset(name, config, split=split)
    except (OSError, ValueError) as error:  # not there, offline, no such configuration or split
        raise ValueError(
            f"{where}: expected a data set with split {split}, got: {error}. Check the name, the network, and HF_TOKEN "
            f"for a private one; or name a folder with the original files."
        ) from error
    return ((f"{where}, {split}, row {number}", row) for number, row in enumerate(rows, start=1))


def _with_label(row: dict[str, Any], column: Any, task: TaskSet) -> Row:
    """Classes by name: the Hub has their numbers, in the order of our names."""
    label = row.get(column)
    if task.kind == "classes" and isinstance(label, int) and 0 <= label < len(task.labels):
        label = task.labels[label]
    return {**row, column: label}


def _entry(row: dict[str, Any]) -> dict[str, Any]:
    """Answers one by one; the Hub has a list of texts and one of starts."""
    answers = row["answers"]
    pairs = zip(answers["text"], answers["answer_start"], strict=True)
    return {**row, "answers": [{"text": text, "answer_start": start} for text, start in pairs]}
