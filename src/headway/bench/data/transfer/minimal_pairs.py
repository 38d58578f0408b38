"""Minimal pairs: two sentences of which one is acceptable, as BLiMP's files or the built-in language has them.

Paper:  Warstadt et al. (2020), "BLiMP: The Benchmark of Linguistic Minimal Pairs for English", TACL 8
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random

from headway.bench.data.language.labelled import corrupt
from headway.bench.data.language.language import Language
from headway.bench.data.reading import Problems, file_checksum, read_json_lines, source_kind

PARADIGMS, PAIRS = 67, 1000  # of BLiMP: files, and pairs in each
MERGED = {"s-selection": "argument_structure"}  # the paper's Table 2 counts its two paradigms there: 12 phenomena
BUILTIN_PAIRS = 1000
TEXTS = ("sentence_good", "sentence_bad", "linguistics_term", "UID")


@dataclass(frozen=True, slots=True)
class MinimalPair:
    """An acceptable sentence and one that differs from it as little as possible and is not.

    In seven of BLiMP's pairs, as published, both are the same: such a pair is a tie.
    """

    good: str
    bad: str
    phenomenon: str
    paradigm: str


def read_minimal_pairs(source: str) -> list[MinimalPair]:
    """Read all pairs of BLiMP's folder, or make pairs of the built-in language; a part of BLiMP is refused.

    Args:
        source: a folder with BLiMP's 67 files .jsonl, or builtin[:PAIRS]: sentences of the built-in language, and the
            same words in an order that breaks agreement or the noun phrase.
    """
    if source_kind(source) == "builtin":
        return _builtin(source)
    files = files_of(source)
    if len(files) != PARADIGMS:
        raise ValueError(
            f"{source}: expected the {PARADIGMS} files .jsonl of BLiMP, got {len(files)}. Unpack the whole data set "
            f"there, and nothing else."
        )
    return [pair for path in files for pair in _read_paradigm(path)]


def files_of(source: str) -> list[Path]:
    """Return the files that the pairs are read from, in order; none for the built-in language."""
    if source_kind(source) == "builtin":
        return []
    if not Path(source).is_dir():
        raise FileNotFoundError(f"data: expected BLiMP's folder or builtin, got {source}, which is not a folder.")
    return sorted(Path(source).glob("*.jsonl"))


def fingerprints(source: str) -> list[str]:
    """Return the checksums of the files that the pairs are read from."""
    return [file_checksum(path) for path in files_of(source)]


def _read_paradigm(path: Path) -> list[MinimalPair]:
    pairs = []
    for where, row in read_json_lines(path, Problems()):
        for name in TEXTS:
            if not isinstance(row.get(name), str) or not row[name].strip():
                raise ValueError(f"{where}: expected a text as {name!r}, got {row.get(name)!r:.40}. Fetch BLiMP again.")
        if row["UID"] != path.stem:
            raise ValueError(f"{where}: expected the paradigm {path.stem}, as the file is named, got {row['UID']}.")
        phenomenon = MERGED.get(row["linguistics_term"], row["linguistics_term"])
        pairs.append(MinimalPair(row["sentence_good"], row["sentence_bad"], phenomenon, row["UID"]))
    if len(pairs) != PAIRS:
        raise ValueError(f"{path}: expected {PAIRS:,} pairs, got {len(pairs):,}. Fetch BLiMP again.")
    return pairs


def _builtin(source: str) -> list[MinimalPair]:
    _, _, count = source.partition(":")
    if count and not (count.isdecimal() and int(count)):
        raise ValueError(f"data: expected builtin[:PAIRS], got {source!r}. Write builtin:1000.")
    language, rng = Language(), Random("minimal pairs")
    found: Counter[MinimalPair] = Counter()
    while len(found) < int(count or BUILTIN_PAIRS):
        sentence = language.sample(rng)
        broken = corrupt(sentence, rng)
        found[MinimalPair(sentence.text, " ".join(broken.words), "word order", broken.kind)] += 1
    return list(found)
