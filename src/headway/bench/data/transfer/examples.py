"""What tasks are made of: texts and pairs with a label, and questions about a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from headway.bench.data.text.readers import Problems


@dataclass(frozen=True, slots=True)
class Example:
    """A text or a pair. The label is the number of a class, a score, or None where the data set keeps it back."""

    id: str
    first: str
    second: str | None
    label: int | float | None


@dataclass(frozen=True, slots=True)
class Answer:
    """A span: `context[start : start + len(text)] == text`."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a text; without answers where the data set keeps them back."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """The examples of one split of a data set in one language, and what was wrong with it.

    Args:
        published: how many its authors count, where that is known.
        problems: what was left out, where bad rows are skipped.
    """

    name: str
    split: str
    language: str
    examples: Sequence[Example] | Sequence[Question]
    published: int | None = None
    problems: Problems = field(default_factory=Problems)

    @property
    def labelled(self) -> Sequence[Example] | Sequence[Question]:
        """The examples that have a label or an answer."""
        return [each for each in self.examples if _known(each)]  # type: ignore[return-value]

    def described(self) -> dict[str, object]:
        """Counts for the record beside a result."""
        return {
            "name": self.name,
            "split": self.split,
            "language": self.language,
            "rows": len(self.examples),
            "labelled": len(self.labelled),
            "published": self.published,
            "skipped": self.problems.count,
            "first_skipped": self.problems.first,
        }


def _known(example: Example | Question) -> bool:
    return bool(example.answers) if isinstance(example, Question) else example.label is not None
