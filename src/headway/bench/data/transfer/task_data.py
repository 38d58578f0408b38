"""Every data set by name, and how one is found and read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from headway.bench.data.text.readers import Problems
from headway.bench.data.transfer.builtin_tasks import BUILTIN
from headway.bench.data.transfer.examples import Example, Question, Split
from headway.bench.data.transfer.glue import GLUE
from headway.bench.data.transfer.hub_tasks import read_hub_task
from headway.bench.data.transfer.squad import read_squad
from headway.bench.data.transfer.tables import read_table
from headway.bench.data.transfer.task_sets import Layout, TaskSet
from headway.bench.data.transfer.xtreme import TYDIQA_LANGUAGES, XTREME

TASK_SETS: dict[str, TaskSet] = {**GLUE, **XTREME, **BUILTIN}


def task_set(name: str) -> TaskSet:
    """The data set of a name."""
    if name not in TASK_SETS:
        raise ValueError(f"task: expected one of {', '.join(TASK_SETS)}, got {name!r}.")
    return TASK_SETS[name]


@dataclass(frozen=True, slots=True)
class Reference:
    """Which split of which data set, where its files are, and in which languages, if that is said."""

    name: str
    split: str
    source: str
    languages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        unknown = [each for each in self.languages if not task_set(self.name).knows(each)]
        if unknown:
            known = ", ".join(task_set(self.name).languages)
            raise ValueError(f"{self.name}: expected languages among {known}, got {', '.join(unknown)}.")

    @classmethod
    def parse(cls, text: str, *, name: str, split: str) -> Reference:
        """[NAME[@SPLIT[:LANGUAGE,...]]=]SOURCE, with NAME and SPLIT as given unless the text says others.

        SOURCE is a folder, a file, or hub[:NAME[:CONFIG]]; data sets that ship as code need none.
        """
        found = re.fullmatch(r"([\w:-]+)(?:@(\w+)(?::([\w,-]+))?)?(?:=(.*))?", text, flags=re.DOTALL)
        if found and found[1] in TASK_SETS and (found[4] is not None or TASK_SETS[found[1]].make):
            return cls(found[1], found[2] or split, found[4] or "", tuple(found[3].split(",")) if found[3] else ())
        return cls(name, split, text)


def load(
    name: str, source: str | Path = "", split: str = "train", *, language: str | None = None, on_error: str = "raise"
) -> Split:
    """The examples of one split in one language.

    Args:
        name: a key of `TASK_SETS`, such as "rte", "xquad" or "builtin:entailment".
        source: a folder with the files as published, or with the folder of the task in it; one file; "hub", or
            "hub:NAME[:CONFIG]" for a copy; not needed for the built-in language.
        language: unless given that of training, or of one file that one that its name says; "de-en" of MLQA has German
            texts and English questions.
        on_error: "raise" stops at the first bad row and names it; "skip" leaves bad rows out and counts them.
    """
    task = task_set(name)
    if split not in task.splits:
        raise ValueError(f"{name}: expected a split among {', '.join(task.splits)}, got {split!r}.")
    said = said_languages(task, Path(source), split)
    if language is None:
        language = _usual_language(task, said)
    elif said and language not in said and not _says(task, Path(source), split, language):
        raise ValueError(
            f"{source}: expected {name} in {language}, got a file that is named as that of {', '.join(said)}."
        )
    problems = Problems(on_error)
    examples = _read(task, str(source), split, language, problems)
    if not examples:
        raise ValueError(
            f"{name}: expected examples in its split {split}, got none from {source}. {' '.join(problems.first[:1])}"
        )
    return Split(
        name=name,
        split=split,
        language=language,
        examples=examples,
        published=task.published.get((split, language)),
        problems=problems,
    )


def file_of(name: str, source: str | Path, split: str, *, language: str | None = None) -> Path | None:
    """The file that `load` reads of these; None for the Hub, and for data sets that ship as code."""
    task, path = task_set(name), Path(source)
    if task.make or str(source).split(":")[0] == "hub":
        return None
    return _file(task, path, split, language or _usual_language(task, said_languages(task, path, split)))[0]


def found_languages(name: str, source: str | Path, split: str) -> tuple[str, ...]:
    """The data set's languages that the source has files for, or that its name says if it is one; all on the Hub."""
    task = task_set(name)
    if task.make or str(source).split(":")[0] == "hub":
        return task.languages
    if Path(source).is_file():
        return said_languages(task, Path(source), split)
    return tuple(language for language in task.languages if _existing(task, Path(source), split, language))


def said_languages(task: TaskSet, source: Path, split: str) -> tuple[str, ...]:
    """Languages that the name of a file says it is of; all for a file that holds all, none of a folder."""
    return tuple(language for language in task.languages if source.is_file() and _says(task, source, split, language))


def _usual_language(task: TaskSet, said: tuple[str, ...]) -> str:
    """Where none is named: that which a file's name says, else that of training."""
    return said[0] if len(said) == 1 else task.languages[0]


def _says(task: TaskSet, file: Path, split: str, language: str) -> bool:
    """Whether a file of the split in that language would have this name, and this folder if the language is in it."""
    for layout in task.splits[split]:
        parts = Path(_filled(layout, language)).parts
        count = 1 if "{" in Path(layout.path).name or "{" not in layout.path else len(parts)
        if file.parts[-count:] == parts[-count:]:
            return True
    return False


def _read(task: TaskSet, source: str, split: str, language: str, problems: Problems) -> list[Example] | list[Question]:
    if task.make:
        if source:
            raise ValueError(f"data: expected none for {task.name}, which is made as it is read, got {source!r}.")
        if language not in task.languages:
            raise ValueError(f"language: expected one of {', '.join(task.languages)}, got {language!r}.")
        return task.make(split, language)
    if source.split(":")[0] == "hub":
        return read_hub_task(task, source, split, language, _names(language), problems)
    path, layout = _file(task, Path(source), split, language)
    if layout.table is None:
        return read_squad(path, problems, repeated_ids=task.repeated_ids)
    labelled = not split.startswith("test")
    return read_table(path, layout.table, task, problems, labelled=labelled, language=language)


def _file(task: TaskSet, source: Path, split: str, language: str) -> tuple[Path, Layout]:
    """The file of a split and its layout; where the source is one file, the layout that its name asks for."""
    layouts = task.splits[split]
    if source.is_file():
        names = {Path(_filled(layout, language)).name: layout for layout in layouts}
        fitting = [layout for layout in layouts if Path(layout.path).suffix == source.suffix]
        if source.name not in names and not fitting:
            raise ValueError(f"{source}: expected a file of {task.name}, such as {next(iter(names))}.")
        return source, names.get(source.name) or fitting[0]
    found = _existing(task, source, split, language)
    if found is None:
        wanted = " or ".join(_filled(layout, language) for layout in layouts)
        named = str(source).partition("=")
        hint = f" No data set is called {named[0]!r}." if named[1] and not source.exists() else ""
        raise FileNotFoundError(
            f"{source}: expected the split {split} of {task.name} ({language}), got no {wanted} in that folder. "
            f"Name the folder that has it, or one file.{hint}"
        )
    return found


def _existing(task: TaskSet, folder: Path, split: str, language: str) -> tuple[Path, Layout] | None:
    """The first file of the split that is there, below the folder or in it."""
    for layout in task.splits[split]:
        relative = Path(_filled(layout, language))
        for path in (folder / relative, folder / relative.name):
            if path.is_file():
                return path, layout
    return None


def _filled(layout: Layout, language: str) -> str:
    return layout.path.format(**_names(language))


def _names(language: str) -> dict[str, str]:
    context, _, question = language.partition("-")
    return {
        "language": language,
        "context": context,
        "question": question or context,
        "prefix": TYDIQA_LANGUAGES.get(language, language),
    }
