"""Running text as a stream of documents, whatever it is stored in; memory does not grow with the corpus."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headway.bench.data.language.language import Language, require_int
from headway.bench.data.text.readers import COMPRESSED, READERS, Document, Problems, bounded, read_hub

BUILTIN_LANGUAGES = ("english", "invented", "verb-final")
BUILTIN_SENTENCES = 100_000
BUILTIN_DOCUMENT = 5  # sentences
FINGERPRINT_BYTES = 1 << 16

Source = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True, eq=False)
class Corpus:
    """Documents of one source, each a list of lines (sentences or paragraphs), read anew by every `for`.

    Attributes:
        source: what `open_corpus` was given.
        files: the files in reading order; empty for the Hub and the built-in language.
        language: a name under which texts of several corpora are counted together, or None.
        text_field: the field of jsonl, parquet and Hub rows that holds the text.
        problems: bad lines met by the latest pass, where they are skipped.
    """

    source: str
    files: tuple[Path, ...] = ()
    language: str | None = None
    text_field: str = "text"
    problems: Problems = field(default_factory=Problems)

    def __iter__(self) -> Iterator[Document]:
        self.problems.clear()
        if self.source.startswith("hub:"):
            yield from read_hub(*_hub_parts(self.source), self.problems, self.text_field)
        elif not self.files:
            yield from _builtin(*_builtin_parts(self.source))
        for path in self.files:
            if _suffix(path) in READERS:
                yield from READERS[_suffix(path)](path, self.problems, self.text_field)
            else:
                self.problems.add(_wrong_suffix(path))

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Every word that can occur, where that is known: in the built-in language."""
        if self.source.split(":")[0] != "builtin":
            return ()
        language = _builtin_parts(self.source)[2]
        spoken = _spoken(language)
        return spoken.counterpart_vocabulary if language == "verb-final" else spoken.vocabulary

    def fingerprint(self) -> list[list[Any]]:
        """What the documents depend on, cheap to work out: names, sizes, and hashes of both ends of each file."""
        if not self.files:
            return [[self.source, self.text_field]]
        return [[path.name, path.stat().st_size, _ends(path)] for path in self.files] + [[self.text_field]]


def open_corpus(
    source: Source, *, language: str | None = None, text_field: str = "text", on_error: str = "raise"
) -> Corpus:
    """The documents of a text file, a folder of them, a Hub dataset or the built-in language.

    Args:
        source: one of
            a path ending in .txt (a sentence or paragraph a line, a blank line between documents) or .jsonl (a
            document a line), both also with .gz or .xz after it, or in .parquet (a document a row);
            a folder of such files, read in the order of their sorted paths, without hidden files and folders;
            "hub:NAME[:CONFIG[:SPLIT]]", streamed with the `datasets` library, split "train" unless said;
            "builtin[:SENTENCES[:SEED]][:LANGUAGE]", documents of five sentences of the built-in language: english (its
            words), invented (the same order, other words) or verb-final (its counterpart), english unless said.
        language: under which name to count the text, where several languages are mixed.
        text_field: the field of jsonl, parquet and Hub rows that holds the text.
        on_error: "raise" stops at the first bad line and names it; "skip" leaves bad lines out and counts them.

    A document of more than a million characters is continued as another one.
    """
    problems = Problems(on_error)
    text = os.fspath(source)
    if text.startswith("hub:"):
        _hub_parts(text)
        files: list[Path] = []
    elif text.split(":")[0] == "builtin":
        _builtin_parts(text)
        files = []
    else:
        files = _files(Path(text), problems)
    return Corpus(source=text, files=tuple(files), language=language, text_field=text_field, problems=problems)


def open_corpora(corpora: Source | Corpus | Sequence[Source | Corpus]) -> list[Corpus]:
    """One or several corpora or sources as a list of corpora."""
    several = [corpora] if isinstance(corpora, str | os.PathLike | Corpus) else list(corpora)
    if not several:
        raise ValueError("corpora: expected at least one corpus, got none. Pass a path or open_corpus(...).")
    return [each if isinstance(each, Corpus) else open_corpus(each) for each in several]


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
    """The suffix that says the format, below that of a compression; "" where the two do not go together."""
    if path.suffix not in COMPRESSED:
        return path.suffix
    inner = Path(path.stem).suffix
    return "" if inner == ".parquet" else inner


def _suffixes() -> str:
    return ", ".join([*READERS, *(f".txt{suffix}, .jsonl{suffix}" for suffix in COMPRESSED)])


def _wrong_suffix(path: Path) -> str:
    return f"{path}: expected one of {_suffixes()}, got {path.suffix!r}. Rename, convert or remove it."


def _hub_parts(source: str) -> tuple[str, str | None, str]:
    name, config, split, *rest = [*source.removeprefix("hub:").split(":"), "", ""]
    if not name or len(rest) > 2 or any(rest):
        raise ValueError(f"source: expected hub:NAME[:CONFIG[:SPLIT]], got {source!r}. Write hub:wikitext:name:train.")
    return name, config or None, split or "train"


def _builtin_parts(source: str) -> tuple[int, int, str]:
    """Sentences, seed and language of a built-in source."""
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


def _spoken(language: str) -> Language:
    return Language(words="invented" if language == "invented" else "english")


def _builtin(sentences: int, seed: int, language: str) -> Iterator[Document]:
    spoken, left = _spoken(language), sentences
    for document in spoken.documents(-(-sentences // BUILTIN_DOCUMENT), seed=seed, sentences=BUILTIN_DOCUMENT):
        of_document = document[:left]
        if language == "verb-final":
            yield from bounded([" ".join(spoken.verb_final(sentence)) for sentence in of_document])
        else:
            yield from bounded([sentence.text for sentence in of_document])
        left -= BUILTIN_DOCUMENT


def _ends(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(FINGERPRINT_BYTES))
        file.seek(max(0, path.stat().st_size - FINGERPRINT_BYTES))
        digest.update(file.read())
    return digest.hexdigest()[:16]
