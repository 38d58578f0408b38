"""A first pass over corpora, before a tokenizer is trained: how much text of each language, and which characters."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.bench.data.text.corpora import Corpus
from headway.bench.data.text.sampling import repeated, smoothed_shares

BATCH = 100_000  # characters normalised at once
UNICODE = 0x110000


@dataclass(frozen=True, kw_only=True)
class Census:
    """How often to take each language's lines, and the characters of what is then taken.

    Attributes:
        rates: how many times to take a line of a language, on average.
        characters: normalised characters with their counts, most frequent first, white space left out.
    """

    rates: dict[str, float]
    characters: dict[str, float]

    def lines(self, corpora: Sequence[Corpus]) -> Iterator[str]:
        """The lines to learn from. No document is taken or left as a whole: one may be all there is of a language."""
        for corpus in corpora:
            lines = (line for document in corpus for line in document)
            yield from repeated(lines, self.rates[corpus.language or ""])

    def most_frequent(self, count: int) -> list[str]:
        """That many characters, or all there are, most frequent first."""
        return list(self.characters)[:count]

    def covering(self, share: float) -> list[str]:
        """The fewest characters that make up such a share of the text, most frequent first."""
        counts = np.cumsum(list(self.characters.values()))
        return self.most_frequent(int(np.searchsorted(counts, share * counts[-1])) + 1)


def take_census(corpora: Sequence[Corpus], normalizer: Any, smoothing: float, max_characters: int) -> Census:
    """Read everything once. Sizes of languages are in characters, before normalisation."""
    sizes: Counter[str] = Counter()
    characters: dict[str, Counter[int]] = {}
    for corpus in corpora:
        language = corpus.language or ""
        for lines in _batches(corpus):
            sizes[language] += sum(map(len, lines))
            characters.setdefault(language, Counter()).update(_count(normalizer.normalize_str("\n".join(lines))))
    total = min(sizes.total(), max_characters)
    if not total:
        raise ValueError(f"corpora: expected text, got none in {', '.join(c.source for c in corpora)}.")
    rates = {name: share * total / sizes[name] for name, share in smoothed_shares(sizes, smoothing).items()}
    weighted: defaultdict[int, float] = defaultdict(float)
    for language, counts in characters.items():
        for code, count in counts.items():
            weighted[code] += count * rates[language]
    order = sorted(weighted, key=lambda code: (-weighted[code], code))
    return Census(rates=rates, characters={chr(code): weighted[code] for code in order if not chr(code).isspace()})


def _batches(corpus: Corpus) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for document in corpus:
        for line in document:
            batch.append(line)
            size += len(line)
            if size >= BATCH:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _count(text: str) -> dict[int, int]:
    codes = np.bincount(np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32), minlength=UNICODE)
    present = np.flatnonzero(codes)
    return dict(zip(present.tolist(), codes[present].tolist(), strict=True))
