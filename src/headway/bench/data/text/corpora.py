"""Running text as a stream of documents, whatever it is stored in; memory does not grow with the corpus."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from headway.bench.data.language.language import Language, require_int
from headway.bench.data.reading import (
    COMPRESSED,
    HubName,
    Problems,
    file_fingerprint,
    read_hub,
    read_json_lines,
    read_lines,
    read_parquet,
    source_kind,
    until_damage,
)

BUILTIN_LANGUAGES = ("english", "invented", "verb-final")
BUILTIN_SENTENCES = 100_000
BUILTIN_DOCUMENT = 5  # sentences
MAX_DOCUMENT = 1_000_000  # characters; what follows becomes another document
HOW_TO_SKIP = '--set text.skip_bad_lines=true (in Python open_corpus(..., on_error="skip"))'

Source = str | os.PathLike[str]
Document = list[str]  # lines: sentences or paragraphs


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """Documents of one source, each a list of lines (sentences or paragraphs), read anew by every `for`.

    Attributes:
        source: what `open_corpus` was given.
        files: the files in reading order; empty for the Hub and the built-in language.
        language: a name under which texts of several corpora are counted together, or None.
        text_field: the field of jsonl, parquet and Hub rows that holds the text.
        problems: bad lines found in the latest pass, where they are skipped.
    """

    source: str
    files: tuple[Path, ...] = ()
    language: str | None = None
    text_field: str = "text"
    problems: Problems = field(default_factory=Problems)

    def __iter__(self) -> Iterator[Document]:
        self.problems.clear()
        if source_kind(self.source) == "hub":
            for where, row in read_hub(HubName.parse(self.source, "train"), stream=True):
                yield from _row_text(row, self.text_field, where, self.problems)
        elif not self.files:
            yield from _builtin(*_builtin_parts(self.source))
        for path in self.files:
            if _suffix(path) in READERS:
                yield from READERS[_suffix(path)](path, self.problems, self.text_field)
            else:
                self.problems.add(_wrong_suffix(path))

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Return every word that can occur, if that is known, as in the built-in language; else nothing."""
        if source_kind(self.source) != "builtin":
            return ()
        name = _builtin_parts(self.source)[2]
        language = _language(name)
        return language.counterpart_vocabulary if name == "verb-final" else language.vocabulary

    def fingerprint(self) -> list[list[Any]]:
        """Describe the content cheaply: names, sizes, and hashes of both ends of each file."""
        if not self.files:
            return [[self.source, self.text_field]]
        return [file_fingerprint(path) for path in self.files] + [[self.text_field]]


def open_corpus(
    source: Source, *, language: str | None = None, text_field: str = "text", on_error: str = "raise"
) -> Corpus:
    """Return the documents of a text file, a folder of them, a Hub dataset or the built-in language.

    Args:
        source: one of
            a path ending in .txt (a sentence or paragraph a line, a blank line between documents) or .jsonl (a
            document a line), both also with .gz or .xz after it, or in .parquet (a document a row);
            a folder of such files, read in the order of their sorted paths, without hidden files and folders;
            "hub:NAME[:CONFIG[:SPLIT]]", streamed with the `datasets` library; the split is "train" unless given;
            "builtin[:SENTENCES[:SEED]][:LANGUAGE]", documents of five sentences of the built-in language: english (its
            words), invented (the same order, other words) or verb-final (its counterpart), english unless given.
        language: name under which to count the text, where several languages are mixed.
        text_field: the field of jsonl, parquet and Hub rows that holds the text.
        on_error: "raise" stops at the first bad line and names it; "skip" leaves bad lines out and counts them.

    A document of more than a million characters is continued as another one.
    """
    problems = Problems(on_error, HOW_TO_SKIP)
    text = os.fspath(source)
    files: list[Path] = []
    if source_kind(text) == "hub":
        HubName.parse(text, "train")
    elif source_kind(text) == "builtin":
        _builtin_parts(text)
    else:
        files = _files(Path(text), problems)
    return Corpus(source=text, files=tuple(files), language=language, text_field=text_field, problems=problems)


def open_corpora(corpora: Source | Corpus | Sequence[Source | Corpus]) -> list[Corpus]:
    """Return one or several corpora or sources as a list of corpora."""
    several = [corpora] if isinstance(corpora, str | os.PathLike | Corpus) else list(corpora)
    if not several:
        raise ValueError("corpora: expected at least one corpus, got none. Pass a path or open_corpus(...).")
    return [each if isinstance(each, Corpus) else open_corpus(each) for each in several]


def read_text(path: Path, problems: Problems, text_field: str = "") -> Iterator[Document]:
    """Yield the documents of a text file: a sentence or paragraph a line, a blank line between documents."""
    empty = True
    for has_text, lines in groupby(_stripped_lines(path, problems), key=bool):
        if has_text:
            empty = False
            yield from bounded(lines)
    if empty:
        problems.add_empty(path)


def read_jsonl(path: Path, problems: Problems, text_field: str) -> Iterator[Document]:
    """Yield the documents of a .jsonl file, one in each line."""
    for where, row in until_damage(read_json_lines(path, problems), problems):
        yield from _row_text(row, text_field, where, problems)


def read_parquet_text(path: Path, problems: Problems, text_field: str) -> Iterator[Document]:
    """Yield the documents of a parquet file, one in each row."""
    for where, text in read_parquet(path, text_field, problems):
        yield from _row_text({text_field: text}, text_field, where, problems)


READERS: dict[str, Callable[[Path, Problems, str], Iterator[Document]]] = {
    ".txt": read_text,
    ".jsonl": read_jsonl,
    ".parquet": read_parquet_text,
}


def bounded(lines: Iterable[str]) -> Iterator[Document]:
    """Yield a document in parts of at most about `MAX_DOCUMENT` characters; nothing where it has no text."""
    part: Document = []
    size = 0
    for line in lines:
        for piece in _pieces(line):
            part.append(piece)
            size += len(piece)
            if size >= MAX_DOCUMENT:
                yield part
                part, size = [], 0
    if part:
        yield part


def _pieces(line: str) -> Iterator[str]:
    """Cut a line that is longer than a document may be, at spaces where there are some."""
    start = 0
    while len(line) - start > MAX_DOCUMENT:
        space = line.rfind(" ", start + 1, start + MAX_DOCUMENT + 1)
        end = space if space > 0 else start + MAX_DOCUMENT
        yield line[start:end].strip()
        start = end + (space > 0)
    yield line[start:].strip()


def _stripped_lines(path: Path, problems: Problems) -> Iterator[str]:
    for number, line in until_damage(read_lines(path, problems), problems):
        if line is not None and "\0" in line:
            problems.add(
                f"{path}, line {number}: expected text, got characters of number 0, as UTF-16 has for Latin letters. "
                f"Convert the file (iconv -f UTF-16LE -t UTF-8)."
            )
        elif line is not None:
            yield line.strip()


def _row_text(row: dict[str, Any], text_field: str, where: str, problems: Problems) -> Iterator[Document]:
    text = row.get(text_field)
    if text_field not in row:
        fields = ", ".join(map(str, row)) or "none"
        problems.add(f"{where}: expected a field {text_field!r}, got {fields}. Pass text_field=NAME.")
    elif not isinstance(text, str):
        problems.add(f"{where}: expected {text_field!r} to be text, got {text!r:.50}. Correct the row.")
    elif not _is_encodable(text):
        problems.add(f"{where}: expected Unicode text, got half of a surrogate pair. Correct the row.")
    else:
        yield from bounded([line for part in text.split("\n") if (line := part.strip())])


def _is_encodable(text: str) -> bool:
    """Return whether UTF-8 can hold the text; escapes in JSON may stand for what it cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _files(path: Path, problems: Problems) -> list[Path]:
    if not path.exists():
        raise FileNotFoundError(
            f"source: expected a file, a folder, hub:NAME or builtin, got {str(path)!r}, which does not exist. "
            f"Check the path."
        )
    if path.is_file():
        if _suffix(path) not in READERS:
            raise ValueError(_wrong_suffix(path))
        return [path]
    inside = [found for found in sorted(path.rglob("*")) if not _is_hidden(found.relative_to(path))]
    for link in inside:
        if link.is_symlink() and not link.is_file():
            raise ValueError(
                f"source: expected no links in the folder {path} but to files, got {link}, a link to "
                f"{'a folder' if link.is_dir() else 'nothing'}. Remove it, and give the text that it stood for as a "
                f"corpus of its own."
            )
    files = [found for found in inside if found.is_file()]
    for found in files:
        if _suffix(found) not in READERS:
            problems.add(_wrong_suffix(found))  # where such files are skipped, each pass counts them again
    if not any(_suffix(found) in READERS for found in files):
        raise ValueError(f"source: expected files in the folder {path}, got none. It takes {_suffixes()}.")
    return files


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _suffix(path: Path) -> str:
    """Return the suffix that says the format, below that of a compression; "" for compressed parquet, which is none."""
    if path.suffix not in COMPRESSED:
        return path.suffix
    inner = Path(path.stem).suffix
    return "" if inner == ".parquet" else inner


def _suffixes() -> str:
    return ", ".join([*READERS, *(f".txt{suffix}, .jsonl{suffix}" for suffix in COMPRESSED)])


def _wrong_suffix(path: Path) -> str:
    return f"{path}: expected one of {_suffixes()}, got {path.suffix!r}. Rename, convert or remove it."


def _builtin_parts(source: str) -> tuple[int, int, str]:
    """Return the number of sentences, the seed and the language that a built-in source names."""
    _, *numbers = source.split(":")
    language = numbers.pop() if numbers and numbers[-1] in BUILTIN_LANGUAGES else BUILTIN_LANGUAGES[0]
    if len(numbers) > 2 or not all(number.isascii() and number.isdigit() for number in numbers):
        raise ValueError(
            f"source: expected builtin[:SENTENCES[:SEED]][:LANGUAGE] with a language among "
            f"{', '.join(BUILTIN_LANGUAGES)}, got {source!r}. Write builtin:100000:0."
        )
    sentences, seed = [*(int(number) for number in numbers), *(BUILTIN_SENTENCES, 0)[len(numbers) :]]
    require_int("source: sentences", sentences, 1)
    return sentences, seed, language


def _language(name: str) -> Language:
    return Language(words="invented" if name == "invented" else "english")


def _builtin(sentences: int, seed: int, name: str) -> Iterator[Document]:
    language, left = _language(name), sentences
    for document in language.documents(-(-sentences // BUILTIN_DOCUMENT), seed=seed, sentences=BUILTIN_DOCUMENT):
        kept = document[:left]
        if name == "verb-final":
            yield from bounded([" ".join(language.verb_final(sentence)) for sentence in kept])
        else:
            yield from bounded([sentence.text for sentence in kept])
        left -= BUILTIN_DOCUMENT
