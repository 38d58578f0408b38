"""Sampling of languages with smoothed shares, between proportional to their sizes and uniform.

Paper:    Lample and Conneau (2019), "Cross-lingual Language Model Pretraining", Sec. 3.1
Formula:  share[l] = size[l]^alpha / sum over m of size[m]^alpha
Symbols:  alpha: 1 is proportional to size, 0 uniform. The paper takes 0.5, multilingual BERT 0.7, XLM-R 0.3
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from headway.bench.data.text.corpora import Corpus

ALPHA = 0.7  # as multilingual BERT
BATCH = 100_000  # characters normalised at once
UNICODE = 0x110000
T = TypeVar("T")


def smoothed_shares(sizes: Mapping[str, int], alpha: float) -> dict[str, float]:
    """Return the share of each language; the shares sum to 1."""
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"smoothing: expected an exponent from 0 (uniform) to 1 (by size), got {alpha}. Pass {ALPHA}.")
    largest = max(sizes.values())
    weights = {name: (size / largest) ** alpha if size else 0.0 for name, size in sizes.items()}
    total = sum(weights.values())
    return {name: weight / total for name, weight in weights.items()}


def quotas(shares: Mapping[str, float], total: int) -> dict[str, int]:
    """Round the shares of `total` to whole numbers that sum to it."""
    exact = {name: share * total for name, share in shares.items()}
    counts = {name: int(value) for name, value in exact.items()}
    by_remainder = sorted(exact, key=lambda name: (counts[name] - exact[name], name))
    for name in by_remainder[: total - sum(counts.values())]:
        counts[name] += 1
    return counts


def repeated(items: Iterable[T], rate: float) -> Iterator[T]:
    """Yield each item `rate` times on average, evenly spread; below 1 some are left out."""
    given = 0
    for number, item in enumerate(items, start=1):
        for _ in range(int(number * rate) - given):
            yield item
        given = max(given, int(number * rate))


@dataclass(frozen=True, kw_only=True)
class Census:
    """The sampling rate of each language, and the counts of characters in the sampled text.

    Attributes:
        rates: mean number of times to take a line of each language.
        characters: normalised characters with their counts, most frequent first, white space left out.
    """

    rates: dict[str, float]
    characters: dict[str, float]

    def lines(self, corpora: Sequence[Corpus]) -> Iterator[str]:
        """Yield the sampled lines. Lines are sampled, not documents, since a language may have only one document."""
        for corpus in corpora:
            lines = (line for document in corpus for line in document)
            yield from repeated(lines, self.rates[corpus.language or ""])

    def most_frequent(self, count: int) -> list[str]:
        """Return that many characters, or all if there are fewer, most frequent first."""
        return list(self.characters)[:count]

    def covering(self, share: float) -> list[str]:
        """Return the fewest characters that make up such a share of the text, most frequent first."""
        counts = np.cumsum(list(self.characters.values()))
        return self.most_frequent(int(np.searchsorted(counts, share * counts[-1])) + 1)


def take_census(corpora: Sequence[Corpus], normalizer: Any, smoothing: float, max_characters: int) -> Census:
    """Count the characters of all corpora; sizes of languages are in characters before normalisation."""
    sizes: Counter[str] = Counter()
    characters: dict[str, Counter[int]] = {}
    for corpus in corpora:
        language = corpus.language or ""
        for lines in _batches(corpus):
            sizes[language] += sum(map(len, lines))
            characters.setdefault(language, Counter()).update(_count(normalizer.normalize_str("\n".join(lines))))
    total = min(sizes.total(), max_characters)
    if not total:
        raise ValueError(f"corpora: there is no text in {', '.join(c.source for c in corpora)}. Name other sources.")
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
