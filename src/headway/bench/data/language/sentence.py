"""Sentences of the built-in language: the words of a derivation tree, with what the tree knows about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, cast

from headway.bench.data.language.grammar import Clause, NounPhrase, Predicate, Relative
from headway.bench.data.language.lexicon import Lexicon, Token


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
        """verb - noun; 1 when they are neighbours."""
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
        """The words with single spaces between them; `text.split()` gives the words back."""
        return " ".join(self.words)


def realise(tree: Clause, lexicon: Lexicon) -> Sentence:
    """Spell out a derivation tree, all of whose lemmas are in the lexicon."""
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
    """The distance of the agreement between this subject and a verb right after it."""
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
        """Write the predicate of the noun at `head`; return where its verb and its complement stand."""
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
        """Write the clause; return where its subject's noun stands, and what `predicate` returns for each."""
        subject = self.noun_phrase(clause.subject)
        predicates = []
        for number, predicate in enumerate(clause.predicates):
            if number:
                self.write("and")
            predicates.append(self.predicate(predicate, subject))
        return subject, predicates
