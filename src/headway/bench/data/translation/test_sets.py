"""Test sets: sentences with their references, all of them and in the order of the file, as scores must have them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.bench.data.reading import source_kind
from headway.bench.data.translation.parallel import Pair, ParallelText, open_parallel
from headway.bench.data.translation.wmt import NEWSTEST_SENTENCES


@dataclass(frozen=True, kw_only=True, slots=True)
class TestSet:
    """Sentences to translate, and one reference for each."""

    __test__ = False  # tells pytest that this is no test

    name: str
    sentences: list[str]
    references: list[str]
    fingerprint: list[Any]


def open_test_set(source: str, *, languages: str | None = None) -> ParallelText:
    """Return the pairs of a test set.

    Args:
        source: one source of `open_parallel`, such as hub:wmt14:de-en or pairs.tsv, or two files with a comma between
            them, such as newstest2014.en,newstest2014.de. The Hub and the built-in language have a split "test".
        languages: the direction, such as en-de.
    """
    file, comma, other = source.partition(",")
    if not comma or source_kind(source) == "hub" or Path(source).is_file():
        return open_parallel(source, languages=languages, split="test")
    return open_parallel(file.strip(), other.strip(), languages=languages, split="test")


def read_test_set(name: str, source: str, *, languages: str | None = None) -> TestSet:
    """Read a test set whole; raise where a row cannot be read, or where a set of WMT is not complete."""
    text = open_test_set(source, languages=languages)
    pairs = list(text)
    _check_complete(name, source, pairs, languages)
    return TestSet(
        name=name,
        sentences=[pair.source for pair in pairs],
        references=[pair.target for pair in pairs],
        fingerprint=text.fingerprint(),
    )


def _check_complete(name: str, source: str, pairs: list[Pair], languages: str | None) -> None:
    without = next((pair for pair in pairs if not pair.target), None)
    if without is not None:
        raise ValueError(f"{without.where}: a sentence of test set {name} has no reference. Fetch the file again.")
    if not pairs:
        raise ValueError(f"test set {name}: {source} has no sentences. Check the file.")
    known = NEWSTEST_SENTENCES.get(name, {})
    spoken = known if languages is None else languages.lower().split("-")
    wanted = {known[language] for language in spoken if language in known}
    if wanted and len(pairs) not in wanted:
        counts = " or ".join(f"{count:,}" for count in sorted(wanted))
        raise ValueError(
            f"test set {name}: {source} has {len(pairs):,} sentences, and the whole {name} has {counts}. Scores of a "
            f"part do not compare with published ones. Take the whole set, or give the part another name."
        )
