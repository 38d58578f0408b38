"""The tasks by name, and how the data of one is found and read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from headway.bench.data.reading import Problems, source_kind
from headway.bench.data.text.corpora import open_corpus
from headway.bench.data.transfer.builtin import BUILTIN
from headway.bench.data.transfer.formats import read_hub_split, read_squad, read_table
from headway.bench.data.transfer.glue import GLUE
from headway.bench.data.transfer.probes import PROBES
from headway.bench.data.transfer.spec import Example, FileLayout, Question, Split, TaskSpec
from headway.bench.data.transfer.xtreme import XTREME

TASKS: dict[str, TaskSpec] = {task.name: task for task in (*GLUE, *XTREME, *BUILTIN, *PROBES)}
HOW_TO_SKIP = '--set data.on_error=skip (in Python on_error="skip")'


def find_task(name: str) -> TaskSpec:
    """Return the task of a name; the one place where names of tasks are looked up."""
    if name in TASKS:
        return TASKS[name]
    close = get_close_matches(name, TASKS, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    raise ValueError(f"task: expected one of {', '.join(TASKS)}, got {name!r}.{hint}")


@dataclass(frozen=True, slots=True)
class TaskData:
    """Data that a user names: a split of a task, where its files are, and the languages, if some are named."""

    task: TaskSpec
    split: str
    source: str
    languages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        unknown = [each for each in self.languages if not self.task.has_language(each)]
        if unknown:
            known = ", ".join(self.task.languages)
            raise ValueError(f"{self.task.name}: expected languages among {known}, got {', '.join(unknown)}.")

    @classmethod
    def parse(cls, text: str, *, task: TaskSpec, split: str) -> TaskData:
        """Read [NAME[@SPLIT[:LANGUAGE,...]]=]SOURCE; `task` and `split` stand where the text names no others.

        SOURCE is a folder, a file, or hub[:NAME[:CONFIG]]; tasks that ship as code need none.
        """
        found = re.fullmatch(r"([\w:-]+)(?:@(\w+)(?::([\w,-]+))?)?(?:=(.*))?", text, flags=re.DOTALL)
        named = TASKS.get(found[1]) if found else None
        if found and named and (found[4] is not None or named.make):
            return cls(named, found[2] or split, found[4] or "", tuple(found[3].split(",")) if found[3] else ())
        return cls(task, split, text)

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the splits that are read: MNLI's dev is dev_matched and dev_mismatched."""
        return self.task.parts(self.split)


def load(
    task: TaskSpec,
    source: str | Path = "",
    split: str = "train",
    *,
    language: str | None = None,
    on_error: str = "raise",
) -> Split:
    """Read the examples of one split in one language.

    Args:
        source: a folder with the files as published, or with the folder of the task in it; one file; "hub", or
            "hub:NAME[:CONFIG]" for a copy; nothing for the built-in language; for probes a corpus, see `open_corpus`.
        language: unless given, the one that the name of a file says, else that of training; "de-en" of MLQA has German
            texts and English questions.
        on_error: "raise" stops at the first bad row and names it; "skip" leaves bad rows out and counts them.
    """
    if split not in task.splits:
        raise ValueError(f"{task.name}: expected a split among {', '.join(task.splits)}, got {split!r}.")
    named = _languages_in_name(task, Path(source), split)
    if language is None:
        language = _default_language(task, named)
    elif named and language not in named and not _fits_name(task, Path(source), split, language):
        raise ValueError(
            f"{source}: expected {task.name} in {language}, got a file that is named as that of {', '.join(named)}."
        )
    problems = Problems(on_error, HOW_TO_SKIP)
    examples = _read(task, str(source), split, language, problems)
    if not examples:
        raise ValueError(
            f"{task.name}: expected examples in its split {split}, got none from {source}. "
            f"{' '.join(problems.first[:1])}"
        )
    return Split(task=task, split=split, language=language, examples=examples, problems=problems)


def file_of(task: TaskSpec, source: str | Path, split: str, *, language: str | None = None) -> Path | None:
    """Return the file that `load` would read; None for the Hub, tasks that ship as code, and a folder of text."""
    path = Path(source)
    if task.from_text:
        return path if path.is_file() else None
    if task.make or source_kind(source) == "hub":
        return None
    return _file(task, path, split, language or _default_language(task, _languages_in_name(task, path, split)))[0]


def found_languages(task: TaskSpec, source: str | Path, split: str) -> tuple[str, ...]:
    """Return the task's languages that the source has files for, or that the name of one file says; all on the Hub."""
    if task.make or task.from_text or source_kind(source) == "hub":
        return task.languages
    if Path(source).is_file():
        return _languages_in_name(task, Path(source), split)
    return tuple(language for language in task.languages if _existing(task, Path(source), split, language))


def _languages_in_name(task: TaskSpec, source: Path, split: str) -> tuple[str, ...]:
    """Return the languages that fit the name of a file; all for a file that holds all, none for a folder."""
    return tuple(each for each in task.languages if source.is_file() and _fits_name(task, source, split, each))


def _default_language(task: TaskSpec, named: tuple[str, ...]) -> str:
    return named[0] if len(named) == 1 else task.languages[0]


def _fits_name(task: TaskSpec, file: Path, split: str, language: str) -> bool:
    """Return whether a file of the split in a language has this name, and this folder if that says the language."""
    for layout in task.splits[split]:
        parts = Path(task.fill_in(layout.path, language)).parts
        count = 1 if "{" in Path(layout.path).name or "{" not in layout.path else len(parts)
        if file.parts[-count:] == parts[-count:]:
            return True
    return False


def _read(task: TaskSpec, source: str, split: str, language: str, problems: Problems) -> list[Example] | list[Question]:
    if task.make:
        if source:
            raise ValueError(f"data: expected none for {task.name}, which is made as it is read, got {source!r}.")
        if language not in task.languages:
            raise ValueError(f"language: expected one of {', '.join(task.languages)}, got {language!r}.")
        return task.make(split, language)
    if task.from_text:
        corpus = open_corpus(source, on_error=problems.on_error)
        examples = task.from_text(corpus, split)
        problems.count, problems.first = corpus.problems.count, list(corpus.problems.first)
        return examples
    if source_kind(source) == "hub":
        return read_hub_split(task, source, split, language, problems)
    path, layout = _file(task, Path(source), split, language)
    if layout.table is None:
        return read_squad(path, problems, repeated_ids=task.repeated_ids)
    labelled = not split.startswith("test")
    return read_table(path, layout.table, task, problems, labelled=labelled, language=language)


def _file(task: TaskSpec, source: Path, split: str, language: str) -> tuple[Path, FileLayout]:
    """Return the file of a split and its layout; where the source is one file, the layout that its name asks for."""
    layouts = task.splits[split]
    if source.is_file():
        names = {Path(task.fill_in(layout.path, language)).name: layout for layout in layouts}
        fitting = [layout for layout in layouts if Path(layout.path).suffix == source.suffix]
        if source.name not in names and not fitting:
            raise ValueError(f"{source}: expected a file of {task.name}, such as {next(iter(names))}.")
        return source, names.get(source.name) or fitting[0]
    found = _existing(task, source, split, language)
    if found is None:
        wanted = " or ".join(task.fill_in(layout.path, language) for layout in layouts)
        named = str(source).partition("=")
        hint = f" No task is called {named[0]!r}." if named[1] and not source.exists() else ""
        raise FileNotFoundError(
            f"{source}: expected the split {split} of {task.name} ({language}), got no {wanted} in that folder. "
            f"Name the folder that has it, or one file.{hint}"
        )
    return found


def _existing(task: TaskSpec, folder: Path, split: str, language: str) -> tuple[Path, FileLayout] | None:
    """Return the first file of the split that exists, at its place below the folder or in the folder itself."""
    for layout in task.splits[split]:
        relative = Path(task.fill_in(layout.path, language))
        for path in (folder / relative, folder / relative.name):
            if path.is_file():
                return path, layout
    return None
