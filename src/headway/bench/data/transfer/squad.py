"""Questions in the JSON format of SQuAD, which XQuAD, MLQA and TyDiQA-GoldP share.

Paper:  Rajpurkar et al. (2016), "SQuAD: 100,000+ Questions for Machine Comprehension of Text"
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headway.bench.data.text.readers import Problems
from headway.bench.data.transfer.examples import Answer, Question
from headway.bench.data.transfer.tables import SKIP

REPEAT = "#"  # between an id and the number of its repetition


def read_squad(path: Path, problems: Problems, *, repeated_ids: bool = False) -> list[Question]:
    """The questions of a file. Empty answers, as in data sets that keep theirs back, are none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:  # not JSON, or not UTF-8
        problems.add(f"{path}: expected JSON, got {error}. It may be cut off: fetch it again.")
        return []
    return questions(_entries(path, content, problems), problems, repeated_ids=repeated_ids)


def questions(
    entries: Iterator[tuple[str, dict[str, Any]]], problems: Problems, *, repeated_ids: bool = False
) -> list[Question]:
    """Questions of entries with id, question, context and answers, each with the place where it was read."""
    result = []
    seen: dict[str, int] = {}
    for where, entry in entries:
        try:
            question = _question(entry)
        except ValueError as error:
            problems.add(f"{where}: {error} Mend it, {SKIP}.")
            continue
        times = seen[question.id] = seen.get(question.id, 0) + 1
        if times > 1:
            if not repeated_ids:
                problems.add(f"{where}: expected an id of its own, got one for the second time. Mend it, {SKIP}.")
                continue
            question = Question(f"{question.id}{REPEAT}{times}", question.question, question.context, question.answers)
        result.append(question)
    return result


def _entries(path: Path, content: Any, problems: Problems) -> Iterator[tuple[str, dict[str, Any]]]:
    """One mapping a question, with the place where it stands."""
    for number, article in enumerate(_list(content, "data", f"{path}", problems), start=1):
        where = f"{path}, article {number}"
        for at, paragraph in enumerate(_list(article, "paragraphs", where, problems), start=1):
            for entry in _list(paragraph, "qas", f"{where}, paragraph {at}", problems):
                name = entry.get("id") if isinstance(entry, dict) else None
                place = f"{where}, paragraph {at}, question {name!r}"
                if isinstance(entry, dict):
                    yield place, {**entry, "context": paragraph.get("context")}
                else:
                    problems.add(f"{place}: expected an object, got {entry!r:.40}. Mend it, {SKIP}.")


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
