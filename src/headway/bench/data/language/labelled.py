"""Labelled examples from the built-in language: acceptability, inference, similarity and span questions.

Labels are known by construction. In acceptability, inference and questions the bag of words is the same, or
as likely, under every label, so that only word order tells them apart. `role_pair` and `role_question` are what
small encoders learn in a hundred steps, `entailment_pair` and `question` what takes them much longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random

from headway.bench.data.language.grammar import Clause, NounPhrase, Predicate, Prepositional, Sentence, realise
from headway.bench.data.language.language import Language, require_int
from headway.bench.data.language.lexicon import pick, shuffled

CORRUPTIONS = ("nouns", "verbs", "order")
LABELS = ("entailment", "neutral", "contradiction")
ROLE_LABELS = ("entailment", "contradiction")
USUAL = 0.75  # how often the same adjective is the agent's in the second sentence of `role_pair`


@dataclass(frozen=True, slots=True)
class Corruption:
    """An ungrammatical reordering: its words, the kind of corruption, and the positions that changed."""

    words: tuple[str, ...]
    kind: str
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EntailmentPair:
    """Two sentences and one of `LABELS`."""

    premise: Sentence
    hypothesis: Sentence
    label: str


@dataclass(frozen=True, slots=True)
class SimilarityPair:
    """Two sentences and how many of their five parts agree, from 0 to 5."""

    first: Sentence
    second: Sentence
    score: int


@dataclass(frozen=True, slots=True)
class SpanQuestion:
    """A question whose answer is `context[start:end]`."""

    context: tuple[str, ...]
    question: tuple[str, ...]
    start: int
    end: int


def corrupt(sentence: Sentence, rng: Random, *, kind: str | None = None) -> Corruption:
    """Reorder a few words so that no reading of the result is grammatical; the bag of words stays.

    Args:
        kind: "nouns" exchanges a verb's head noun, with its determiner, for one of the other number;
            "verbs" exchanges two verbs of one category and different number; "order" puts a noun before its
            determiner or adjective. None takes nouns or verbs where the sentence allows, so that agreement
            alone is broken, and order where all its nouns have one number.
    """
    if kind is not None and kind not in CORRUPTIONS:
        raise ValueError(f"kind: expected None or one of {', '.join(CORRUPTIONS)}, got {kind!r}. Use one of those.")
    swaps = {"nouns": _noun_swaps(sentence), "verbs": _verb_swaps(sentence), "order": _order_swaps(sentence)}
    if kind is None:
        kind = pick(rng, [each for each in ("nouns", "verbs") if swaps[each]] or ["order"])
    if not swaps[kind]:
        raise ValueError(
            f"kind: expected a corruption that {sentence.text!r} allows, got {kind!r}. "
            f"Leave kind out, or pass one of {', '.join(each for each in CORRUPTIONS if swaps[each])}."
        )
    words = list(sentence.words)
    for a, b in pick(rng, swaps[kind]):
        words[a], words[b] = words[b], words[a]
    changed = tuple(at for at, (old, new) in enumerate(zip(sentence.words, words, strict=True)) if old != new)
    return Corruption(tuple(words), kind, changed)


def entailment_pair(language: Language, rng: Random) -> EntailmentPair:
    """Draw a premise, in which an agent acts on a patient near a bystander, and a hypothesis: does it follow?

    The hypothesis names the same act in either voice: entailment keeps agent and patient, contradiction
    exchanges them (by convention an act goes one way), neutral names the bystander and one of the two. Nouns
    share their number and are as likely in every place, so given both bags of words the labels are equally
    likely.
    """
    agent, patient, bystander = _phrases(language, rng, 3)
    verb, label = pick(rng, language.lexicon.transitives), pick(rng, LABELS)
    near = Prepositional(pick(rng, language.lexicon.prepositions), bystander)
    if rng.random() < 0.5:
        premise = _act(language, rng, verb, agent._replace(modifier=near), patient)
    else:
        premise = _act(language, rng, verb, agent, patient._replace(modifier=near))
    hypothesis: Sequence[NounPhrase]
    if label == "entailment":
        hypothesis = (agent, patient)
    elif label == "contradiction":
        hypothesis = (patient, agent)
    else:
        hypothesis = shuffled(rng, (bystander, pick(rng, (agent, patient))))
    return EntailmentPair(premise, _act(language, rng, verb, *hypothesis), label)


def role_pair(language: Language, rng: Random) -> EntailmentPair:
    """Draw two sentences about an agent and a patient: does the second say the same, or exchange the two?

    The simplest inference that is in the order of words, for small budgets. Both sentences are active and of the same
    words; each of the two has always the same adjective, and they keep their places (entailment) or exchange them
    (contradiction). They share their number, so given both bags of words the labels are equally likely.

    The second sentence names the one with the first adjective as the agent more often than not, under either label. So
    the order of the first sentence alone is worth a guess, which is learned at once, and comparing the two afterwards;
    where neither order is the more frequent, small encoders stay at chance for hundreds of steps.
    """
    plural, verb = rng.random() < 0.5, pick(rng, language.lexicon.transitives)
    nouns = shuffled(rng, language.lexicon.nouns)[:2]
    usual, other = (
        NounPhrase(noun, plural, adjectives=(adjective,))
        for noun, adjective in zip(nouns, language.lexicon.adjectives[:2], strict=True)
    )
    said = (usual, other) if rng.random() < USUAL else (other, usual)
    label = pick(rng, ROLE_LABELS)
    roles = said if label == "entailment" else said[::-1]
    premise, hypothesis = (
        realise(Clause(agent, (Predicate(verb, patient),)), language.lexicon) for agent, patient in (roles, said)
    )
    return EntailmentPair(premise, hypothesis, label)


def similarity_pair(language: Language, rng: Random) -> SimilarityPair:
    """Draw two sentences of five parts: the verb, and the noun and adjective of agent and patient.

    The score counts the parts that agree; scores are equally likely. Voice does not count, and exchanging
    agent and patient loses their points though the bag of words may stay.
    """
    lexicon = language.lexicon
    verbs, nouns, adjectives = (
        shuffled(rng, lemmas) for lemmas in (lexicon.transitives, lexicon.nouns, lexicon.adjectives)
    )
    first = {"verb": verbs[0]} | _slots(nouns[:2], adjectives[:2])
    fresh = {"verb": verbs[1]} | _slots(nouns[2:4], adjectives[2:4])
    score = int(rng.random() * 6)
    changed = shuffled(rng, tuple(first))[score:]
    second = first | {slot: fresh[slot] for slot in changed}
    for pair in (("agent", "patient"), ("agent adjective", "patient adjective")):
        if set(pair) <= set(changed) and rng.random() < 0.5:
            second |= {pair[0]: first[pair[1]], pair[1]: first[pair[0]]}
    plural = rng.random() < 0.5

    def sentence(slots: dict[str, str]) -> Sentence:
        agent, patient = (
            NounPhrase(slots[role], plural, adjectives=(slots[f"{role} adjective"],)) for role in ("agent", "patient")
        )
        return _act(language, rng, slots["verb"], agent, patient)

    return SimilarityPair(sentence(first), sentence(second), score)


def question(language: Language, rng: Random, *, fillers: int = 1) -> SpanQuestion:
    """Draw a text in which one acts on another, who does the same to a third: who is the first, or the last?

    The two facts come in either order and voice, among `fillers` sentences without that verb. Given the bags
    of words, first and last are as likely to be the answer. The span is the determiner and the noun.
    """
    require_int("fillers", fillers, 0)
    first, middle, last = _phrases(language, rng, 3)
    verb = pick(rng, language.lexicon.transitives)
    asked_first = rng.random() < 0.5
    answer = first if asked_first else last
    facts = [_act(language, rng, verb, first, middle), _act(language, rng, verb, middle, last)]
    told = facts[0] if asked_first else facts[1]
    sentences = shuffled(rng, facts + [_filler(language, rng, verb) for _ in range(fillers)])
    offset = sum(len(each.words) for each in sentences[: sentences.index(told)])
    noun = offset + [token.lemma for token in told.tokens].index(answer.noun)

    tokens, asked = language.lexicon.tokens, ["who"]
    if asked_first:
        asked.append(tokens[verb, False].word)
    else:
        asked += ["is", language.lexicon.participles[verb].word, "by"]
    asked += ["the", tokens[middle.noun, middle.plural].word, "?"]
    return SpanQuestion(tuple(w for each in sentences for w in each.words), tuple(asked), noun - 1, noun + 1)


def role_question(language: Language, rng: Random, *, fillers: int = 1) -> SpanQuestion:
    """Draw a text in which one acts on another, in either voice: who acts, or who is acted on?

    The simplest question whose answer is in the order of words, for small budgets: one fact among `fillers` sentences
    without its verb. Nouns share their number and are as likely in every place, so given the bags of words either is as
    likely to be the answer. The agent is asked for more often than not, for the reason that `role_pair` gives. The span
    is the determiner and the noun.
    """
    require_int("fillers", fillers, 0)
    agent, patient = _phrases(language, rng, 2)
    verb = pick(rng, language.lexicon.transitives)
    asked_agent = rng.random() < USUAL
    fact = _act(language, rng, verb, agent, patient)
    sentences = shuffled(rng, [fact, *(_filler(language, rng, verb) for _ in range(fillers))])
    offset = sum(len(each.words) for each in sentences[: sentences.index(fact)])
    noun = offset + [token.lemma for token in fact.tokens].index((agent if asked_agent else patient).noun)
    lexicon = language.lexicon
    asked = ["who", *([lexicon.tokens[verb, False].word] if asked_agent else ["is", lexicon.participles[verb].word])]
    return SpanQuestion(tuple(w for each in sentences for w in each.words), (*asked, "?"), noun - 1, noun + 1)


def _phrases(language: Language, rng: Random, count: int) -> list[NounPhrase]:
    """Draw that many definite phrases of different nouns and one number."""
    plural = rng.random() < 0.5
    return [NounPhrase(noun, plural) for noun in shuffled(rng, language.lexicon.nouns)[:count]]


def _act(language: Language, rng: Random, verb: str, agent: NounPhrase, patient: NounPhrase) -> Sentence:
    """Draw a sentence, in either voice, in which the agent acts on the patient."""
    if rng.random() < 0.5:
        return realise(Clause(agent, (Predicate(verb, patient),)), language.lexicon)
    return realise(Clause(patient, (Predicate(verb, agent, passive=True),)), language.lexicon)


def _filler(language: Language, rng: Random, verb: str) -> Sentence:
    while True:
        sentence = language.sample(rng)
        if all(token.lemma != verb for token in sentence.tokens):
            return sentence


def _slots(nouns: list[str], adjectives: list[str]) -> dict[str, str]:
    return dict(zip(("agent", "patient", "agent adjective", "patient adjective"), (*nouns, *adjectives), strict=True))


Swap = tuple[tuple[int, int], ...]  # pairs of positions to exchange


def _noun_swaps(sentence: Sentence) -> list[Swap]:
    tokens = sentence.tokens
    nouns = [at for at, token in enumerate(tokens) if token.category == "noun"]
    heads = {agreement.noun for agreement in sentence.agreements}
    return [
        ((a, b), (_determiner(sentence, a), _determiner(sentence, b)))
        for a, b in combinations(nouns, 2)
        if tokens[a].plural != tokens[b].plural and (a in heads or b in heads)
    ]


def _verb_swaps(sentence: Sentence) -> list[Swap]:
    return [
        ((a.verb, b.verb),)
        for a, b in combinations(sentence.agreements, 2)
        if a.plural != b.plural and sentence.tokens[a.verb].category == sentence.tokens[b.verb].category
    ]


def _order_swaps(sentence: Sentence) -> list[Swap]:
    return [((at - 1, at),) for at, token in enumerate(sentence.tokens) if token.category == "noun"]


def _determiner(sentence: Sentence, noun: int) -> int:
    """Return the position of the determiner of the noun at a position."""
    return next(at for at in range(noun, -1, -1) if sentence.tokens[at].category == "determiner")
