"""What a sweep reads: splits, languages, limits, labels, and how each is scored."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from headway.bench.data.text.tokenizers import train_tokenizer
from headway.bench.data.transfer.tasks import load
from headway.bench.data.transfer.xtreme import XNLI_LANGUAGES
from headway.bench.tasks.finetune.baselines import baseline_scores
from headway.bench.tasks.finetune.config import Data, Spans, Start
from headway.bench.tasks.finetune.data import fingerprints, prepare_data
from headway.bench.tasks.finetune.recipes import quick


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer("builtin:100", kind="word")


def asked(task, **data):
    config = quick(task, Start(model="m"), Data(**data))
    return replace(config, protocol=replace(config.protocol, length=64), spans=Spans(overlap=8, max_question=16))


def write(path, *rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


@pytest.fixture
def nli(tmp_path):
    """MNLI with both dev splits, and XNLI's test split in all languages but three."""
    header = "index\tsentence1\tsentence2\tgold_label"
    for split, count in (("train", 20), ("dev_matched", 4), ("dev_mismatched", 3)):
        write(tmp_path / "MNLI" / f"{split}.tsv", header, *(f"{at}\tthe cat\ta dog\tneutral" for at in range(count)))
    for language in XNLI_LANGUAGES[:-3]:
        write(tmp_path / f"test-{language}.tsv", "the cat\ta dog\tneutral", "a\tb\tentailment")
    return tmp_path


def test_mnli_is_judged_on_both_dev_splits(tokenizer, nli):
    data = prepare_data(asked("mnli", train=(str(nli),)), tokenizer)
    assert {name: len(each.encoded) for name, each in data.dev.items()} == {"dev_matched": 4, "dev_mismatched": 3}
    scores = [np.array([0.0, 1.0, 0.0])] * 3 + [np.array([2.0, 1.0, 0.0])]
    assert data.dev["dev_matched"].metrics(scores) == {"score": 0.75, "accuracy": 0.75}


def test_the_score_is_the_metric_that_is_asked_for(tokenizer):
    config = asked("builtin:similarity", limit=5)
    scores = [np.array([value]) for value in np.random.default_rng(0).normal(size=1000)]
    for metric in (None, "pearson", "spearman"):
        chosen = replace(config, protocol=replace(config.protocol, metric=metric))
        found = prepare_data(chosen, tokenizer).dev["dev"].metrics(scores)
        assert found["pearson"] != found["spearman"]
        assert found["score"] == pytest.approx(found[metric] if metric else (found["pearson"] + found["spearman"]) / 2)


def test_texts_that_are_cut_are_counted(tokenizer, nli):
    long = " ".join(["cat"] * 70)
    rows = [f"{at}\t{long if at < 3 else 'cat'}\ta dog\tneutral" for at in range(20)]
    write(nli / "MNLI" / "train.tsv", "index\tsentence1\tsentence2\tgold_label", *rows)
    found = prepare_data(asked("mnli", train=(str(nli),)), tokenizer)
    assert found.train.cut == 3 and found.train.lengths.max() == 64
    assert [(each["use"], each["cut"]) for each in found.described] == [("train", 3), ("dev", 0), ("dev", 0)]
    some = prepare_data(asked("mnli", train=(str(nli),), limit=5), tokenizer).described[0]
    assert (some["rows"], some["taken"]) == (20, 5) and some["cut"] <= 3


def test_languages_must_all_be_there_unless_some_are_asked_for(tokenizer, nli):
    with pytest.raises(FileNotFoundError, match=r"expected xnli test in en, ar, .* got none in ur, vi, zh\. Add the"):
        prepare_data(asked("mnli", train=(str(nli),), transfer=(f"xnli={nli}",)), tokenizer)
    data = prepare_data(asked("mnli", train=(str(nli),), transfer=(f"xnli={nli}",), languages=("de", "xx")), tokenizer)
    assert list(data.transfer["xnli"]) == ["de"]
    both = ("builtin:entailment", f"xnli={nli}")
    with pytest.raises(ValueError, match=r"languages: expected some of xnli .*, got invented"):
        prepare_data(asked("mnli", train=(str(nli),), transfer=both, languages=("invented",)), tokenizer)


def test_fingerprints_are_of_all_files_that_are_read(nli):
    config = asked("mnli", train=(str(nli), "builtin:entailment"), transfer=(f"xnli={nli}",), languages=("de", "fr"))
    before = fingerprints(config)  # train, the built-in language, both dev splits, the transfer
    write(nli / "test-es.tsv", "not asked for")
    assert fingerprints(config) == before and None not in before
    write(nli / "test-fr.tsv", "the dog\ta dog\tneutral")
    write(nli / "MNLI" / "dev_mismatched.tsv", "another")
    assert [one == other for one, other in zip(before, fingerprints(config), strict=True)] == [True, True, False, False]
    (nli / "MNLI" / "train.tsv").unlink()
    assert [each is None for each in fingerprints(config)] == [True, False, False, False]


def test_several_splits_of_one_data_set_have_their_names(tokenizer, nli):
    sources = (f"mnli@dev={nli}", f"xnli={nli}")
    data = prepare_data(asked("mnli", train=(str(nli),), transfer=sources, languages=("de",)), tokenizer)
    assert {name: list(each) for name, each in data.transfer.items()} == {
        "mnli@dev_matched": ["en"],
        "mnli@dev_mismatched": ["en"],
        "xnli": ["de"],
    }


def test_what_is_only_predicted_is_read_before_training(tokenizer, nli):
    with pytest.raises(FileNotFoundError, match="expected the split test_matched of mnli"):
        prepare_data(asked("mnli", train=(str(nli),), predict=(str(nli),)), tokenizer)


def test_splits_without_labels_are_named(tokenizer, nli):
    write(nli / "test-de.tsv", "the cat\ta dog")
    with pytest.raises(ValueError, match=r"xnli: expected labels in its split test \(de\), got 1 rows without any"):
        prepare_data(asked("mnli", train=(str(nli),), transfer=(f"xnli={nli}",), languages=("de",)), tokenizer)


def test_a_limit_draws_the_same_examples_every_time(tokenizer):
    first, again = (prepare_data(asked("builtin:acceptability", limit=50), tokenizer).train for _ in range(2))
    assert len(first) == 50
    assert (first.tokens == again.tokens).all()
    assert 0 < first.labels.mean() < 1


def test_training_data_is_put_together_and_counted(tokenizer, nli):
    write(nli / "SNLI" / "train.tsv", "sentence1\tsentence2\tgold_label", "a\tb\tneutral", "c\td\t-", "e\tf")
    data = prepare_data(asked("mnli", train=(str(nli), f"snli={nli}"), on_error="skip"), tokenizer)
    assert len(data.train) == 21
    counts = {(each["name"], each["split"]): each for each in data.described}
    assert [counts["snli", "train"][key] for key in ("rows", "labelled", "skipped")] == [2, 1, 1]
    assert counts["mnli", "train"]["published"] == 392_702


def test_answers_of_mlqa_are_compared_in_their_language(tokenizer, tmp_path):
    context = "die katze und der hund"
    entry = {"id": "q", "question": "wer", "answers": [{"text": "die katze", "answer_start": 0}]}
    text = json.dumps({"data": [{"paragraphs": [{"context": context, "qas": [entry]}]}]})
    for name in ("train-v1.1.json", "dev-v1.1.json", "dev-context-de-question-de.json"):
        write(tmp_path / name, text)
    config = asked("squad", train=(str(tmp_path),), transfer=(f"mlqa@dev={tmp_path}",), languages=("de",))
    data = prepare_data(config, tokenizer)
    windows = data.dev["dev"].encoded
    scores = np.zeros((windows.lengths[0], 2), np.float32)
    scores[windows.first[0] + 1] = 5.0  # "katze", without its article
    assert data.dev["dev"].metrics([scores]) == pytest.approx({"score": 2 / 3, "f1": 2 / 3, "exact_match": 0.0})
    assert data.transfer["mlqa"]["de"].metrics([scores]) == pytest.approx({"score": 1.0, "f1": 1.0, "exact_match": 1.0})


def test_languages_of_one_split_stand_side_by_side(tokenizer, nli):
    write(nli / "dev-de.tsv", *["the cat\ta dog\tneutral"] * 2)
    write(nli / "dev-fr.tsv", *["the cat\ta dog\tneutral"] * 3)
    given = {"train": (f"mnli={nli}",), "dev": (f"xnli@dev:fr,de={nli}",)}
    config = asked("xnli", **given, transfer=(f"xnli@test:de={nli}", f"xnli@test:fr={nli}"))
    data = prepare_data(config, tokenizer)
    assert [(name, len(each.encoded)) for name, each in data.dev.items()] == [("dev fr", 3), ("dev de", 2)]
    assert {name: list(each) for name, each in data.transfer.items()} == {"xnli": ["de", "fr"]}
    for changed, message in (
        ({"dev": (f"xnli@dev:fr={nli}",) * 2}, "dev: expected every split once in a language, got dev fr twice"),
        ({"transfer": (f"xnli@test:de={nli}",) * 2}, "transfer: expected every split once .* got xnli test de twice"),
        ({"predict": (f"xnli@test:de={nli}",) * 2}, "predict: expected every split once .* got xnli test de twice"),
    ):
        with pytest.raises(ValueError, match=message):
            prepare_data(asked("xnli", **{**given, **changed}), tokenizer)


def test_one_file_is_of_the_language_that_its_name_says(tokenizer, nli):
    given = {"train": (f"mnli={nli}",), "dev": (f"mnli={nli}",)}
    data = prepare_data(asked("xnli", **given, transfer=(f"xnli={nli / 'test-de.tsv'}",)), tokenizer)
    assert {name: list(each) for name, each in data.transfer.items()} == {"xnli": ["de"]}
    write(nli / "other.tsv", "the cat\ta dog\tneutral")
    with pytest.raises(ValueError, match=r"expected to know its language.*Name it: xnli@test:en=.*other\.tsv"):
        prepare_data(asked("xnli", **given, transfer=(f"xnli={nli / 'other.tsv'}",)), tokenizer)
    data = prepare_data(asked("xnli", **given, transfer=(f"xnli@test:th={nli / 'other.tsv'}",)), tokenizer)
    assert list(data.transfer["xnli"]) == ["th"]


def test_baselines_of_a_single_class_name_that_class():
    found = baseline_scores(asked("builtin:entailment", limit=1))
    assert found["bag of words"] == found["most frequent"]


def test_baselines_read_what_the_encoder_reads():
    both = {"train": ("builtin:entailment@train:invented",), "dev": ("builtin:entailment@dev:invented",)}
    read = []

    def noted(task, source, part, *, language=None, on_error="raise"):
        read.append((part, language))
        return load(task, source, part, language=language, on_error=on_error)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headway.bench.tasks.finetune.data.load", noted)
        found = baseline_scores(asked("builtin:entailment", **both, limit=200))
    assert read == [("train", "invented"), ("dev", "invented")]
    assert set(found) == {"most frequent", "bag of words"}
