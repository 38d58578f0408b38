"""The built-in language: a seeded grammar whose dependence on word order is known by construction.

Verbs agree with the head of their subject over any distance, and modifiers put nouns of the other number in
between, so neither the bag of words nor the nearest noun decides a verb's form. It ships as code: demos and
tests need no download, and the same seeds give the same sentences on every platform and Python version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from math import inf
from random import Random
from typing import Any

from headway.bench.data.language.grammar import MODIFY, Cast, OpenCast, Sampler, Sentence, SharedCast, reach, realise
from headway.bench.data.language.lexicon import Lexicon, build_lexicon
from headway.bench.data.language.verb_final import Counterpart, build_counterpart, translate

WORDS = ("english", "invented")
ATTEMPTS = 20_000  # draws before a sentence is declared out of reach; about a second


@dataclass(frozen=True, kw_only=True, slots=True)
class Controls:
    """Bounds on the sentences to keep.

    Args:
        min_distance: fewest words from the main clause's head noun to its verb; 1 is the next word.
        max_distance: most words, counted the same way; None is no bound.
        max_words: longest sentence, the full stop included; None is no bound.
        min_longest: fewest words of the longest agreement, over all clauses, from its head noun to its verb.
        max_longest: most words, counted the same way; None is no bound.
    """

    min_distance: int = 1
    max_distance: int | None = None
    max_words: int | None = None
    min_longest: int = 1
    max_longest: int | None = None

    def __post_init__(self) -> None:
        for bound in ("distance", "longest"):
            least, most = getattr(self, f"min_{bound}"), getattr(self, f"max_{bound}")
            require_int(f"min_{bound}", least, 1)
            if most is not None:
                require_int(f"max_{bound}", most, 1)
                if most < least:
                    raise ValueError(
                        f"max_{bound}: expected at least min_{bound}={least}, got {most}. "
                        f"Raise max_{bound} or lower min_{bound}."
                    )
        if self.max_words is not None:
            require_int("max_words", self.max_words, 4)

    def fits(self, sentence: Sentence) -> bool:
        """Return whether a sentence is within the bounds; that on its main clause is checked as it is drawn."""
        longest = max(agreement.distance for agreement in sentence.agreements)
        return len(sentence.words) <= (self.max_words or inf) and self.min_longest <= longest <= (
            self.max_longest or inf
        )

    @classmethod
    def named(cls, controls: Mapping[str, Any]) -> Controls:
        """Make controls from keyword arguments; raise where a name is unknown."""
        known = [each.name for each in fields(cls)]
        for name in controls:
            if name not in known:
                raise TypeError(f"{name}: expected a control among {', '.join(known)}, got {name!r}. Use one of those.")
        return cls(**controls)


@dataclass(frozen=True, kw_only=True, slots=True)
class Language:
    """A lexicon and a grammar, fixed by these numbers.

    Args:
        seed: chooses the words.
        nouns: how many nouns, each with a singular and a plural.
        verbs: how many transitive verbs, each with a singular, a plural and a passive participle.
        intransitives: how many intransitive verbs.
        adjectives: how many adjectives.
        max_depth: how deep modifiers and reported clauses may nest; 0 has neither, and each level lets
            agreement reach about five words further.
        attraction: chance that a noun in a modifier has the other number than the noun modified.
        words: "english" takes content words from short lists and invents those beyond; "invented" invents
            them all, for a second language that shares only function words and prepositions with the first.
            Two languages that differ only in `words` say the same thing word for word, given the same seeds.
    """

    seed: int = 0
    nouns: int = 48
    verbs: int = 24
    intransitives: int = 12
    adjectives: int = 16
    max_depth: int = 2
    attraction: float = 0.6
    words: str = "english"
    lexicon: Lexicon = field(init=False, repr=False, compare=False)
    counterpart: Counterpart = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require_int("seed", self.seed, 0)
        for name, least in (("nouns", 4), ("verbs", 2), ("intransitives", 1), ("adjectives", 4)):
            require_int(name, getattr(self, name), least, 10_000)
        require_int("max_depth", self.max_depth, 0, 30)
        if isinstance(self.attraction, bool) or not isinstance(self.attraction, int | float):
            raise TypeError(f"attraction: expected a number, got {self.attraction!r}. Pass a chance such as 0.6.")
        if not 0.0 <= self.attraction <= 1.0:
            raise ValueError(f"attraction: expected a chance from 0 to 1, got {self.attraction}. Pass one such as 0.6.")
        if self.words not in WORDS:
            raise ValueError(f"words: expected one of {', '.join(WORDS)}, got {self.words!r}. Use one of those.")
        sizes = {name: getattr(self, name) for name in ("nouns", "verbs", "intransitives", "adjectives")}
        invented = self.words == "invented"
        lexicon = build_lexicon(Random(f"lexicon {self.words} {self.seed}"), **sizes, invented=invented)
        counterpart = build_counterpart(lexicon, Random(f"counterpart {self.words} {self.seed}"))
        object.__setattr__(self, "lexicon", lexicon)
        object.__setattr__(self, "counterpart", counterpart)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """Return all words and punctuation, sorted, without special tokens."""
        return tuple(sorted(self.lexicon.words()))

    @property
    def counterpart_vocabulary(self) -> tuple[str, ...]:
        """Return all words that `verb_final` can write, sorted; only the full stop is in `vocabulary` too."""
        return tuple(sorted(self.counterpart.words()))

    def other_number(self, word: str) -> str:
        """Return the plural of a singular noun or finite verb, and the reverse, as minimal pairs need."""
        for token in self.lexicon.tokens.values():
            if token.word == word and token.plural is not None:
                return self.lexicon.tokens[token.lemma, not token.plural].word
        raise ValueError(
            f"word: expected a word of this language that shows number, got {word!r}. "
            f"Take a noun, a finite verb, 'is', 'are', 'a' or 'some' from its vocabulary."
        )

    def sample(self, rng: Random, **controls: int | None) -> Sentence:
        """Draw a sentence that meets the `Controls` given by name."""
        return self._draw(rng, OpenCast(self.lexicon), Controls.named(controls))

    def sentences(self, count: int, *, seed: int = 0, **controls: int | None) -> Iterator[Sentence]:
        """Draw `count` sentences that meet the `Controls` given by name; a smaller count gives a prefix."""
        require_int("count", count, 1)
        require_int("seed", seed, 0)
        cast, wanted = OpenCast(self.lexicon), Controls.named(controls)
        rng = Random(f"sentences {self.seed} {seed}")
        return (self._draw(rng, cast, wanted) for _ in range(count))

    def documents(
        self, count: int, *, seed: int = 0, sentences: int = 5, entities: int = 6, **controls: int | None
    ) -> Iterator[tuple[Sentence, ...]]:
        """Draw `count` documents, each of `sentences` sentences about the same few `entities`.

        Every second entity is plural. An entity keeps its adjectives; the first sentence that names it says
        "a" or "some", later ones "the".
        """
        require_int("count", count, 1)
        require_int("seed", seed, 0)
        require_int("sentences", sentences, 1)
        require_int("entities", entities, 2, self.nouns)
        wanted = Controls.named(controls)
        rng = Random(f"documents {self.seed} {seed}")
        return (self._document(rng, sentences, entities, wanted) for _ in range(count))

    def verb_final(self, sentence: Sentence) -> tuple[str, ...]:
        """Translate a sentence into the verb-final counterpart, by its derivation tree."""
        return translate(sentence.tree, self.counterpart)

    def _document(self, rng: Random, sentences: int, entities: int, controls: Controls) -> tuple[Sentence, ...]:
        cast = SharedCast(self.lexicon, rng, entities)
        document = []
        for _ in range(sentences):
            sentence = self._draw(rng, cast, controls)
            cast.introduce({token.lemma for token in sentence.tokens if token.category == "noun"})
            document.append(sentence)
        return tuple(document)

    def _draw(self, rng: Random, cast: Cast, controls: Controls) -> Sentence:
        sampler = Sampler(self.lexicon, rng, cast, max_depth=self.max_depth, attraction=self.attraction)
        least, most = controls.min_distance, controls.max_distance
        modify = max(MODIFY, 1 - 1 / least)  # long distances need many modifiers
        for _ in range(ATTEMPTS):
            subject = sampler.subject(modify)
            if (least, most) != (1, None) and not least <= reach(subject, self.lexicon) <= (most or inf):
                continue
            sentence = realise(sampler.main_clause(subject), self.lexicon)
            if controls.fits(sentence):
                return sentence
        raise ValueError(
            f"controls: expected bounds that sentences with max_depth={self.max_depth} can meet, "
            f"got {controls}, which none of {ATTEMPTS} draws met. "
            f"Widen the bounds or make the language with another max_depth."
        )


def require_int(name: str, value: int, least: int, most: int | None = None) -> None:
    """Raise unless the argument of that name is an integer within the bounds."""
    wanted = f"an integer of at least {least}" if most is None else f"an integer from {least} to {most}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}: expected {wanted}, got {value!r}. Pass a whole number.")
    if value < least or (most is not None and value > most):
        raise ValueError(f"{name}: expected {wanted}, got {value}. Pass a number in that range.")
