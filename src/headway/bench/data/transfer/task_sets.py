"""What a data set of a task is: its labels and metrics, and in which public formats its files come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from headway.bench.data.transfer.examples import Example, Question

KINDS = ("classes", "number", "spans")


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Where the fields of an example stand in a row.

    Args:
        first, second, label, id: names of a header (or of JSON fields), or numbers of columns where there is no header.
        language: the column that says the language, in files that hold several.
        width: columns of a file without header.
    """

    first: str | int
    second: str | int | None = None
    label: str | int | None = None
    id: str | None = None
    language: str | None = None
    width: int | None = None

    @property
    def header(self) -> bool:
        return isinstance(self.first, str)


@dataclass(frozen=True, slots=True)
class Layout:
    """A file of a split: its path below the folder, where {language}, {context} and {question} are filled in.

    Without a table it is JSON in the format of SQuAD.
    """

    path: str
    table: Table | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HubLayout:
    """A data set on the Hub.

    Args:
        config: its configuration, filled in as the path of a `Layout`.
        splits: our names of splits to its own.
        prefixes: how ids begin in each language, where one configuration holds several.
    """

    name: str
    config: str | None = None
    splits: Mapping[str, str]
    table: Table | None = None
    prefixes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskSet:
    """A data set: what is asked, how it is scored, and where to find it.

    Args:
        kind: classes, number (within `bounds`) or spans.
        labels: names of the classes as the files write them; an example's label is an index of this.
        aliases: other spellings of labels.
        pair: whether there are two texts.
        metrics: names in `headway.bench.tasks.finetune.metrics`; the score is their mean, as on the GLUE leaderboard.
        splits: files of each split, the first that exists is read; "dev" may come in several parts, dev_....
        languages: the first is that of training; for spans "de-en" has a German text and an English question.
        published: examples of (split, language), as its authors count.
        answers: how answers are compared: squad, or mlqa (by language).
        repeated_ids: whether the published files use ids several times.
        make: makes the examples of (split, language), for data sets that ship as code.
    """

    name: str
    kind: str
    labels: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    bounds: tuple[float, float] = (0.0, 5.0)
    pair: bool = True
    metrics: tuple[str, ...] = ("accuracy",)
    splits: Mapping[str, tuple[Layout, ...]]
    hub: HubLayout | None = None
    languages: tuple[str, ...] = ("en",)
    published: Mapping[tuple[str, str], int] = field(default_factory=dict)
    answers: str = "squad"
    repeated_ids: bool = False
    make: Callable[[str, str], list[Example] | list[Question]] | None = None

    def __post_init__(self) -> None:
        assert self.kind in KINDS, self.kind

    def knows(self, language: str) -> bool:
        """Whether it is one of the data set's, or a pair of them."""
        return language in self.languages or {*language.split("-")} <= {*self.languages}

    def parts(self, split: str) -> tuple[str, ...]:
        """The splits that a name stands for: MNLI's dev is dev_matched and dev_mismatched."""
        return tuple(each for each in self.splits if each == split or each.startswith(f"{split}_"))
