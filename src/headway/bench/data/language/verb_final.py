"""The counterpart of the built-in language: its own words, verbs last, and modifiers before their noun.

    NounPhrase  -> Modifier? Adjective* Noun Determiner
    Modifier    -> NounPhrase Postposition                    "near a cat"          a cat near
                 | Predicate REL                              "that chase a cat"    a cat OBJ chase REL
                 | NounPhrase SUBJ Transitive REL             "that a cat chases"   a cat SUBJ chases REL
    Clause      -> NounPhrase SUBJ Predicate (AND Predicate)?
    Predicate   -> Intransitive | NounPhrase OBJ Transitive | NounPhrase AGENT Passive | Clause QUOTE Report

Nouns show number, verbs show the number of their subject and the passive. Every marker follows what it marks,
as in reverse Polish notation, so the words determine the tree and two trees never share a translation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from random import Random

from headway.bench.data.language.grammar import Clause, NounPhrase, Predicate, Relative
from headway.bench.data.language.lexicon import Lexicon, invent

Forms = dict[tuple[str, bool, bool], str]  # of (lemma, plural, passive)
PARTICLES = {
    "the": "lu",
    "a": "ti",
    "SUBJ": "na",
    "OBJ": "mo",
    "AGENT": "ke",
    "REL": "zu",
    "QUOTE": "ro",
    "AND": "ve",
    ".": ".",
}


@dataclass(frozen=True, slots=True, eq=False)
class Counterpart:
    """The counterpart's words, one a lemma, number and voice; both are False where they do not show."""

    forms: Forms

    def words(self) -> set[str]:
        """Return every written form, punctuation included."""
        return {*self.forms.values(), *PARTICLES.values()}


def build_counterpart(lexicon: Lexicon, rng: Random) -> Counterpart:
    """Invent one stem for each content lemma, sharing no written form with the lexicon."""
    taken = lexicon.words() | set(PARTICLES.values())
    endings = {
        lexicon.nouns: {(False, False): "", (True, False): "ni"},
        lexicon.transitives: {
            (False, False): "ta",
            (True, False): "tak",
            (False, True): "ra",
            (True, True): "rak",
        },
        lexicon.intransitives: {(False, False): "ta", (True, False): "tak"},
        lexicon.reports: {(False, False): "ta", (True, False): "tak"},
        lexicon.adjectives: {(False, False): "n"},
        lexicon.prepositions: {(False, False): "s"},
    }
    forms: Forms = {}
    for lemmas, suffixes in endings.items():
        for lemma in lemmas:
            stem = invent(rng, taken, partial(_spelt, list(suffixes.values())), ("",))
            forms |= {(lemma, plural, passive): stem + suffix for (plural, passive), suffix in suffixes.items()}
    return Counterpart(forms)


def _spelt(suffixes: list[str], stem: str) -> list[str]:
    return [stem + suffix for suffix in suffixes]


def translate(tree: Clause, counterpart: Counterpart) -> tuple[str, ...]:
    """Return the words of a derivation tree in the counterpart language, the full stop included."""
    return (*_clause(tree, counterpart.forms), PARTICLES["."])


def _clause(clause: Clause, forms: Forms) -> list[str]:
    words = [*_noun_phrase(clause.subject, forms), PARTICLES["SUBJ"]]
    for number, predicate in enumerate(clause.predicates):
        words += [PARTICLES["AND"]] if number else []
        words += _predicate(predicate, clause.subject.plural, forms)
    return words


def _predicate(predicate: Predicate, plural: bool, forms: Forms) -> list[str]:
    verb = forms[predicate.verb, plural, predicate.passive]
    if predicate.complement is None:
        return [verb]
    if isinstance(predicate.complement, Clause):
        return [*_clause(predicate.complement, forms), PARTICLES["QUOTE"], verb]
    return [
        *_noun_phrase(predicate.complement, forms),
        PARTICLES["AGENT" if predicate.passive else "OBJ"],
        verb,
    ]


def _noun_phrase(phrase: NounPhrase, forms: Forms) -> list[str]:
    words = _modifier(phrase, forms)
    words += [forms[adjective, False, False] for adjective in phrase.adjectives]
    return [*words, forms[phrase.noun, phrase.plural, False], PARTICLES["the" if phrase.definite else "a"]]


def _modifier(phrase: NounPhrase, forms: Forms) -> list[str]:
    modifier = phrase.modifier
    if modifier is None:
        return []
    if not isinstance(modifier, Relative):
        return [*_noun_phrase(modifier.phrase, forms), forms[modifier.preposition, False, False]]
    if modifier.subject is None:
        return [*_predicate(modifier.predicate, phrase.plural, forms), PARTICLES["REL"]]
    subject = [*_noun_phrase(modifier.subject, forms), PARTICLES["SUBJ"]]
    return [*subject, *_predicate(modifier.predicate, modifier.subject.plural, forms), PARTICLES["REL"]]
