"""Answers are compared as the official evaluators of SQuAD v1.1 and MLQA do.

The oracles below are written from what those evaluators do, step by step over characters, and share no code with ours.
"""

from __future__ import annotations

import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.bench.data.transfer.spec import Answer, Question
from headway.bench.tasks.finetune.metrics import (
    answer_scores,
    exact_match,
    normal_mlqa,
    normal_squad,
    normalisation,
    word_f1,
)

ASCII_PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
ARTICLES = {
    "en": "a an the",
    "es": "un una unos unas el la los las",
    "vi": "của là cái chiếc những",
    "de": "ein eine einen einem eines einer der die das den dem des",
}


def without_words(text, words):
    """Drop whole words; a word is a run of letters, digits, marks that count as such, and underscores."""
    out, word = [], ""
    for character in text + "\0":
        if character.isalnum() or character == "_":
            word += character
        else:
            out.append(" " if word in words else word)
            word = ""
            out.append(character)
    return "".join(out[:-1])


def oracle(text, language=None):
    """The words of a normalised answer; without a language as SQuAD."""
    text = text.lower()
    if language is None:
        text = "".join(c for c in text if c not in ASCII_PUNCTUATION)
        return without_words(text, ARTICLES["en"].split()).split()
    text = "".join(c for c in text if c not in ASCII_PUNCTUATION and unicodedata.category(c)[0] != "P")
    if language in ARTICLES:
        text = without_words(text, ARTICLES[language].split())
    if language == "ar":
        text = text.replace("\u0627\u0644", " ")
    if language != "zh":
        return text.split()
    words, run = [], ""
    for character in text:
        if 0x4E00 <= ord(character) <= 0x9FA5:
            words += [*run.split(), character]
            run = ""
        else:
            run += character
    return words + run.split()


def oracle_f1(said, right):
    common, left = 0, list(right)
    for word in said:
        if word in left:
            left.remove(word)
            common += 1
    if common == 0:
        return 0.0
    precision, recall = common / len(said), common / len(right)
    return 2 * precision * recall / (precision + recall)


CASES = {  # text -> its words
    (None, "The  Cat."): ["cat"],
    (None, "an apple, a day"): ["apple", "day"],
    (None, "theatre A.B. atlas"): ["theatre", "ab", "atlas"],
    (None, "the"): [],
    (None, "“quoted” – dash"): ["“quoted”", "–", "dash"],  # SQuAD knows ASCII punctuation only
    ("en", "“The cat” – dash"): ["cat", "dash"],
    ("de", "Die Katze und der Hund"): ["katze", "und", "hund"],
    ("de", "Deren Dienst"): ["deren", "dienst"],
    ("es", "¿El gato y las lunas?"): ["gato", "y", "lunas"],
    ("vi", "Cái ghế của những người"): ["ghế", "người"],
    ("hi", "यह एक बिल्ली है।"): ["यह", "एक", "बिल्ली", "है"],
    ("ar", "القط"): ["قط"],
    ("zh", "北京大学2019年 Beijing University。"): ["北", "京", "大", "学", "2019", "年", "beijing", "university"],
    ("zh", "1,000人"): ["1000", "人"],
}


@pytest.mark.parametrize("case", CASES)
def test_normalisation_by_hand(case):
    language, text = case
    normal = normal_squad(text) if language is None else normal_mlqa(text, language)
    assert normal.split() == CASES[case] == oracle(text, language)


LETTERS = st.text(st.sampled_from(list("aAnthe dDßer ilos.,-_'¿“”。，、！२।العقط北京12\t\u00a0")), max_size=24)


@given(text=LETTERS, language=st.sampled_from([None, "en", "de", "es", "vi", "hi", "ar", "zh"]))
def test_normalisation_agrees_with_the_oracle(text, language):
    normal = normal_squad(text) if language is None else normal_mlqa(text, language)
    assert normal.split() == oracle(text, language)


@given(said=LETTERS, right=LETTERS)
def test_f1_and_exact_match_agree_with_the_oracle(said, right):
    assert word_f1(said, right, normal_squad) == pytest.approx(oracle_f1(oracle(said), oracle(right)))
    assert exact_match(said, right, normal_squad) == (oracle(said) == oracle(right))


def test_repeated_words_count_as_often_as_both_have_them():
    assert word_f1("the cat cat cat", "cat cat dog", normal_squad) == pytest.approx(2 * (2 / 3) * (2 / 3) / (4 / 3))


def test_empty_answers_match_exactly_but_have_no_f1():
    """The evaluator of SQuAD v1.1: without a common word F1 is 0, though nothing differs."""
    assert exact_match("", "the", normal_squad) == 1.0
    assert word_f1("", "the", normal_squad) == 0.0


def question(name, *answers):
    return Question(name, "?", " ".join(answers), tuple(Answer(text, 0) for text in answers))


def test_the_best_answer_counts_and_a_missing_prediction_is_wrong():
    questions = [question("1", "a red cat", "cat"), question("2", "dog"), question("3", "sun")]
    found = answer_scores({"1": "Cat.", "2": "dog house", "unknown": "x"}, questions)
    assert found == pytest.approx({"exact_match": 1 / 3, "f1": (1 + 2 / 3 + 0) / 3})


def test_mlqa_compares_in_the_language_of_the_text():
    normal = normalisation("mlqa", "zh-en")
    assert word_f1("北京", "北京市", normal) == pytest.approx(2 * 2 / 5)
    assert normalisation("squad", "zh")("北京 市") == "北京 市"
    with pytest.raises(ValueError, match="language: expected one of en, es, vi, de, ar, hi, zh, got 'fr'"):
        normal_mlqa("x", "fr")


def test_every_unicode_punctuation_is_left_out():
    marks = "".join(chr(at) for at in range(sys.maxunicode) if unicodedata.category(chr(at)).startswith("P"))
    assert normal_mlqa(f"a{marks}b", "hi") == "ab"
