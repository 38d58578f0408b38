"""Labelled examples: labels are right, balanced, and out of reach of a bag of words."""

from __future__ import annotations

from collections import Counter, defaultdict
from random import Random

import pytest

from headway.bench.data import Language, Sentence, corrupt, entailment_pair, question, similarity_pair
from headway.bench.data.language.grammar import Clause, NounPhrase, Predicate, realise
from headway.bench.data.language.labelled import role_pair, role_question
from headway.bench.data.language.lexicon import PREPOSITIONS

LANGUAGE = Language()
BE = ("is", "are")
SMALL = Language(nouns=4, verbs=2, intransitives=1, adjectives=4)


def meaning(sentence: Sentence) -> tuple[str, str, str]:
    """(verb, agent, patient), read off the words: X verbs Y, or Y is verbed by X."""
    nouns = [token.lemma for token in sentence.tokens if token.category == "noun"]
    verb = next(token for token in sentence.tokens if token.category in ("transitive", "participle"))
    prepositions = [at for at, word in enumerate(sentence.words) if word in PREPOSITIONS]
    if prepositions:  # the noun after the preposition stands by
        bystander = next(t.lemma for t in sentence.tokens[prepositions[0] :] if t.category == "noun")
        nouns.remove(bystander)
    return (verb.lemma, *(nouns if verb.category == "transitive" else reversed(nouns)))


def held_out(examples: list[tuple[object, str]]) -> float:
    """Accuracy, on one half, of the answer most frequent for the same key in the other half."""
    seen: dict[object, Counter] = defaultdict(Counter)
    for key, answer in examples[::2]:
        seen[key][answer] += 1
    tested = [(key, answer) for key, answer in examples[1::2] if key in seen]
    assert len(tested) > 0.9 * len(examples[1::2])
    return sum(seen[key].most_common(1)[0][0] == answer for key, answer in tested) / len(tested)


def bag(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(word for word in words if word not in PREPOSITIONS))


def example(dogs: bool, cats: bool) -> Sentence:
    whole = Language(nouns=60, verbs=55)
    return realise(Clause(NounPhrase("dog", dogs), (Predicate("chase", NounPhrase("cat", cats)),)), whole.lexicon)


def test_corrupt_by_hand():
    broken = corrupt(example(True, False), Random(0))
    assert (broken.words, broken.kind, broken.positions) == (
        ("the", "cat", "chase", "the", "dogs", "."),
        "nouns",
        (1, 4),
    )
    assert corrupt(example(True, True), Random(0)).kind == "order"
    assert corrupt(example(True, False), Random(0), kind="order").words[:2] in (
        ("dogs", "the"),
        ("the", "dogs"),
    )


def test_corrupt_prefers_to_break_agreement_alone():
    rng, kinds = Random(0), Counter()
    for sentence in LANGUAGE.sentences(2000):
        broken = corrupt(sentence, rng)
        kinds[broken.kind] += 1
        numbers = {token.plural for token in sentence.tokens if token.category == "noun"}
        assert (broken.kind == "order") == (len(numbers) == 1)
    assert kinds["nouns"] > kinds["order"] > 0 < kinds["verbs"]


def test_corrupt_names_the_kinds():
    with pytest.raises(ValueError, match="kind: expected None or one of nouns, verbs, order, got 'letters'"):
        corrupt(example(True, False), Random(0), kind="letters")
    with pytest.raises(ValueError, match=r"chase the cats \.' allows, got 'nouns'\. .* pass one of order\."):
        corrupt(example(True, True), Random(0), kind="nouns")


def test_entailment_labels_follow_from_the_words():
    rng, labels = Random(0), Counter()
    for _ in range(3000):
        pair = entailment_pair(LANGUAGE, rng)
        verb, agent, patient = meaning(pair.premise)
        expected = {(verb, agent, patient): "entailment", (verb, patient, agent): "contradiction"}
        assert expected.get(meaning(pair.hypothesis), "neutral") == pair.label
        assert set(meaning(pair.hypothesis)) <= {token.lemma for token in pair.premise.tokens}
        labels[pair.label] += 1
    assert all(abs(count / 3000 - 1 / 3) < 0.04 for count in labels.values())


def test_entailment_is_out_of_reach_of_bags():
    rng = Random(1)
    pairs = [entailment_pair(SMALL, rng) for _ in range(8000)]
    bags = [((bag(pair.premise.words), bag(pair.hypothesis.words)), pair.label) for pair in pairs]
    assert abs(held_out(bags) - 1 / 3) < 0.03


def adjectives(sentence: Sentence) -> list[str]:
    return [token.lemma for token in sentence.tokens if token.category == "adjective"]


def test_roles_follow_from_the_words():
    rng, labels, usual = Random(0), Counter(), 0
    for _ in range(3000):
        pair = role_pair(LANGUAGE, rng)
        verb, agent, patient = meaning(pair.premise)
        expected = {(verb, agent, patient): "entailment", (verb, patient, agent): "contradiction"}
        assert expected[meaning(pair.hypothesis)] == pair.label
        assert bag(pair.premise.words) == bag(pair.hypothesis.words)
        usual += adjectives(pair.hypothesis)[0] == LANGUAGE.lexicon.adjectives[0]
        assert sorted(adjectives(pair.premise)) == sorted(LANGUAGE.lexicon.adjectives[:2])
        labels[pair.label] += 1
    assert abs(labels["entailment"] / 3000 - 1 / 2) < 0.04
    assert abs(usual / 3000 - 3 / 4) < 0.04


def test_roles_are_out_of_reach_of_bags():
    rng = Random(1)
    pairs = [role_pair(SMALL, rng) for _ in range(8000)]
    bags = [((bag(pair.premise.words), bag(pair.hypothesis.words)), pair.label) for pair in pairs]
    assert abs(held_out(bags) - 1 / 2) < 0.03


def test_roles_take_both_sentences():
    """The order of the second alone tells nothing, that of the first as much as the usual agent is usual."""
    rng = Random(1)
    pairs = [role_pair(SMALL, rng) for _ in range(8000)]
    assert abs(held_out([(pair.hypothesis.words, pair.label) for pair in pairs]) - 1 / 2) < 0.03
    assert abs(held_out([(pair.premise.words, pair.label) for pair in pairs]) - 3 / 4) < 0.03


def test_similarity_counts_parts_that_agree():
    def parts(sentence: Sentence) -> dict[str, str]:
        verb, agent, patient = meaning(sentence)
        dress = {
            sentence.words[sentence.words.index(t.word) - 1]: t.lemma for t in sentence.tokens if t.category == "noun"
        }
        worn = {noun: adjective for adjective, noun in dress.items()}
        return {
            "verb": verb,
            "agent": agent,
            "patient": patient,
            "agent's": worn[agent],
            "patient's": worn[patient],
        }

    rng, scores, same_bag = Random(0), Counter(), Counter()
    for _ in range(3000):
        pair = similarity_pair(LANGUAGE, rng)
        first, second = parts(pair.first), parts(pair.second)
        assert sum(first[part] == second[part] for part in first) == pair.score
        scores[pair.score] += 1
        same_bag[pair.score] += sorted(first.values()) == sorted(second.values())
    assert sorted(scores) == [0, 1, 2, 3, 4, 5]
    assert all(abs(count / 3000 - 1 / 6) < 0.03 for count in scores.values())
    assert all(same_bag[score] > 0 for score in (1, 3, 5)), "one bag of words, different scores"


@pytest.mark.parametrize("fillers", [0, 3])
def test_question_has_one_answer_among_its_facts(fillers):
    rng = Random(0)
    for _ in range(500):
        asked = question(LANGUAGE, rng, fillers=fillers)
        text = " ".join(asked.context)
        assert asked.context.count(".") == 2 + fillers
        answer, known = " ".join(asked.context[asked.start : asked.end]), " ".join(asked.question[-3:-1])
        passive = asked.question[1] == "is"
        participle = asked.question[2] if passive else LANGUAGE.lexicon.participles[verb_of(asked.question[1])].word
        verb = next(v for v, token in LANGUAGE.lexicon.participles.items() if token.word == participle)
        agent, patient = (known, answer) if passive else (answer, known)
        told = {f"{agent} {LANGUAGE.lexicon.tokens[verb, plural].word} {patient} ." for plural in (False, True)} | {
            f"{patient} {be} {participle} by {agent} ." for be in ("is", "are")
        }
        assert sum(sentence in text for sentence in told) == 1


def verb_of(word: str) -> str:
    return next(token.lemma for token in LANGUAGE.lexicon.tokens.values() if token.word == word)


def test_question_is_out_of_reach_of_bags():
    rng = Random(1)
    asked = [question(SMALL, rng, fillers=0) for _ in range(8000)]
    bags = [((bag(each.context), each.question), each.context[each.start : each.end]) for each in asked]
    assert abs(held_out(bags) - 1 / 2) < 0.03


@pytest.mark.parametrize("make", [question, role_question])
def test_question_rejects_negative_fillers(make):
    with pytest.raises(ValueError, match="fillers: expected an integer of at least 0, got -1"):
        make(LANGUAGE, Random(0), fillers=-1)


@pytest.mark.parametrize("fillers", [0, 2])
def test_role_question_has_one_answer(fillers):
    rng, agents = Random(0), 0
    for _ in range(1000):
        asked = role_question(LANGUAGE, rng, fillers=fillers)
        text, answer = " ".join(asked.context), " ".join(asked.context[asked.start : asked.end])
        assert asked.context.count(".") == 1 + fillers
        assert asked.question[0] == "who" and asked.question[-1] == "?"
        of_agent = asked.question[1] != "is"
        verb = verb_of(asked.question[1]) if of_agent else participle_of(asked.question[2])
        forms = [LANGUAGE.lexicon.tokens[verb, plural].word for plural in (False, True)]
        participle = LANGUAGE.lexicon.participles[verb].word
        if of_agent:
            told = [*(f"{answer} {form} the" for form in forms), f" {participle} by {answer} ."]
        else:
            told = [*(f" {form} {answer} ." for form in forms), *(f"{answer} {be} {participle} by" for be in BE)]
        assert sum(each in text for each in told) == 1, (text, asked.question, answer)
        agents += of_agent
    assert abs(agents / 1000 - 3 / 4) < 0.05


def participle_of(word: str) -> str:
    return next(verb for verb, token in LANGUAGE.lexicon.participles.items() if token.word == word)


def test_role_question_is_out_of_reach_of_bags():
    rng = Random(1)
    asked = [role_question(SMALL, rng, fillers=0) for _ in range(8000)]
    bags = [((bag(each.context), each.question), each.context[each.start : each.end]) for each in asked]
    assert abs(held_out(bags) - 1 / 2) < 0.03


@pytest.mark.parametrize("make", [entailment_pair, role_pair, similarity_pair, question, role_question])
def test_same_generator_same_example(make):
    assert make(LANGUAGE, Random(5)) == make(LANGUAGE, Random(5)) != make(LANGUAGE, Random(6))
