"""Parallel text as a stream of pairs, from files, the Hub or the built-in language; memory does not grow with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from headway.bench.data.language.language import Controls, Language, require_int
from headway.bench.data.reading import (
    COMPRESSED,
    HubName,
    Problems,
    file_fingerprint,
    hash_share,
    read_hub,
    read_json_lines,
    read_lines,
    read_tsv,
    source_kind,
)

SPLITS = ("train", "dev", "test")
HUB_SPLITS = {"train": "train", "dev": "validation", "test": "test"}
HOW_TO_SKIP = "--set data.on_error=skip"
BUILTIN_PAIRS = 100_000
BUILTIN_HELD_OUT = 0.05  # share of all sentences of the built-in language that are for dev, and as many for test
BUILTIN_HELD_OUT_PAIRS = 1000  # of dev, and of test
BUILTIN_EXAMPLE = "builtin:20000:0:max_depth=1:max_longest=8"


class Pair(NamedTuple):
    """A sentence, its translation, and the place where they were read."""

    source: str
    target: str
    where: str


@dataclass(frozen=True, kw_only=True, eq=False)
class ParallelText:
    """Pairs of a corpus, read anew by every `for`. Make it with `open_parallel`.

    Attributes:
        source, target, languages, split, held_out: the arguments of `open_parallel`.
        problems: rows that could not be read in the latest pass, where they are skipped.
    """

    source: str
    target: str | None = None
    languages: tuple[str, str] | None = None
    split: str | None = None
    held_out: float = 0.0
    problems: Problems = field(default_factory=Problems)

    def __iter__(self) -> Iterator[Pair]:
        self.problems.clear()
        if self.is_builtin:
            builtin = parse_builtin(self.source)
            wanted = builtin.pairs if self.split in (None, "train") else BUILTIN_HELD_OUT_PAIRS
            return islice(self._of_split(builtin.stream()), wanted)
        return self._of_split(self._read())

    @property
    def is_builtin(self) -> bool:
        return source_kind(self.source) == "builtin"

    @property
    def parts(self) -> list[tuple[str, str | None]]:
        """Return the sources of the corpus, each with its target if that is a file of its own."""
        sources = split_names(self.source)
        targets: list[str] | list[None] = [None] * len(sources) if self.target is None else split_names(self.target)
        if len(sources) != len(targets):
            raise ValueError(
                f"target: {self.target} names {len(targets)} files, and {self.source} names {len(sources)} sources. "
                f"Name one target for each source."
            )
        return list(zip(sources, targets, strict=True))

    @property
    def files(self) -> tuple[Path, ...]:
        """Return the files to read; the Hub and the built-in language have none."""
        names = [name for source, target in self.parts for name in (source, target) if name is not None]
        return tuple(Path(name) for name in names if source_kind(name) == "files" and not self.is_builtin)

    @property
    def vocabularies(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return every word that can occur on either side, if known, as in the built-in language; else nothing."""
        return parse_builtin(self.source).vocabularies if self.is_builtin else ((), ())

    def fingerprint(self) -> list[Any]:
        """Describe the content cheaply: names, sizes, and hashes of both ends of each file."""
        read: list[Any] = [file_fingerprint(path) for path in self.files]
        read += [source for source, _ in self.parts if source_kind(source) == "hub"]
        return [read if self.files else self.source, self.languages, self.split, self.held_out]

    def _read(self) -> Iterator[Pair]:
        return chain.from_iterable(self._read_part(*part) for part in self.parts)

    def _read_part(self, source: str, target: str | None) -> Iterator[Pair]:
        if source_kind(source) == "hub":
            dataset = HubName.parse(source, HUB_SPLITS[self.split or "train"])
            return self._pairs_of_rows(read_hub(dataset, stream=True))
        if target is not None:
            return read_two_files(Path(source), Path(target), self.problems)
        if _suffix(Path(source)) == ".jsonl":
            return self._pairs_of_rows(read_json_lines(Path(source), self.problems))
        rows = read_tsv(Path(source), self.problems, widths=(2,))
        return (Pair(one.strip(), other.strip(), where) for where, (one, other) in rows)

    def _pairs_of_rows(self, rows: Iterator[tuple[str, dict[str, Any]]]) -> Iterator[Pair]:
        """Yield the pairs of rows such as {"translation": {"de": ..., "en": ...}} or {"de": ..., "en": ...}."""
        assert self.languages is not None
        one, other = self.languages
        for where, row in rows:
            texts = row.get("translation", row)
            source, target = (texts.get(name) if isinstance(texts, dict) else None for name in (one, other))
            if isinstance(source, str) and isinstance(target, str):
                yield Pair(" ".join(source.split()), " ".join(target.split()), where)
            else:
                got = ", ".join(map(str, texts)) if isinstance(texts, dict) else repr(row)[:50]
                self.problems.add(f"{where}: expected text in {one} and {other}, got {got}. Correct the row.")

    def _of_split(self, pairs: Iterator[Pair]) -> Iterator[Pair]:
        """Keep the pairs of this split. Where one source holds all splits, a hash of the sentence decides which it is
        in, so that splits share no sentence."""
        share = BUILTIN_HELD_OUT if self.is_builtin else self.held_out
        if not share or self.split is None:
            return pairs
        for_test = share if self.is_builtin else 0.0
        low, high = {
            "dev": (0.0, share),
            "test": (share, share + for_test),
            "train": (share + for_test, 1.0),
        }[self.split]
        salt = "builtin\n" if self.is_builtin else ""  # so that its sentences, in a file, are split in another way
        return (pair for pair in pairs if low <= hash_share(salt + pair.source) < high)


def open_parallel(
    source: str,
    target: str | None = None,
    *,
    languages: str | None = None,
    split: str | None = None,
    held_out: float = 0.0,
    on_error: str = "raise",
) -> ParallelText:
    """Return pairs of sentences from one of

        two text files, source and target, whose lines with the same number translate one another;
        a text file of sentence TAB translation;
        a .jsonl file of rows {"translation": {"de": ..., "en": ...}}, or of those without "translation";
        "hub:NAME[:CONFIG[:SPLIT]]" with such rows, streamed with the `datasets` library;
        "builtin[:PAIRS[:SEED]][:NAME=VALUE]...", the built-in language, see `BuiltinPairs`.

    All files also with .gz or .xz after their names. Several files or Hub datasets joined by "+" are one corpus, read
    one after the other: open_parallel("europarl.en+news.en", "europarl.de+news.de").

    Args:
        languages: of jsonl and Hub rows, source and target: "en-de" translates from en to de.
        split: "train", "dev" or "test": of the built-in language, of the Hub, and of other sources with `held_out`.
        held_out: the share of a source's sentences that are dev and not train, chosen by a hash of the sentence.
        on_error: "raise" stops at the first row that cannot be read and names it; "skip" counts such rows.
    """
    if split is not None and split not in SPLITS:
        raise ValueError(f"split: expected one of {', '.join(SPLITS)}, got {split!r}.")
    if not 0.0 <= held_out < 0.5:
        raise ValueError(f"held_out: expected a share of at least 0 and below 0.5, got {held_out}.")
    named = None if languages is None else _languages(languages)
    problems = Problems(on_error, HOW_TO_SKIP)
    text = ParallelText(
        source=source, target=target, languages=named, split=split, held_out=held_out, problems=problems
    )
    if text.is_builtin:
        parse_builtin(source)
    for part, other in text.parts:
        _check_part(part, other, has_languages=named is not None, remote=text.is_builtin or source_kind(part) == "hub")
    return text


def split_names(names: str) -> list[str]:
    """Return the names that are joined by "+"; a file whose own name has one is a single name."""
    return [names] if Path(names).is_file() else names.split("+")


def _check_part(source: str, target: str | None, *, has_languages: bool, remote: bool) -> None:
    """Raise where one source of a corpus cannot be read as it is named."""
    if remote and target is not None:
        raise ValueError(f"target: {source} has both sides, so that {target!r} would not be read. Leave it out.")
    for name, path in (("source", None if remote else source), ("target", target)):
        if path is not None and not Path(path).is_file():
            raise FileNotFoundError(
                f"{name}: expected a file{', hub:NAME or builtin' if name == 'source' else ''}, got {path!r}, "
                f"which does not exist or is a folder. Check the path."
            )
    has_rows = source_kind(source) == "hub" or (target is None and not remote and _suffix(Path(source)) == ".jsonl")
    if has_rows and not has_languages:
        raise ValueError(
            f"languages: the direction of {source} is not known. Pass --set data.languages=en-de, or de-en."
        )


def read_two_files(source: Path, target: Path, problems: Problems) -> Iterator[Pair]:
    """Yield the lines of two files that have the same number as pairs; a bad line loses its pair, not the alignment."""
    number = 0
    both = zip_longest(read_lines(source, problems), read_lines(target, problems), fillvalue=(0, None))
    for (number, one), (other_number, other) in both:
        if number != other_number:
            raise _misaligned(source, target, min(number, other_number) or max(number, other_number) - 1)
        if one is not None and other is not None:
            yield Pair(one.strip(), other.strip(), f"{source}, line {number}")
    if number == 0:
        problems.add_empty(source)


def _misaligned(source: Path, target: Path, after: int) -> ValueError:
    counts = {path: sum(1 for _ in read_lines(path, Problems("skip"))) for path in (source, target)}
    return ValueError(
        f"target: expected as many lines in {target} as in {source} ({counts[source]:,}), got {counts[target]:,}: "
        f"one of them ends after line {after:,}. Line n of the one must translate line n of the other."
    )


@dataclass(frozen=True, kw_only=True)
class BuiltinPairs:
    """Pairs of the built-in language: each sentence with its verb-final translation.

    They are named "builtin[:PAIRS[:SEED]][:NAME=VALUE]..."; names are fields of `Language` (its size) and `Controls`
    (its sentences). Word order is reversed throughout (verbs last, modifiers before their noun), verbs agree over a
    distance that the controls bound, and each sentence has one translation, so that a model can reach 100 % exactly.
    """

    pairs: int
    seed: int
    language: Language
    controls: dict[str, int | None]

    def stream(self) -> Iterator[Pair]:
        """Yield an endless sequence of pairs, those of dev and test among them."""
        for number, sentence in enumerate(self.language.sentences(1 << 62, seed=self.seed, **self.controls), start=1):
            yield Pair(sentence.text, " ".join(self.language.verb_final(sentence)), f"builtin, sentence {number}")

    @property
    def vocabularies(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return all words of either side."""
        return self.language.vocabulary, self.language.counterpart_vocabulary


def parse_builtin(text: str) -> BuiltinPairs:
    """Parse the name of built-in pairs; raise if it is not one."""
    _, *parts = text.split(":")
    numbers = [part for part in parts if "=" not in part]
    named = [part.partition("=") for part in parts if "=" in part]
    if len(numbers) > 2 or not all(map(_is_number, [*numbers, *(value for _, _, value in named)])):
        raise ValueError(
            f"source: expected builtin[:PAIRS[:SEED]][:NAME=VALUE]..., all whole numbers, got {text!r}. "
            f"Write {BUILTIN_EXAMPLE}."
        )
    pairs, seed = [*map(int, numbers), *(BUILTIN_PAIRS, 0)[len(numbers) :]]
    require_int("source: pairs", pairs, 1)
    settings = {name: int(value) for name, _, value in named}
    sizes = [each.name for each in fields(Language) if each.init and each.name not in ("attraction", "words")]
    bounds = [each.name for each in fields(Controls)]
    for name in settings:
        if name not in (*sizes, *bounds):
            raise ValueError(f"source: expected of {text!r} names among {', '.join((*sizes, *bounds))}, got {name!r}.")
    language = Language(**{name: value for name, value in settings.items() if name in sizes})  # type: ignore[arg-type]
    controls: dict[str, int | None] = {name: value for name, value in settings.items() if name in bounds}
    Controls.named(controls)
    return BuiltinPairs(pairs=pairs, seed=seed, language=language, controls=controls)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _languages(text: str) -> tuple[str, str]:
    source, dash, target = text.partition("-")
    if not source or not dash or not target or source == target:
        raise ValueError(f"languages: expected SOURCE-TARGET such as en-de, got {text!r}.")
    return source, target


def _suffix(path: Path) -> str:
    return Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix
