"""The benchmark of translation runs from end to end, on a tiny model."""

import json
import sys

import pytest

from benchmarks import model_tables, translation
from headway.models.translation import TranslationModel

TINY = ["--size", "tiny", "--vocab", "64", "--length", "6", "--batch", "3", "--rounds", "2", "--cpu"]


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    def measured(*more):
        monkeypatch.setattr(sys, "argv", ["translation", *TINY, *more, "--out", str(tmp_path)])
        translation.main()
        (path,) = tmp_path.glob("translation_*.json")
        return json.loads(path.read_text()), capsys.readouterr().out

    return measured


def test_both_parts_are_measured_and_shown_in_the_docs(run, tmp_path, monkeypatch):
    record, shown = run("--encodings", "sinusoidal", "shaw")
    for part in ("decoding", "training"):
        assert not record[part]["wrong"]
        assert {len(times) for times in record[part]["seconds"].values()} == {2}
    ratio = record["training"]["times_marian"]["shaw"]["median"]
    assert f"{ratio:.2f}" in shown
    monkeypatch.setattr(model_tables, "RESULTS", tmp_path)
    monkeypatch.setattr(model_tables, "ROOT", tmp_path)
    assert (
        f"| shaw | {record['decoding']['times_marian']['shaw']['median']:.2f} | {ratio:.2f} |"
        in model_tables.translation()
    )


def test_a_wrong_row_has_no_time(run, monkeypatch):
    loss = TranslationModel._loss
    monkeypatch.setattr(TranslationModel, "_loss", lambda *parts: 1.01 * loss(*parts))
    record, shown = run("--encodings", "t5", "--parts", "training")
    assert "expected" in record["training"]["wrong"]["t5"] and "t5" not in record["training"]["seconds"]
    assert "wrong" in shown


def test_sources_without_padding():
    assert translation.Bench(translation.options_of([*TINY, "--shortest", "1"])).mask.all()
    assert not translation.Bench(translation.options_of(TINY)).mask.all()
