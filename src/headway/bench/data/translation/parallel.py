"""Parallel text as a stream of pairs, whatever it is stored in; memory does not grow with it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from headway.bench.data.text.readers import COMPRESSED, Problems
from headway.bench.data.translation.builtin import HELD_OUT_PAIRS, parse_builtin
from headway.bench.data.translation.readers import Pair, read_files, read_hub, read_jsonl, read_table

SPLITS = ("train", "dev", "test")
HUB_SPLITS = {"train": "train", "dev": "validation", "test": "test"}
BUILTIN_HELD_OUT = 0.05  # of all sentences of the built-in language for dev, and as many for test
FINGERPRINT_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True, eq=False)
class ParallelText:
    """Pairs of one source, read anew by every `for`. Make it with `open_parallel`.

    Attributes:
        source, target, languages, split, held_out: what `open_parallel` was given.
        problems: rows that could not be read, in the latest pass, where they are skipped.
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
            wanted = builtin.pairs if self.split in (None, "train") else HELD_OUT_PAIRS
            return islice(self._own(builtin.stream()), wanted)
        return self._own(self._read())

    @property
    def is_builtin(self) -> bool:
        return self.source.split(":")[0] == "builtin"

    @property
    def files(self) -> tuple[Path, ...]:
        """Empty for the Hub and the built-in language."""
        if self.is_builtin or self.source.startswith("hub:"):
            return ()
        return tuple(Path(name) for name in (self.source, self.target) if name is not None)

    @property
    def vocabularies(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Every word that can occur on either side, where that is known: in the built-in language."""
        return parse_builtin(self.source).vocabularies if self.is_builtin else ((), ())

    def fingerprint(self) -> list[Any]:
        """What the pairs depend on, cheap to work out: names, sizes, and hashes of both ends of each file."""
        files = [[path.name, path.stat().st_size, _ends(path)] for path in self.files]
        return [files or self.source, self.languages, self.split, self.held_out]

    def _read(self) -> Iterator[Pair]:
        if self.source.startswith("hub:"):
            assert self.languages is not None
            name, config, split = _hub_parts(self.source, self.split or "train")
            return read_hub(name, config, split, self.problems, self.languages)
        if self.target is not None:
            return read_files(Path(self.source), Path(self.target), self.problems)
        if _suffix(Path(self.source)) == ".jsonl":
            assert self.languages is not None
            return read_jsonl(Path(self.source), self.problems, self.languages)
        return read_table(Path(self.source), self.problems)

    def _own(self, pairs: Iterator[Pair]) -> Iterator[Pair]:
        """Those of this split. Where one source holds all, a hash of the sentence decides: splits share no sentence."""
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
        return (pair for pair in pairs if low <= _chance(salt + pair.source) < high)


def open_parallel(
    source: str,
    target: str | None = None,
    *,
    languages: str | None = None,
    split: str | None = None,
    held_out: float = 0.0,
    on_error: str = "raise",
) -> ParallelText:
    """Pairs of sentences from one of

        two text files, source and target, whose lines with the same number translate one another;
        a text file of sentence TAB translation;
        a .jsonl file of rows {"translation": {"de": ..., "en": ...}}, or of those without "translation";
        "hub:NAME[:CONFIG[:SPLIT]]" with such rows, streamed with the `datasets` library;
        "builtin[:PAIRS[:SEED]][:NAME=VALUE]...", see `headway.bench.data.translation.builtin`.

    All files also with .gz or .xz after their names.

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
    text = ParallelText(
        source=source, target=target, languages=named, split=split, held_out=held_out, problems=Problems(on_error)
    )
    if text.is_builtin:
        parse_builtin(source)
    if not text.files and target is not None:
        raise ValueError(f"target: expected none, {source} has both sides, got {target!r}. Leave it out.")
    for name, path in zip(("source", "target"), text.files, strict=False):
        if not path.is_file():
            raise FileNotFoundError(
                f"{name}: expected a file{', hub:NAME or builtin' if name == 'source' else ''}, got {str(path)!r}, "
                f"which does not exist or is a folder. Check the path."
            )
    rows = source.startswith("hub:") or (target is None and text.files and _suffix(text.files[0]) == ".jsonl")
    if rows and named is None:
        raise ValueError(f"languages: expected the direction of {source}, got none. Pass --languages en-de, or de-en.")
    return text


def _languages(text: str) -> tuple[str, str]:
    source, dash, target = text.partition("-")
    if not source or not dash or not target or source == target:
        raise ValueError(f"languages: expected SOURCE-TARGET such as en-de, got {text!r}.")
    return source, target


def _hub_parts(source: str, split: str) -> tuple[str, str | None, str]:
    name, *rest = source.removeprefix("hub:").split(":")
    if not name or len(rest) > 2:
        raise ValueError(f"source: expected hub:NAME[:CONFIG[:SPLIT]], got {source!r}. Write hub:wmt14:de-en.")
    config = rest[0] if rest and rest[0] else None
    return name, config, rest[1] if len(rest) == 2 else HUB_SPLITS[split]


def _suffix(path: Path) -> str:
    return Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix


def _chance(sentence: str) -> float:
    """A number from 0 to 1 that depends on the text alone."""
    return int.from_bytes(hashlib.blake2b(sentence.encode(), digest_size=8).digest(), "big") / 2**64


def _ends(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256(file.read(FINGERPRINT_BYTES))
        file.seek(max(0, path.stat().st_size - FINGERPRINT_BYTES))
        digest.update(file.read())
    return digest.hexdigest()[:16]
