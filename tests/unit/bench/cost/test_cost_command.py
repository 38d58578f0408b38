"""`headway cost` as a user meets it."""

import json
import re

import pytest
from typer.testing import CliRunner

from headway.bench.cost import CostTable, rounds
from headway.cli import app

SMALL = ["cost", "--model", "tiny", "--length", "16", "--batch", "2", "--device", "cpu", "--rounds", "1"]


def run(*arguments):
    return CliRunner(env={"COLUMNS": "120"}).invoke(app, list(arguments))


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setitem(rounds.SECONDS_IN_A_ROUND, "cpu", 0.01)


def test_the_table_and_the_raw_numbers(tmp_path):
    path = tmp_path / "results" / "cost.json"
    done = run(*SMALL, "--encodings", "diet-abs:rank=4,sharing=layer", "--out", str(path))
    assert done.exit_code == 0, done.output
    assert re.search(r"^\s+none +\d+\.\d +1\.000 +1\.00-1\.00 ", done.stdout, re.MULTILINE)
    assert "diet-abs:rank=4,sharing=layer" in done.stdout
    assert f"wrote {path}" in done.stdout
    table = CostTable.from_json(json.loads(path.read_text()))
    assert [row.row for row in table.measurements] == ["none", "diet-abs:rank=4,sharing=layer"]
    assert all(row.problem is None for row in table.measurements)


def test_json_alone():
    done = run(*SMALL, "--encodings", "none", "--mode", "inference", "--json")
    assert done.exit_code == 0, done.output
    value = json.loads(done.stdout)
    assert value["config"]["modes"] == ["inference"]
    (row,) = value["measurements"]
    assert row["training"] is None and len(row["inference"]["seconds"]) == 1
    assert row["ratios"]["inference"]["median"] == 1.0


def test_help_has_an_example():
    done = run("cost", "--help")
    assert done.exit_code == 0
    assert "headway cost --model bert-small" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--encodings", "diet"], "expected one of none"),
        (["--encodings", "diet-abs:rnk=4"], "diet-abs has rank"),
        (["--model", "bert"], "expected some of bert-base"),
        (["--length", "a"], "--length: expected a whole number"),
        (["--device", "gpu"], "device: expected auto"),
        (["--rounds", "0"], "rounds: expected"),
    ],
)
def test_bad_input_is_told_without_a_traceback(arguments, message):
    done = run("cost", *arguments)
    assert done.exit_code == 2
    assert message in " ".join(done.stderr.split())


def test_a_folder_as_out_is_met_before_anything_is_measured(tmp_path):
    done = run(*SMALL, "--encodings", "none", "--out", str(tmp_path))
    assert done.exit_code != 0
    assert "out: expected a file" in " ".join(done.stderr.split())
    assert done.stdout == ""  # no table
