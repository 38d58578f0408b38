"""The built-in language against a chart recogniser and a decoder that share no code with it."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import cache
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.bench.data import Language, corrupt
from headway.bench.data.language.grammar import Clause, NounPhrase, Predicate, Prepositional, Relative
from headway.bench.data.language.labelled import CORRUPTIONS

LANGUAGES = [
    Language(),
    Language(max_depth=4, seed=1, attraction=1.0),
    Language(words="invented", max_depth=3),
]

# "#" is one number throughout a rule, "*" another or the same.
GRAMMAR = """
    S   = NP# VP# . | NP# VP# and VP# .
    NP# = D# N# | D# N# M#
    N#  = noun# | adjective N#
    M#  = preposition NP* | that VP# | that NP* transitive*
    VP# = intransitive# | transitive# NP* | be# participle by NP* | report# that NP* VP*
"""
FUNCTION_WORDS = {"the": ["Ds", "Dp"], "a": ["Ds"], "some": ["Dp"], "is": ["bes"], "are": ["bep"]}


def rules() -> dict[str, set[tuple[str, ...]]]:
    expanded = defaultdict(set)
    for line in GRAMMAR.strip().splitlines():
        left, right = line.split("=")
        for option in right.split("|"):
            for one in "sp":
                for other in "sp":
                    parts = option.replace("#", one).replace("*", other).split()
                    expanded[left.strip().replace("#", one)].add(tuple(parts))
    return expanded


RULES = rules()


def categories(language: Language) -> dict[str, list[str]]:
    """The terminals that each written word may stand for."""
    words = defaultdict(list, {word: list(kinds) for word, kinds in FUNCTION_WORDS.items()})
    for word in (".", "and", "by", "that"):
        words[word].append(word)
    lexicon = language.lexicon
    for noun in lexicon.nouns:
        words[noun].append("nouns")
        words[noun + "s"].append("nounp")
    for kind in ("transitive", "intransitive", "report"):
        for verb in getattr(lexicon, kind + "s"):
            words[verb + "s"].append(kind + "s")
            words[verb].append(kind + "p")
    for verb in lexicon.transitives:
        words[verb.removesuffix("e") + "ed"].append("participle")
    for kind in ("adjective", "preposition"):
        for word in getattr(lexicon, kind + "s"):
            words[word].append(kind)
    return words


CATEGORIES = {language: categories(language) for language in LANGUAGES}


def readings(words: tuple[str, ...], language: Language) -> int:
    """In how many ways the grammar derives the words."""

    @cache
    def ends(symbol: str, start: int) -> Counter[int]:
        if symbol not in RULES:
            fits = start < len(words) and symbol in CATEGORIES[language][words[start]]
            return Counter({start + 1: 1} if fits else {})
        total = Counter()
        for rule in RULES[symbol]:
            partial = Counter({start: 1})
            for part in rule:
                further = Counter()
                for at, ways in partial.items():
                    for end, more in ends(part, at).items():
                        further[end] += ways * more
                partial = further
            total.update(partial)
        return total

    return ends("S", 0)[len(words)]


class Decoder:
    """Reads a translation back into its tree with one stack, and checks that verbs agree with subjects."""

    def __init__(self, language: Language) -> None:
        self.forms = {word: form for form, word in language.counterpart.forms.items()}
        self.lexicon = language.lexicon

    def __call__(self, words: tuple[str, ...]) -> Clause:
        self.stack: list = []  # (kind, value) pairs; a verb's value is (predicate, plural)
        for word in words:
            if word in self.forms:
                self.content(*self.forms[word])
            else:
                self.particle(word)
        ((_, tree),) = self.stack
        return tree

    def pop(self, *kinds: str):
        return self.stack.pop()[1] if self.stack and self.stack[-1][0] in kinds else None

    def content(self, lemma: str, plural: bool, passive: bool) -> None:
        if lemma in self.lexicon.nouns:
            self.stack.append(("noun", (lemma, plural)))
        elif lemma in self.lexicon.adjectives:
            self.stack.append(("adjective", lemma))
        elif lemma in self.lexicon.prepositions:
            self.stack.append(("modifier", (Prepositional(lemma, self.pop("phrase")), None)))
        else:
            self.stack.append(("verb", (Predicate(lemma, self.pop("complement"), passive), plural)))

    def particle(self, word: str) -> None:
        if word in ("lu", "ti"):
            self.stack.append(("phrase", self.noun_phrase(word == "lu")))
        elif word == "na":
            self.stack.append(("subject", self.pop("phrase")))
        elif word in ("mo", "ke"):
            self.stack.append(("complement", self.pop("phrase")))
        elif word == "ve":
            self.stack.append(("and", True))
        elif word == "zu":
            self.stack.append(("modifier", self.relative()))
        else:
            assert word in ("ro", ".")
            self.stack.append(("complement", self.clause()))

    def noun_phrase(self, definite: bool) -> NounPhrase:
        noun, plural = self.pop("noun")
        adjectives = []
        while adjective := self.pop("adjective"):
            adjectives.insert(0, adjective)
        modifier, agrees = self.pop("modifier") or (None, None)
        assert agrees in (None, plural)
        return NounPhrase(noun, plural, definite, tuple(adjectives), modifier)

    def relative(self) -> tuple[Relative, bool | None]:
        predicate, plural = self.pop("verb")
        if predicate.verb in self.lexicon.transitives and predicate.complement is None:
            subject = self.pop("subject")
            assert subject.plural == plural
            return Relative(predicate, subject), None
        return Relative(predicate), plural

    def clause(self) -> Clause:
        verbs = [self.pop("verb")]
        while self.pop("and"):
            verbs.insert(0, self.pop("verb"))
        subject = self.pop("subject")
        assert {plural for _, plural in verbs} == {subject.plural}
        return Clause(subject, tuple(predicate for predicate, _ in verbs))


languages, seeds = st.sampled_from(LANGUAGES), st.integers(0, 10**9)


@given(languages, seeds)
def test_every_sentence_has_exactly_one_reading(language, seed):
    for sentence in language.sentences(5, seed=seed):
        assert readings(sentence.words, language) == 1


@pytest.mark.parametrize("kind", [None, *CORRUPTIONS])
@given(language=languages, seed=seeds)
def test_every_corruption_keeps_the_bag_and_has_no_reading(kind, language, seed):
    rng = Random(seed)
    for sentence in language.sentences(5, seed=seed):
        try:
            broken = corrupt(sentence, rng, kind=kind)
        except ValueError:
            assert kind in ("nouns", "verbs")  # not every sentence has two that differ
            continue
        assert sorted(broken.words) == sorted(sentence.words)
        assert broken.positions == tuple(i for i, word in enumerate(sentence.words) if broken.words[i] != word)
        assert readings(broken.words, language) == 0


@given(languages, seeds)
def test_the_other_verb_form_is_always_wrong(language, seed):
    for sentence in language.sentences(3, seed=seed):
        for agreement in sentence.agreements:
            words = list(sentence.words)
            words[agreement.verb] = language.other_number(words[agreement.verb])
            assert readings(tuple(words), language) == 0


@given(languages, seeds)
def test_translation_reads_back_to_the_same_tree(language, seed):
    decode = Decoder(language)
    for sentence in language.sentences(5, seed=seed):
        words = language.verb_final(sentence)
        assert set(words) <= set(language.counterpart_vocabulary)
        assert decode(words) == sentence.tree


@given(languages, seeds)
def test_agreement_positions_are_right(language, seed):
    for sentence in language.sentences(5, seed=seed):
        assert sentence.main in sentence.agreements
        assert [each.verb for each in sentence.agreements] == sorted({each.verb for each in sentence.agreements})
        finite = [at for at, token in enumerate(sentence.tokens) if is_finite(token)]
        assert [each.verb for each in sentence.agreements] == finite
        for each in sentence.agreements:
            assert sentence.tokens[each.noun].category == "noun"
            assert sentence.tokens[each.noun].plural == sentence.tokens[each.verb].plural == each.plural
            between = sentence.tokens[each.noun + 1 : each.verb]
            others = [token for token in between if token.category == "noun" and token.plural != each.plural]
            assert each.attracted == bool(others)


def is_finite(token) -> bool:
    return token.category in ("transitive", "intransitive", "report", "auxiliary")


@settings(max_examples=30)
@given(seeds, st.integers(1, 8), st.integers(0, 8))
def test_controls_hold(seed, least, more):
    controls = {"min_distance": max(least, 4), "max_distance": max(least, 4) + more, "max_words": 30}
    for sentence in LANGUAGES[0].sentences(5, seed=seed, **controls):
        assert controls["min_distance"] <= sentence.main.distance <= controls["max_distance"]
        assert len(sentence.words) <= 30
