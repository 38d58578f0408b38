"""The grammar of the built-in language: derivation trees, drawn at random and spelled out as sentences.

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

from dataclasses import dataclass
from random import Random
from typing import NamedTuple, Protocol, cast

from headway.bench.data.language.lexicon import Lexicon, Token, pick, shuffled

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
    """A source of noun phrases: the whole lexicon, or the few entities that a document is about."""

    def draw(self, rng: Random, plural: bool, used: set[str]) -> NounPhrase:
        """Draw an unmodified phrase of that number, preferably of a noun that the sentence has not `used`."""


class OpenCast:
    """All nouns of the lexicon, with new adjectives each time. Every noun is equally likely in every role."""

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
        """Draw the subject of a new main clause; `modify` is the chance of a modifier in it, at every depth."""
        self.used, self.modify = set(), modify
        return self._noun_phrase(0, self._number())

    def main_clause(self, subject: NounPhrase) -> Clause:
        """Draw the predicates of a subject."""
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
        """Draw a predicate whose object, agent or reported subject has that number."""
        rng, kind = self.rng, self.rng.random()
        if kind < INTRANSITIVE:
            return Predicate(pick(rng, self.lexicon.intransitives))
        if kind < INTRANSITIVE + REPORT and depth < self.max_depth:
            reported = Clause(self._noun_phrase(depth + 1, plural), (self._predicate(depth + 1, self._number()),))
            return Predicate(pick(rng, self.lexicon.reports), reported)
        verb = pick(rng, self.lexicon.transitives)
        return Predicate(verb, self._noun_phrase(depth, plural), rng.random() < PASSIVE)


class Agreement(NamedTuple):
    """A finite verb (or "is"/"are") and the head noun whose number it shows, as positions in the sentence.

    `attracted` says that a noun of the other number stands between the two.
    """

    verb: int
    noun: int
    plural: bool
    attracted: bool

    @property
    def distance(self) -> int:
        """Return verb - noun, which is 1 for neighbours."""
        return self.verb - self.noun


class Role(NamedTuple):
    """The lemma that plays a role, and the position of its word."""

    lemma: str
    position: int


class Roles(NamedTuple):
    """Who does what to whom in the main clause (its first predicate), the same for active and passive."""

    agent: Role
    verb: Role
    patient: Role | None


@dataclass(frozen=True, slots=True)
class Sentence:
    """A grammatical sentence.

    Attributes:
        words: the written words, the full stop included.
        tokens: one a word, with lemma, category and number.
        tree: the derivation that the words spell out.
        main: the agreement of the main clause's first verb.
        agreements: every agreement, by the position of the verb.
        roles: agent, verb and patient of the main clause.
    """

    words: tuple[str, ...]
    tokens: tuple[Token, ...]
    tree: Clause
    main: Agreement
    agreements: tuple[Agreement, ...]
    roles: Roles

    @property
    def text(self) -> str:
        """Return the words with single spaces between them."""
        return " ".join(self.words)


def realise(tree: Clause, lexicon: Lexicon) -> Sentence:
    """Return the sentence of a derivation tree, all of whose lemmas are in the lexicon."""
    writer = _Writer(lexicon)
    subject, predicates = writer.clause(tree)
    writer.write(".")
    tokens = writer.tokens
    agreements = {verb: _agreement(tokens, verb, noun) for verb, noun in writer.heads}

    first = tree.predicates[0]
    finite, other = predicates[0]
    subject_role = Role(tree.subject.noun, subject)
    other_role = Role(first.complement.noun, cast(int, other)) if isinstance(first.complement, NounPhrase) else None
    agent, patient = (other_role, subject_role) if first.passive else (subject_role, other_role)
    return Sentence(
        words=tuple([token.word for token in tokens]),
        tokens=tuple(tokens),
        tree=tree,
        main=agreements[finite],
        agreements=tuple(agreements.values()),
        roles=Roles(cast(Role, agent), Role(first.verb, finite + first.passive), patient),
    )


def reach(subject: NounPhrase, lexicon: Lexicon) -> int:
    """Return the distance of the agreement between this subject and a verb right after it."""
    writer = _Writer(lexicon)
    head = writer.noun_phrase(subject)
    return len(writer.tokens) - head


def _agreement(tokens: list[Token], verb: int, noun: int) -> Agreement:
    plural = cast(bool, tokens[noun].plural)  # a noun has a number
    between = tokens[noun + 1 : verb]
    return Agreement(verb, noun, plural, any(t.category == "noun" and t.plural != plural for t in between))


class _Writer:
    """Appends tokens, and (verb, head noun) positions, as it walks a tree from left to right.

    It meets the verbs in the order of their positions.
    """

    def __init__(self, lexicon: Lexicon) -> None:
        self.lexicon = lexicon
        self.tokens: list[Token] = []
        self.heads: list[tuple[int, int]] = []

    def write(self, lemma: str, plural: bool | None = None) -> None:
        self.tokens.append(self.lexicon.tokens[lemma, plural])

    def noun_phrase(self, phrase: NounPhrase) -> int:
        """Write the phrase and return the position of its noun."""
        if phrase.definite:
            self.write("the")
        else:
            self.write("a", phrase.plural)
        for adjective in phrase.adjectives:
            self.write(adjective)
        self.write(phrase.noun, phrase.plural)
        head = len(self.tokens) - 1
        if isinstance(phrase.modifier, Relative):
            self.relative(phrase.modifier, head)
        elif phrase.modifier is not None:
            self.write(phrase.modifier.preposition)
            self.noun_phrase(phrase.modifier.phrase)
        return head

    def relative(self, relative: Relative, head: int) -> None:
        self.write("that")
        subject = head if relative.subject is None else self.noun_phrase(relative.subject)
        self.predicate(relative.predicate, subject)

    def predicate(self, predicate: Predicate, head: int) -> tuple[int, int | None]:
        """Write the predicate of the noun at `head`; return the positions of its verb and of its complement."""
        finite, plural = len(self.tokens), self.tokens[head].plural
        self.heads.append((finite, head))
        if predicate.passive:
            self.write("be", plural)
            self.tokens.append(self.lexicon.participles[predicate.verb])
            self.write("by")
        else:
            self.write(predicate.verb, plural)
        if isinstance(predicate.complement, Clause):
            self.write("that")
            return finite, self.clause(predicate.complement)[0]
        return finite, None if predicate.complement is None else self.noun_phrase(predicate.complement)

    def clause(self, clause: Clause) -> tuple[int, list[tuple[int, int | None]]]:
        """Write the clause; return the position of its subject's noun, and the result of `predicate` for each."""
        subject = self.noun_phrase(clause.subject)
        predicates = []
        for number, predicate in enumerate(clause.predicates):
            if number:
                self.write("and")
            predicates.append(self.predicate(predicate, subject))
        return subject, predicates
