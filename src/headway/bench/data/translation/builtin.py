"""Pairs of the built-in language: each sentence with its verb-final translation.

Reordering is complete (verbs last, modifiers before their noun), verbs agree over a distance that the controls bound,
and the translation is a function of the sentence: a correct model translates every one exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

from headway.bench.data.language.language import Controls, Language, require_int
from headway.bench.data.translation.readers import Pair

PAIRS = 100_000
HELD_OUT_PAIRS = 1000  # of dev, and of test
EXAMPLE = "builtin:20000:0:max_depth=1:max_longest=8"


@dataclass(frozen=True, kw_only=True)
class Builtin:
    """What "builtin[:PAIRS[:SEED]][:NAME=VALUE]..." asks for: names are of `Language` (sizes) and `Controls`."""

    pairs: int
    seed: int
    language: Language
    controls: dict[str, int | None]

    def stream(self) -> Iterator[Pair]:
        """Pairs without end, dev and test among them."""
        for number, sentence in enumerate(self.language.sentences(1 << 62, seed=self.seed, **self.controls), start=1):
            yield Pair(sentence.text, " ".join(self.language.verb_final(sentence)), f"builtin, sentence {number}")

    @property
    def vocabularies(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """All words of either side."""
        return self.language.vocabulary, self.language.counterpart_vocabulary


def parse_builtin(text: str) -> Builtin:
    """Read such a name; raise where it is none."""
    _, *parts = text.split(":")
    numbers = [part for part in parts if "=" not in part]
    named = [part.partition("=") for part in parts if "=" in part]
    if len(numbers) > 2 or not all(map(_is_number, [*numbers, *(value for _, _, value in named)])):
        raise ValueError(
            f"source: expected builtin[:PAIRS[:SEED]][:NAME=VALUE]..., all whole numbers, got {text!r}. "
            f"Write {EXAMPLE}."
        )
    pairs, seed = [*map(int, numbers), *(PAIRS, 0)[len(numbers) :]]
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
    return Builtin(pairs=pairs, seed=seed, language=language, controls=controls)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
