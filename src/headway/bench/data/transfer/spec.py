"""What a task is: its labels and metrics, the public formats that its files come in, and the examples it is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headway.bench.data.reading import Problems

KINDS = ("classes", "number", "spans")
GROUPS = ("glue", "xtreme", "builtin", "probe")


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
class Table:
    """Which columns of a table hold the fields of an example.

    Args:
        first, second, label, id: names of a header (or of JSON fields), or numbers of columns where there is no header.
        language: the column that says the language, in files that hold several.
        width: number of columns of a file without header.
    """

    first: str | int
    second: str | int | None = None
    label: str | int | None = None
    id: str | None = None
    language: str | None = None
    width: int | None = None

    @property
    def has_header(self) -> bool:
        return isinstance(self.first, str)


@dataclass(frozen=True, slots=True)
class FileLayout:
    """A file of a split: its path below the folder, where {language}, {context} and {question} are filled in.

    Without a table it is JSON in the format of SQuAD.
    """

    path: str
    table: Table | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HubLayout:
    """A data set on the Hub.

    Args:
        config: its configuration, filled in like the path of a `FileLayout`.
        splits: the data set's name of each of our splits.
        prefixes: how ids begin in each language, where one configuration holds several.
    """

    name: str
    config: str | None = None
    splits: Mapping[str, str]
    table: Table | None = None
    prefixes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TaskSpec:
    """What a task asks, how it is scored, and where its data is found. There is one object for each task.

    Args:
        group: glue, xtreme, builtin or probe.
        kind: classes, number (within `bounds`) or spans.
        labels: names of the classes as the files write them; an example's label is an index of this.
        aliases: other spellings of labels.
        pair: whether there are two texts.
        metrics: names in `headway.bench.tasks.finetune.metrics`; the score is their mean, as on the GLUE leaderboard.
        splits: files of each split, of which the first that exists is read; "dev" may come in several parts, dev_....
        languages: the first is that of training; for spans "de-en" has a German text and an English question.
        language_names: how the authors' own files name a language, filled in as {prefix}.
        published: number of examples of (split, language), as its authors count.
        answers: how answers are compared: squad, or mlqa (by language).
        repeated_ids: whether the published files use ids several times.
        make: makes the examples of (split, language), for tasks that ship as code.
        from_text: makes the examples of a split from documents, for tasks whose source is running text.
    """

    name: str
    group: str
    kind: str
    labels: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    bounds: tuple[float, float] = (0.0, 5.0)
    pair: bool = True
    metrics: tuple[str, ...] = ("accuracy",)
    splits: Mapping[str, tuple[FileLayout, ...]]
    hub: HubLayout | None = None
    languages: tuple[str, ...] = ("en",)
    language_names: Mapping[str, str] = field(default_factory=dict)
    published: Mapping[tuple[str, str], int] = field(default_factory=dict)
    answers: str = "squad"
    repeated_ids: bool = False
    make: Callable[[str, str], list[Example] | list[Question]] | None = None
    from_text: Callable[[Iterable[list[str]], str], list[Example]] | None = None

    def __post_init__(self) -> None:
        assert self.kind in KINDS, self.kind
        assert self.group in GROUPS, self.group

    def has_language(self, language: str) -> bool:
        """Return whether the data set has a language, or both of a pair of languages."""
        return language in self.languages or {*language.split("-")} <= {*self.languages}

    def parts(self, split: str) -> tuple[str, ...]:
        """Return the splits that a name stands for: MNLI's dev is dev_matched and dev_mismatched."""
        return tuple(each for each in self.splits if each == split or each.startswith(f"{split}_"))

    def fill_in(self, pattern: str, language: str) -> str:
        """Put a language into the path of a file or the name of a configuration."""
        context, _, question = language.partition("-")
        prefix = self.language_names.get(language, language)
        return pattern.format(language=language, context=context, question=question or context, prefix=prefix)

    def train_size(self) -> int | None:
        """Return the number of training examples as published, where it is known."""
        return self.published.get(("train", self.languages[0]))


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """The examples of one split of a task in one language, and what was wrong with it.

    Args:
        problems: what was left out, where bad rows are skipped.
    """

    task: TaskSpec
    split: str
    language: str
    examples: Sequence[Example] | Sequence[Question]
    problems: Problems = field(default_factory=Problems)

    @property
    def labelled(self) -> Sequence[Example] | Sequence[Question]:
        """Return the examples that have a label or an answer."""
        return [each for each in self.examples if _is_labelled(each)]  # type: ignore[return-value]

    def described(self) -> dict[str, object]:
        """Return the counts that are recorded beside a result."""
        return {
            "name": self.task.name,
            "split": self.split,
            "language": self.language,
            "rows": len(self.examples),
            "labelled": len(self.labelled),
            "published": self.task.published.get((self.split, self.language)),
            "skipped": self.problems.count,
            "first_skipped": self.problems.first,
        }


def _is_labelled(example: Example | Question) -> bool:
    return bool(example.answers) if isinstance(example, Question) else example.label is not None
