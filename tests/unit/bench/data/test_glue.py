"""GLUE's files as published: every column layout, the quoting traps, and bad rows named."""

from __future__ import annotations

import pytest

from headway.bench.data.transfer.glue import GLUE
from headway.bench.data.transfer.tasks import TaskData, find_task, load


@pytest.fixture
def glue(tmp_path):
    """A GLUE folder; each call writes one file of it."""

    def write(name: str, *rows: str, end: str = "\n", start: str = "") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((start + "\n".join(rows) + end).encode())
        return str(tmp_path)

    return write


def texts(split):
    return [(each.id, each.first, each.second, each.label) for each in split.examples]


LAYOUTS = {  # task -> (file, split, rows, what is read)
    "cola": ("CoLA/train.tsv", "train", ["gj04\t0\t*\tThe cat sleep."], ("0", "The cat sleep.", None, 0)),
    "cola test": ("CoLA/test.tsv", "test", ["index\tsentence", "7\tA cat."], ("7", "A cat.", None, None)),
    "sst2": ("SST-2/dev.tsv", "dev", ["sentence\tlabel", "a fine film \t1"], ("0", "a fine film ", None, 1)),
    "mrpc": (
        "MRPC/dev.tsv",
        "dev",
        ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "1\t11\t12\tHe said .\tShe said ."],
        ("0", "He said .", "She said .", 1),
    ),
    "mrpc test": (
        "MRPC/test.tsv",
        "test",
        ["index\t#1 ID\t#2 ID\t#1 String\t#2 String", "5\t11\t12\tHe said .\tShe said ."],
        ("5", "He said .", "She said .", None),
    ),
    "stsb": (
        "STS-B/dev.tsv",
        "dev",
        [
            "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
            "3\tmain\tMSR\t2012\t0001\tnone\tnone\tA man.\tA boy.\t2.750",
        ],
        ("3", "A man.", "A boy.", 2.75),
    ),
    "qqp": (
        "QQP/train.tsv",
        "train",
        ["id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "133\t1\t2\tWhy?\tHow?\t0"],
        ("133", "Why?", "How?", 0),
    ),
    "qnli": (
        "QNLI/dev.tsv",
        "dev",
        ["index\tquestion\tsentence\tlabel", "0\tWho?\tHe.\tnot_entailment"],
        ("0", "Who?", "He.", 1),
    ),
    "rte": (
        "RTE/dev.tsv",
        "dev",
        ["index\tsentence1\tsentence2\tlabel", "0\tA.\tB.\tentailment"],
        ("0", "A.", "B.", 0),
    ),
    "wnli": ("WNLI/dev.tsv", "dev", ["index\tsentence1\tsentence2\tlabel", "0\tA.\tB.\t1"], ("0", "A.", "B.", 1)),
    "mnli": (
        "MNLI/dev_mismatched.tsv",
        "dev_mismatched",
        [
            "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\t"
            "sentence2_parse\tsentence1\tsentence2\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label",
            "0\t75290\t75290c\tletters\t( A )\t( B )\t(ROOT A)\t(ROOT B)\tA.\tB.\tneutral\tx\tx\tx\tx\tcontradiction",
        ],
        ("75290c", "A.", "B.", 2),
    ),
    "mnli jsonl": (
        "MNLI/multinli_1.0_dev_matched.jsonl",
        "dev_matched",
        ['{"gold_label": "neutral", "sentence1": "A.", "sentence2": "B.", "pairID": "1n"}'],
        ("1n", "A.", "B.", 1),
    ),
    "diagnostic": (
        "diagnostic/diagnostic.tsv",
        "test",
        ["index\tsentence1\tsentence2", "0\tA.\tB."],
        ("0", "A.", "B.", None),
    ),
    "diagnostic full": (
        "diagnostic/diagnostic-full.tsv",
        "test",
        [
            "Lexical Semantics\tPredicate-Argument Structure\tLogic\tKnowledge\tDomain\tPremise\tHypothesis\tLabel",
            "\t\tNegation\t\tArtificial\tA.\tB.\tcontradiction",
        ],
        ("0", "A.", "B.", 2),
    ),
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_every_layout_is_read(glue, case):
    file, split, rows, expected = LAYOUTS[case]
    found = texts(load(find_task(case.split()[0]), glue(file, *rows), split))
    assert found == [expected]


def test_every_task_is_covered_above():
    assert {case.split()[0] for case in LAYOUTS} | {"snli"} == {task.name for task in GLUE}  # SNLI has MNLI's columns


def test_the_folder_of_the_task_itself_is_found_too(glue, tmp_path):
    glue("RTE/train.tsv", "index\tsentence1\tsentence2\tlabel", "0\tA.\tB.\tentailment")
    assert len(load(find_task("rte"), tmp_path / "RTE").examples) == 1
    assert (
        len(load(find_task("rte"), tmp_path / "RTE" / "train.tsv", "dev").examples) == 1
    )  # one file, whatever the split


def test_quotes_are_text(glue):
    """A csv reader would join the first two rows into one."""
    rows = ['0\t"Yes, he said.\tHe "said" so.\tentailment', '1\tA.\t"B.\tnot_entailment', "2\tC.\t'D\tentailment"]
    split = load(find_task("rte"), glue("RTE/train.tsv", "index\tsentence1\tsentence2\tlabel", *rows))
    assert texts(split)[0] == ("0", '"Yes, he said.', 'He "said" so.', 0)
    assert len(split.examples) == 3


def test_only_newlines_end_lines(glue):
    """Unicode and old systems know other ends of lines; they occur inside texts."""
    rows = ["0\tone\x85two\u2028three\x0cfour\tB\rC\tentailment"]
    split = load(find_task("rte"), glue("RTE/train.tsv", "index\tsentence1\tsentence2\tlabel", *rows))
    assert texts(split) == [("0", "one\x85two\u2028three\x0cfour", "B\rC", 0)]


@pytest.mark.parametrize("end", ["\n", ""])
def test_byte_order_mark_carriage_returns_and_a_missing_last_newline(glue, end):
    folder = glue(
        "MRPC/train.tsv",
        "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\r",
        "1\t1\t2\tA .\tB .\r",
        "0\t3\t4\tC .\tD .",
        start="\ufeff",
        end=end,
    )
    assert [each.label for each in load(find_task("mrpc"), folder).examples] == [1, 0]
    assert load(find_task("mrpc"), folder).examples[0].second == "B ."


HEADER = "index\tsentence1\tsentence2\tlabel"
BAD = {
    "a truncated row": ("7\tA.", r"RTE/train.tsv, line 3: expected 4 columns .*, got 2: '7\\tA.'"),
    "a row with too much": ("7\tA.\tB.\tC.\tentailment", "line 3: expected 4 columns .*, got 5"),
    "a label outside the set": ("7\tA.\tB.\tperhaps", "line 3: expected a label among entailment, not_.*got 'perhaps'"),
    "an id for the second time": ("0\tA.\tB.\tentailment", "line 3: expected an id of its own, got '0' as in .*line 2"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_rows_are_named_or_counted(glue, case):
    row, message = BAD[case]
    folder = glue("RTE/train.tsv", HEADER, "0\tA.\tB.\tentailment", row, "9\tA.\tB.\tnot_entailment")
    with pytest.raises(ValueError, match=message):
        load(find_task("rte"), folder)
    split = load(find_task("rte"), folder, on_error="skip")
    assert [each.id for each in split.examples] == ["0", "9"]
    assert split.problems.count == 1
    assert split.described()["skipped"] == 1
    assert "line 3" in split.described()["first_skipped"][0]


def test_scores_have_bounds(glue):
    header = "index\tsentence1\tsentence2\tscore"
    for score in ("5.1", "-0.2", "nan", "high"):
        with pytest.raises(ValueError, match=f"line 2: expected a score from 0 to 5, got '{score}'"):
            load(find_task("stsb"), glue("STS-B/train.tsv", header, f"0\tA.\tB.\t{score}"))


def test_bytes_that_are_no_utf8_are_named(glue, tmp_path):
    glue("RTE/train.tsv", HEADER, "0\tA.\tB.\tentailment")
    with (tmp_path / "RTE/train.tsv").open("ab") as file:
        file.write(b"1\tcaf\xe9\tB.\tentailment\n")
    with pytest.raises(ValueError, match=r"line 3: expected UTF-8, got byte 0xe9 at byte"):
        load(find_task("rte"), tmp_path)
    assert load(find_task("rte"), tmp_path, on_error="skip").problems.count == 1


def test_rows_without_agreement_have_no_label(glue):
    row = '{"gold_label": "%s", "sentence1": "A.", "sentence2": "B.", "pairID": "%s"}'
    split = load(find_task("snli"), glue("SNLI/snli_1.0_train.jsonl", row % ("-", 1), row % ("neutral", 2)))
    assert [each.label for each in split.examples] == [None, 1]
    assert split.described() | {"rows": 2, "labelled": 1} == split.described()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (("rte", "nowhere", "train"), "nowhere: expected the split train of rte .*no RTE/train.tsv"),
        (("rte", "", "dev_matched"), "rte: expected a split among train, dev, test, got 'dev_matched'"),
        (("rtee", "", "train"), "task: expected one of cola, sst2, .*got 'rtee'. Did you mean rte"),
    ],
)
def test_missing_splits_and_unknown_names_are_named(call, message):
    name, *where = call
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load(find_task(name), *where)


def test_a_header_of_another_task_is_named(glue):
    with pytest.raises(ValueError, match=r"line 2: expected the column 'sentence1', got question, answer"):
        load(find_task("rte"), glue("RTE/train.tsv", "question\tanswer", "A\tB"))


def test_an_empty_file_is_named(glue):
    with pytest.raises(ValueError, match=r"CoLA/train.tsv: expected text, got an empty file"):
        load(find_task("cola"), glue("CoLA/train.tsv", end=""))


def test_mnli_has_two_dev_splits():
    assert find_task("mnli").parts("dev") == ("dev_matched", "dev_mismatched")
    assert find_task("rte").parts("dev") == ("dev",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("glue", ("rte", "train", "glue")),
        ("a=b/glue", ("rte", "train", "a=b/glue")),
        ("mnli=glue", ("mnli", "train", "glue")),
        ("mlqa@dev=x/y", ("mlqa", "dev", "x/y")),
        ("mlqa@dev:de,zh-en=x/y", ("mlqa", "dev", "x/y", ("de", "zh-en"))),
        ("hub:me/glue:rte", ("rte", "train", "hub:me/glue:rte")),
        ("builtin:entailment", ("builtin:entailment", "train", "")),
        ("builtin:entailment@dev", ("builtin:entailment", "dev", "")),
        ("mnli", ("rte", "train", "mnli")),  # a folder of that name
    ],
)
def test_references(text, expected):
    assert TaskData.parse(text, task=find_task("rte"), split="train") == TaskData(find_task(expected[0]), *expected[1:])


def test_a_reference_to_a_language_that_there_is_not():
    with pytest.raises(ValueError, match=r"xquad: expected languages among .*, got xx"):
        TaskData.parse("xquad@test:de,xx=folder", task=find_task("squad"), split="train")


def test_test_sets_of_mnli_have_the_index_that_the_leaderboard_asks_for(glue):
    header = "index\tpromptID\tpairID\tgenre\tsentence1\tsentence2"
    found = load(
        find_task("mnli"), glue("MNLI/test_matched.tsv", header, "0\t31493\t31493\ttravel\tA.\tB."), "test_matched"
    )
    assert [each.id for each in found.examples] == ["0"]
