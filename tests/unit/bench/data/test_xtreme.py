"""XNLI, PAWS-X and the question sets, as their authors and as XTREME publish them."""

from __future__ import annotations

import json

import pytest

from headway.bench.data.transfer.tasks import find_task, found_languages, load


def squad(*questions, context="The cat sat on the mat ."):
    entries = [
        {"id": name, "question": asked, "answers": [{"text": text, "answer_start": start} for text, start in answers]}
        for name, asked, answers in questions
    ]
    return json.dumps(
        {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": context, "qas": entries}]}]}
    )


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_xnli_of_xtreme_has_no_header_and_maybe_no_labels(tmp_path):
    write(tmp_path / "dev-de.tsv", 'Er "kam.\tEr ging.\tcontradiction\nA\tB\tneutral\n')
    write(tmp_path / "test-de.tsv", "A\tB\nC\tD\n")
    dev = load(find_task("xnli"), tmp_path, "dev", language="de")
    assert [(each.first, each.label) for each in dev.examples] == [('Er "kam.', 2), ("A", 1)]
    assert [each.label for each in load(find_task("xnli"), tmp_path, "test", language="de").examples] == [None, None]
    assert found_languages(find_task("xnli"), tmp_path, "dev") == ("de",)


def test_xnli_without_labels_is_no_dev_set(tmp_path):
    write(tmp_path / "dev-de.tsv", "A\tB\n")
    with pytest.raises(ValueError, match=r"line 1: expected 3 columns .*, got 2"):
        load(find_task("xnli"), tmp_path, "dev", language="de")


@pytest.mark.parametrize("form", ["tsv", "jsonl"])
def test_xnli_of_its_authors_holds_all_languages(tmp_path, form):
    rows = [("de", "neutral", "A", "B"), ("fr", "entailment", "C", "D"), ("de", "contradiction", "E", "F")]
    names = ("language", "gold_label", "sentence1", "sentence2")
    if form == "tsv":
        write(tmp_path / "xnli.dev.tsv", "\n".join("\t".join(row) for row in (names, *rows)))
    else:
        write(tmp_path / "xnli.dev.jsonl", "\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows))
    assert [each.first for each in load(find_task("xnli"), tmp_path, "dev", language="de").examples] == ["A", "E"]
    assert [each.label for each in load(find_task("xnli"), tmp_path, "dev", language="fr").examples] == [0]


def test_the_translated_training_files_spell_a_label_differently(tmp_path):
    write(tmp_path / "multinli.train.de.tsv", "premise\thypo\tlabel\nA\tB\tcontradictory\n")
    assert load(find_task("xnli"), tmp_path, "train", language="de").examples[0].label == 2


def test_pawsx_in_both_layouts(tmp_path):
    write(tmp_path / "a" / "dev-ja.tsv", "A\tB\t1\n")
    write(tmp_path / "b" / "ja" / "dev_2k.tsv", "id\tsentence1\tsentence2\tlabel\n4\tA\tB\t0\n")
    assert load(find_task("pawsx"), tmp_path / "a", "dev", language="ja").examples[0].label == 1
    found = load(find_task("pawsx"), tmp_path / "b", "dev", language="ja").examples[0]
    assert (found.id, found.label) == ("4", 0)


PLACES = {
    "squad": ("dev", "en", "dev-v1.1.json"),
    "xquad": ("test", "de", "xquad.de.json"),
    "mlqa": ("test", "de", "test/test-context-de-question-de.json"),
    "mlqa pair": ("dev", "de-en", "dev/dev-context-de-question-en.json"),
    "tydiqa": ("dev", "sw", "tydiqa-goldp-v1.1-dev/tydiqa.goldp.sw.dev.json"),
    "tydiqa by its authors": ("dev", "sw", "tydiqa-goldp-v1.1-dev/tydiqa-goldp-dev-swahili.json"),
}


@pytest.mark.parametrize("case", PLACES)
def test_questions_are_found_and_read(tmp_path, case):
    split, language, file = PLACES[case]
    write(tmp_path / file, squad(("q1", "Who?", [("The cat", 0), ("cat", 4)]), ("q2", "Where?", [("the mat", 15)])))
    found = load(find_task(case.split()[0]), tmp_path, split, language=language)
    assert [(each.id, each.question, [a.text for a in each.answers]) for each in found.examples] == [
        ("q1", "Who?", ["The cat", "cat"]),
        ("q2", "Where?", ["the mat"]),
    ]


def test_empty_answers_are_none(tmp_path):
    """So XTREME keeps back those of TyDiQA and MLQA."""
    write(tmp_path / "dev-v1.1.json", squad(("q1", "Who?", [("", 0)])))
    split = load(find_task("squad"), tmp_path, "dev")
    assert split.examples[0].answers == ()
    assert split.described()["labelled"] == 0


BAD = {
    "an answer that is not there": (
        ("q9", "Who?", [("dog", 4)]),
        "article 1, paragraph 1, question 'q9': expected the answer 'dog' at character 4 of its text, got 'cat'",
    ),
    "an answer before the text": (("q9", "Who?", [("cat", -3)]), "question 'q9': expected the answer 'cat' at char"),
    "an id for the second time": (("q1", "Who?", [("cat", 4)]), "question 'q1': expected an id of its own"),
    "an empty question": (("q9", "  ", [("cat", 4)]), "question 'q9': expected a text as 'question', got '  '"),
    "an answer without start": (("q9", "Who?", [("cat", None)]), "question 'q9': expected answers with a text and a"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_questions_are_named_or_counted(tmp_path, case):
    entry, message = BAD[case]
    write(tmp_path / "dev-v1.1.json", squad(("q1", "Who?", [("cat", 4)]), entry, ("q2", "Where?", [("mat", 19)])))
    with pytest.raises(ValueError, match=message):
        load(find_task("squad"), tmp_path, "dev")
    split = load(find_task("squad"), tmp_path, "dev", on_error="skip")
    assert [each.id for each in split.examples] == ["q1", "q2"]
    assert split.problems.count == 1


def test_tydiqa_may_repeat_ids(tmp_path):
    """Its training files as XTREME publishes them number questions from 0 in several parts."""
    text = squad(("0", "Who?", [("cat", 4)]), ("0", "Where?", [("mat", 19)]))
    write(tmp_path / "tydiqa.goldp.en.train.json", text)
    assert [each.id for each in load(find_task("tydiqa"), tmp_path, "train").examples] == ["0", "0#2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (squad(("q1", "Who?", [("cat", 4)]))[:-20], "dev-v1.1.json: expected JSON, got .* It may be cut off"),
        ('{"version": "1.1"}', "dev-v1.1.json: expected a list 'data', got None"),
        ('{"data": [{"paragraphs": "x"}]}', "article 1: expected a list 'paragraphs', got 'x'"),
        ('{"data": [{"paragraphs": [{"context": "c"}]}]}', "article 1, paragraph 1: expected a list 'qas', got None"),
    ],
)
def test_files_that_are_no_squad_are_named(tmp_path, text, message):
    write(tmp_path / "dev-v1.1.json", text)
    with pytest.raises(ValueError, match=message):
        load(find_task("squad"), tmp_path, "dev")
    with pytest.raises(ValueError, match="squad: expected examples in its split dev, got none"):
        load(find_task("squad"), tmp_path, "dev", on_error="skip")


def test_a_file_says_its_language(tmp_path):
    write(tmp_path / "xquad.de.json", squad(("q", "who ?", [("cat", 4)])))
    assert found_languages(find_task("xquad"), tmp_path / "xquad.de.json", "test") == ("de",)
    assert load(find_task("xquad"), tmp_path / "xquad.de.json", "test").language == "de"
    with pytest.raises(ValueError, match="expected xquad in en, got a file that is named as that of de"):
        load(find_task("xquad"), tmp_path / "xquad.de.json", "test", language="en")
    write(tmp_path / "mine.json", squad(("q", "who ?", [("cat", 4)])))
    assert found_languages(find_task("xquad"), tmp_path / "mine.json", "test") == ()
    assert load(find_task("xquad"), tmp_path / "mine.json", "test", language="tr").language == "tr"


def test_a_file_whose_folder_says_its_language_and_one_of_all(tmp_path):
    write(tmp_path / "ja" / "dev_2k.tsv", "id\tsentence1\tsentence2\tlabel\n4\tA\tB\t0\n")
    assert found_languages(find_task("pawsx"), tmp_path / "ja" / "dev_2k.tsv", "dev") == ("ja",)
    write(tmp_path / "xnli.dev.tsv", "language\tgold_label\tsentence1\tsentence2\nde\tneutral\tA\tB\n")
    assert len(found_languages(find_task("xnli"), tmp_path / "xnli.dev.tsv", "dev")) == 15
    write(tmp_path / "test-context-de-question-en.json", squad(("q", "who ?", [("cat", 4)])))
    mixed = tmp_path / "test-context-de-question-en.json"
    assert load(find_task("mlqa"), mixed, "test", language="de-en").language == "de-en"
