"""The built-in language: its words, its sentences, how they are drawn, and its errors."""

from __future__ import annotations

import pickle
import subprocess
import sys
from itertools import islice

import pytest

from headway.bench.data import Language
from headway.bench.data.language.grammar import (
    Agreement,
    Clause,
    NounPhrase,
    Predicate,
    Prepositional,
    Relative,
    realise,
)
from headway.bench.data.language.lexicon import ADJECTIVES, INTRANSITIVES, NOUNS, TRANSITIVES
from headway.bench.data.language.verb_final import PARTICLES

LANGUAGE = Language()
WHOLE = Language(nouns=len(NOUNS), verbs=len(TRANSITIVES), intransitives=len(INTRANSITIVES), adjectives=len(ADJECTIVES))
DOGS, CAT, BIRD = NounPhrase("dog", True), NounPhrase("cat", False, definite=False), NounPhrase("bird", False)
NEAR = Clause(
    DOGS._replace(adjectives=("big",), modifier=Prepositional("near", CAT)),
    (Predicate("chase", BIRD), Predicate("sleep")),
)
SUBJECT_RELATIVE = Clause(DOGS._replace(modifier=Relative(Predicate("chase", CAT, True))), (Predicate("sleep"),))
OBJECT_RELATIVE = Clause(BIRD._replace(modifier=Relative(Predicate("chase"), DOGS)), (Predicate("fear", CAT, True),))
REPORT = Clause(DOGS, (Predicate("think", Clause(CAT, (Predicate("sleep"),))),))

FUNCTION_WORDS = {"the", "a", "some", "is", "are", "and", "by", "that", "who", ".", "?"}
GOLDEN = [
    "some nervous gardeners that mock a robot behind the spiders tremble and fear the lions .",
    "the queens claim that the parrots behind the bear dance .",
]


@pytest.mark.parametrize(
    "language",
    [LANGUAGE, WHOLE, Language(words="invented", seed=3), Language(nouns=300, verbs=200, intransitives=90)],
)
def test_every_form_belongs_to_one_lemma(language):
    lexicon = language.lexicon
    verbs = (*lexicon.transitives, *lexicon.intransitives, *lexicon.reports)
    forms = 2 * len(lexicon.nouns) + 2 * len(verbs) + len(lexicon.transitives)
    forms += len(lexicon.adjectives) + len(lexicon.prepositions) + len(FUNCTION_WORDS)
    assert len(language.vocabulary) == len(set(language.vocabulary)) == forms


def test_vocabulary_is_small_sorted_and_covers_what_is_written():
    assert 150 <= len(LANGUAGE.vocabulary) <= 400
    assert list(LANGUAGE.vocabulary) == sorted(LANGUAGE.vocabulary)
    written = {word for sentence in LANGUAGE.sentences(5000) for word in sentence.words}
    assert written == set(LANGUAGE.vocabulary) - {"who", "?"}


def test_no_english_noun_or_adjective_wants_an():
    assert not [word for word in (*NOUNS, *ADJECTIVES) if word[0] in "aeiou"]


def test_counterpart_shares_only_the_full_stop():
    assert set(LANGUAGE.counterpart_vocabulary) & set(LANGUAGE.vocabulary) == {"."}
    forms = LANGUAGE.counterpart.forms
    assert (
        len(LANGUAGE.counterpart_vocabulary) == len(set(forms.values())) + len(PARTICLES) == len(forms) + len(PARTICLES)
    )


def test_invented_language_is_parallel_and_shares_no_content_word():
    other = Language(words="invented")
    pairs = {}
    for ours, theirs in zip(LANGUAGE.sentences(2000), other.sentences(2000), strict=True):
        assert [token.category for token in ours.tokens] == [token.category for token in theirs.tokens]
        assert all(pairs.setdefault(a, b) == b for a, b in zip(ours.words, theirs.words, strict=True))
    assert len(set(pairs.values())) == len(pairs)
    shared = {word for word, twin in pairs.items() if word == twin}
    assert shared == set(LANGUAGE.vocabulary) & set(other.vocabulary) - {"who", "?"}
    assert shared == FUNCTION_WORDS - {"who", "?"} | set(LANGUAGE.lexicon.prepositions)


def test_seed_chooses_the_words():
    assert set(Language(seed=1).lexicon.nouns) != set(LANGUAGE.lexicon.nouns)


@pytest.mark.parametrize(
    ("word", "other"),
    [("dogs", "dog"), ("chase", "chases"), ("sleeps", "sleep"), ("is", "are"), ("some", "a")],
)
def test_other_number(word, other):
    assert WHOLE.other_number(word) == other
    assert WHOLE.other_number(other) == word


@pytest.mark.parametrize("word", ["the", "chased", "near", "zebra"])
def test_other_number_needs_a_word_that_shows_number(word):
    with pytest.raises(ValueError, match=f"word: expected a word of this language that shows number, got '{word}'"):
        WHOLE.other_number(word)


@pytest.mark.parametrize(
    ("tree", "text", "gloss"),
    [
        (
            NEAR,
            "the big dogs near a cat chase the bird and sleep .",
            "cat a near big dog+ the SUBJ bird the OBJ chase+ AND sleep+ .",
        ),
        (
            SUBJECT_RELATIVE,
            "the dogs that are chased by a cat sleep .",
            "cat a AGENT chase+passive REL dog+ the SUBJ sleep+ .",
        ),
        (
            OBJECT_RELATIVE,
            "the bird that the dogs chase is feared by a cat .",
            "dog+ the SUBJ chase+ REL bird the SUBJ cat a AGENT fearpassive .",
        ),
        (REPORT, "the dogs think that a cat sleeps .", "dog+ the SUBJ cat a SUBJ sleep QUOTE think+ ."),
    ],
)
def test_words_and_translation_by_hand(tree, text, gloss):
    sentence = realise(tree, WHOLE.lexicon)
    assert sentence.text == text
    meaning = {word: particle for particle, word in PARTICLES.items()}
    for (lemma, plural, passive), word in WHOLE.counterpart.forms.items():
        meaning[word] = lemma + "+" * plural + "passive" * passive
    assert " ".join(meaning[word] for word in WHOLE.verb_final(sentence)) == gloss


def test_agreements_by_hand():
    near = realise(NEAR, WHOLE.lexicon)
    assert near.main == Agreement(verb=6, noun=2, plural=True, attracted=True)
    assert near.main.distance == 4
    assert near.agreements == (near.main, Agreement(verb=10, noun=2, plural=True, attracted=True))
    passive = realise(OBJECT_RELATIVE, WHOLE.lexicon)
    assert passive.agreements == (Agreement(5, 4, True, False), Agreement(6, 1, False, True))
    assert passive.main == passive.agreements[1]
    assert realise(REPORT, WHOLE.lexicon).main == Agreement(2, 1, True, False)


def test_roles_by_hand():
    assert realise(NEAR, WHOLE.lexicon).roles == (("dog", 2), ("chase", 6), ("bird", 8))
    assert realise(OBJECT_RELATIVE, WHOLE.lexicon).roles == (("cat", 10), ("fear", 7), ("bird", 1))
    assert realise(REPORT, WHOLE.lexicon).roles == (("dog", 1), ("think", 2), None)


def test_same_seeds_same_sentences_everywhere():
    assert [sentence.text for sentence in LANGUAGE.sentences(2)] == GOLDEN


def test_streams_are_prefixes_and_seeds_differ():
    ten = [sentence.words for sentence in LANGUAGE.sentences(10, seed=7)]
    assert [sentence.words for sentence in islice(LANGUAGE.sentences(10**12, seed=7), 10)] == ten
    assert [sentence.words for sentence in LANGUAGE.sentences(10, seed=8)] != ten


@pytest.mark.parametrize(("least", "most"), [(1, 1), (3, 6), (10, None), (12, 14), (1, 4)])
def test_distance_bounds_hold_and_are_reached(least, most):
    distances = {sentence.main.distance for sentence in LANGUAGE.sentences(300, min_distance=least, max_distance=most)}
    assert min(distances) == least
    assert max(distances) == most if most else max(distances) > least


def test_deeper_language_reaches_further():
    longest = {depth: max(s.main.distance for s in Language(max_depth=depth).sentences(1000)) for depth in (0, 1, 2, 4)}
    assert longest[0] == 1 < longest[1] < longest[2] < longest[4]
    assert all(s.main.distance >= 25 for s in Language(max_depth=5).sentences(20, min_distance=25))


def test_max_words_holds():
    lengths = {len(sentence.words) for sentence in LANGUAGE.sentences(300, max_words=8)}
    assert max(lengths) == 8


@pytest.mark.parametrize("entities", [2, 5, 6])
def test_documents_share_entities_and_introduce_them(entities):
    for document in LANGUAGE.documents(50, sentences=6, entities=entities):
        assert len(document) == 6
        numbers, known = {}, set()
        for sentence in document:
            named = set()
            for at, token in enumerate(sentence.tokens):
                if token.category == "noun":
                    assert numbers.setdefault(token.lemma, token.plural) == token.plural
                    determiner = next(t for t in reversed(sentence.tokens[:at]) if t.category == "determiner")
                    assert (determiner.word == "the") == (token.lemma in known)
                    named.add(token.lemma)
            known |= named
        assert len(numbers) <= entities


def test_documents_are_reproducible_and_differ():
    first, again, other = (list(LANGUAGE.documents(5, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert len({document[0].words for document in first}) == 5


def test_sentence_and_language_survive_pickling():
    sentence = next(LANGUAGE.sentences(1))
    assert pickle.loads(pickle.dumps(sentence)) == sentence
    assert next(pickle.loads(pickle.dumps(LANGUAGE)).sentences(1)) == sentence


def test_import_needs_no_torch():
    check = "import sys, headway.bench.data.language.labelled; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"nouns": 3}, ValueError, "nouns: expected an integer from 4 to 10000, got 3."),
        ({"verbs": 1.5}, TypeError, "verbs: expected an integer from 2 to 10000, got 1.5."),
        ({"max_depth": -1}, ValueError, "max_depth: expected an integer from 0 to 30, got -1."),
        ({"seed": True}, TypeError, "seed: expected an integer of at least 0, got True."),
        ({"attraction": 1.5}, ValueError, "attraction: expected a chance from 0 to 1, got 1.5."),
        ({"attraction": "much"}, TypeError, "attraction: expected a number, got 'much'."),
        ({"words": "latin"}, ValueError, "words: expected one of english, invented, got 'latin'."),
    ],
)
def test_language_says_what_is_wrong(arguments, error, message):
    with pytest.raises(error) as caught:
        Language(**arguments)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"count": 0}, ValueError, "count: expected an integer of at least 1, got 0."),
        ({"min_distance": 0}, ValueError, "min_distance: expected an integer of at least 1, got 0."),
        (
            {"min_distance": 5, "max_distance": 4},
            ValueError,
            "max_distance: expected at least min_distance=5, got 4. Raise max_distance or lower",
        ),
        ({"max_words": 2}, ValueError, "max_words: expected an integer of at least 4, got 2."),
        (
            {"distance": 4},
            TypeError,
            "distance: expected a control among min_distance, max_distance, max_words, min_longest, max_longest, "
            "got 'distance'.",
        ),
    ],
)
@pytest.mark.parametrize("method", ["sentences", "documents"])
def test_drawing_says_what_is_wrong_when_called(method, arguments, error, message):
    with pytest.raises(error) as caught:
        getattr(LANGUAGE, method)(**({"count": 1} | arguments))
    assert str(caught.value).startswith(message)


def test_documents_cannot_have_more_entities_than_nouns():
    with pytest.raises(ValueError, match="entities: expected an integer from 2 to 48, got 49"):
        LANGUAGE.documents(1, entities=49)


def test_distance_that_no_sentence_has():
    with pytest.raises(ValueError, match="controls: expected bounds that sentences with max_depth=0 can meet"):
        next(Language(max_depth=0).sentences(1, min_distance=2))
