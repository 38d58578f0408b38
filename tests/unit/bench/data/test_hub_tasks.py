"""Data sets by Hub name: the real `datasets` library on local files, and the names that it is asked for."""

from __future__ import annotations

import json

import datasets
import pytest

from headway.bench.data.transfer.tasks import find_task, load


@pytest.fixture
def hub(monkeypatch):
    """Answers load_dataset with given rows and remembers what was asked."""
    asked = []

    def serve(*rows, **features):
        def load_dataset(name, config=None, *, split):
            asked.append((name, config, split))
            return datasets.Dataset.from_list(list(rows))

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        return asked

    return serve


def test_classes_come_as_numbers(hub):
    rows = [
        {"sentence1": "A", "sentence2": "B", "label": 1, "idx": 4},
        {"sentence1": "C", "sentence2": "D", "label": -1},
    ]
    asked = hub(*({"idx": 9, **row} for row in rows))
    found = load(find_task("rte"), "hub", "dev").examples
    assert asked == [("nyu-mll/glue", "rte", "validation")]
    assert [(each.id, each.first, each.second, each.label) for each in found] == [
        ("4", "A", "B", 1),
        ("9", "C", "D", None),
    ]


def test_scores_and_hidden_scores(hub):
    hub(
        {"sentence1": "A", "sentence2": "B", "label": 2.5, "idx": 0},
        {"sentence1": "A", "sentence2": "B", "label": -1.0, "idx": 1},
    )
    assert [each.label for each in load(find_task("stsb"), "hub", "test").examples] == [2.5, None]


def test_questions_have_lists_of_texts_and_starts(hub):
    row = {"question": "Who?", "context": "The cat", "answers": {"text": ["cat"], "answer_start": [4]}}
    asked = hub({"id": "arabic-1", **row}, {"id": "swahili-1", **row}, {"id": "swahili-2", **row})
    found = load(find_task("tydiqa"), "hub", "dev", language="sw").examples
    assert asked == [("google-research-datasets/tydiqa", "secondary_task", "validation")]
    assert [each.id for each in found] == ["swahili-1", "swahili-2"]
    assert found[0].answers[0].text == "cat"


@pytest.mark.parametrize(
    ("name", "split", "language", "expected"),
    [
        ("xnli", "test", "de", ("facebook/xnli", "de", "test")),
        ("mnli", "dev_mismatched", "en", ("nyu-mll/glue", "mnli", "validation_mismatched")),
        ("mlqa", "dev", "de-en", ("google/xtreme", "MLQA.de.en", "validation")),
        ("mlqa", "test", "zh", ("google/xtreme", "MLQA.zh.zh", "test")),
        ("xquad", "test", "el", ("google/xquad", "xquad.el", "validation")),
        ("squad", "dev", "en", ("rajpurkar/squad", None, "validation")),
        ("pawsx", "dev", "ja", ("google-research-datasets/paws-x", "ja", "validation")),
    ],
)
def test_names_on_the_hub(hub, name, split, language, expected):
    table = find_task(name).hub.table
    if table is None:
        row = {"id": "1", "question": "Q", "context": "C", "answers": {"text": [], "answer_start": []}}
    else:
        row = {table.first: "A", table.second: "B", "label": 0, "id": 1}
    asked = hub(row)
    load(find_task(name), "hub", split, language=language)
    assert asked == [expected]


def test_a_copy_under_another_name(tmp_path, monkeypatch):
    """The real library, on a folder in place of a name of the Hub."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "copy"
    folder.mkdir()
    rows = [{"sentence1": "A", "sentence2": "B", "label": 0, "idx": 0}]
    (folder / "validation.jsonl").write_text("\n".join(map(json.dumps, rows)))
    found = load(find_task("rte"), f"hub:{folder}:default", "dev").examples
    assert [(each.first, each.label) for each in found] == [("A", 0)]


def test_what_is_not_there_is_named(monkeypatch):
    def load_dataset(*_, **__):
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(ValueError, match="hub:nyu-mll/glue:rte: expected a dataset with split train, got: no network"):
        load(find_task("rte"), "hub")


def test_bad_rows_are_named(hub):
    hub({"sentence1": "A", "sentence2": "B", "label": 7, "idx": 0})
    with pytest.raises(ValueError, match=r"hub:nyu-mll/glue:rte, train, row 1: expected a label among .*, got '7'"):
        load(find_task("rte"), "hub")


def test_a_split_that_the_hub_does_not_have(hub):
    with pytest.raises(ValueError, match="xquad: expected a split among test, got 'train'"):
        load(find_task("xquad"), "hub", "train")
