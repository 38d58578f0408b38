"""The grammar of the built-in language: derivation trees and the random process that draws them.

    Sentence    -> Clause "."
    Clause      -> NounPhrase Predicate               the main clause may join two predicates with "and"
    NounPhrase  -> Determiner Adjective* Noun Modifier?
    Modifier    -> Preposition NounPhrase             the dogs near a cat
                 | "that" Predicate                   the dogs that chase a cat
                 | "that" NounPhrase Transitive       the dogs that a cat chases
    Predicate   -> Intransitive
                 | Transitive NounPhrase
                 | "is" Participle "by" NounPhrase
                 | Report "that" Clause

A noun phrase has at most one modifier and only the main clause joins predicates, so the categories of the
words determine the tree: every sentence has one reading, and its verbs one right form. Depth counts the
modifiers and reported clauses a phrase stands inside.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple, Protocol

from headway.bench.data.language.lexicon import Lexicon, pick, shuffled

MODIFY = 0.45  # chance that a phrase above the deepest level has a modifier
ADJECTIVE = 0.25  # chance of an adjective, and of a second after the first
DEFINITE = 0.6
COORDINATE = 0.12
PASSIVE = 0.3  # of transitive predicates with an object
REPORT = 0.12
INTRANSITIVE = 0.3


class NounPhrase(NamedTuple):
    """Determiner, adjectives, noun and modifier: "the big dogs near a cat"."""

    noun: str
    plural: bool
    definite: bool = True
    adjectives: tuple[str, ...] = ()
    modifier: Prepositional | Relative | None = None


class Prepositional(NamedTuple):
    """The modifier "near a cat"."""

    preposition: str
    phrase: NounPhrase


class Relative(NamedTuple):
    """The modifier "that chase a cat", or "that a cat chases", whose object it modifies."""

    predicate: Predicate
    subject: NounPhrase | None = None


class Predicate(NamedTuple):
    """A verb with its complement: object, agent of a passive, reported clause, or nothing."""

    verb: str
    complement: NounPhrase | Clause | None = None
    passive: bool = False


class Clause(NamedTuple):
    """A subject with one predicate, or two joined by "and"."""

    subject: NounPhrase
    predicates: tuple[Predicate, ...]


class Cast(Protocol):
    """Where noun phrases come from: the whole lexicon, or the few entities that a document is about."""

    def draw(self, rng: Random, plural: bool, used: set[str]) -> NounPhrase:
        """An unmodified phrase of that number, preferably of a noun that the sentence has not `used`."""


class OpenCast:
    """All nouns of the lexicon, each phrase dressed anew. Every noun is as likely in every role."""

    def __init__(self, lexicon: Lexicon) -> None:
        self.lexicon = lexicon

    def draw(self, rng: Random, plural: bool, used: set[str]) -> NounPhrase:
        nouns = self.lexicon.nouns
        noun = pick(rng, nouns)
        while noun in used and len(used) < len(nouns):
            noun = pick(rng, nouns)
        return NounPhrase(noun, plural, rng.random() < DEFINITE, self.adjectives(rng))

    def adjectives(self, rng: Random) -> tuple[str, ...]:
        if rng.random() >= ADJECTIVE:
            return ()
        first = pick(rng, self.lexicon.adjectives)
        if rng.random() >= ADJECTIVE:
            return (first,)
        second = pick(rng, self.lexicon.adjectives)
        return (first, second) if first != second else (first,)


class SharedCast:
    """A few entities, each with its own noun, number and adjectives: half of them singular, half plural.

    An entity is indefinite until its noun has been given to `introduce`, and definite from then on.
    """

    def __init__(self, lexicon: Lexicon, rng: Random, entities: int) -> None:
        source = OpenCast(lexicon)
        nouns = shuffled(rng, lexicon.nouns)[:entities]
        self.entities = [
            NounPhrase(noun, number % 2 == 1, False, source.adjectives(rng)) for number, noun in enumerate(nouns)
        ]

    def draw(self, rng: Random, plural: bool, used: set[str]) -> NounPhrase:
        fitting = [entity for entity in self.entities if entity.plural == plural]
        fresh = [entity for entity in fitting if entity.noun not in used]
        return pick(rng, fresh or fitting)

    def introduce(self, nouns: set[str]) -> None:
        self.entities = [entity._replace(definite=entity.definite or entity.noun in nouns) for entity in self.entities]


class Sampler:
    """Draws the derivation tree of one sentence.

    Args:
        attraction: chance that a phrase inside a modifier has the other number than the noun it modifies.
    """

    def __init__(self, lexicon: Lexicon, rng: Random, cast: Cast, *, max_depth: int, attraction: float) -> None:
        self.lexicon, self.rng, self.cast = lexicon, rng, cast
        self.max_depth, self.attraction = max_depth, attraction
        self.used: set[str] = set()
        self.modify = MODIFY

    def subject(self, modify: float = MODIFY) -> NounPhrase:
        """A subject for a new main clause; `modify` is the chance of a modifier in it, at every depth."""
        self.used, self.modify = set(), modify
        return self._noun_phrase(0, self._number())

    def main_clause(self, subject: NounPhrase) -> Clause:
        """The subject with predicates of its own."""
        self.modify = MODIFY
        count = 2 if self.rng.random() < COORDINATE else 1
        return Clause(subject, tuple(self._predicate(0, self._number()) for _ in range(count)))

    def _number(self) -> bool:
        return self.rng.random() < 0.5

    def _noun_phrase(self, depth: int, plural: bool) -> NounPhrase:
        phrase = self.cast.draw(self.rng, plural, self.used)
        self.used.add(phrase.noun)
        if depth < self.max_depth and self.rng.random() < self.modify:
            return phrase._replace(modifier=self._modifier(depth + 1, plural))
        return phrase

    def _modifier(self, depth: int, plural: bool) -> Prepositional | Relative:
        inner = plural != (self.rng.random() < self.attraction)
        kind = self.rng.random()
        if kind < 0.4:
            return Prepositional(pick(self.rng, self.lexicon.prepositions), self._noun_phrase(depth, inner))
        if kind < 0.7:
            return Relative(self._predicate(depth, inner))
        subject = self._noun_phrase(depth, inner)
        return Relative(Predicate(pick(self.rng, self.lexicon.transitives)), subject)

    def _predicate(self, depth: int, plural: bool) -> Predicate:
        """A predicate whose object, agent or reported subject has that number."""
        rng, kind = self.rng, self.rng.random()
        if kind < INTRANSITIVE:
            return Predicate(pick(rng, self.lexicon.intransitives))
        if kind < INTRANSITIVE + REPORT and depth < self.max_depth:
            reported = Clause(self._noun_phrase(depth + 1, plural), (self._predicate(depth + 1, self._number()),))
            return Predicate(pick(rng, self.lexicon.reports), reported)
        verb = pick(rng, self.lexicon.transitives)
        return Predicate(verb, self._noun_phrase(depth, plural), rng.random() < PASSIVE)
