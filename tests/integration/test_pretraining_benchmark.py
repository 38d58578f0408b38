"""The benchmark of pretraining runs from end to end, on a tiny model."""

import json
import sys

from benchmarks import pretraining
from headway.cost import CostTable, measure


def test_it_prints_a_table_and_saves_the_numbers(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(measure.__globals__["TURN_SECONDS"], "cpu", 0.01)
    monkeypatch.setattr(sys, "argv", ["pretraining", "--tiny", "--out", str(tmp_path)])
    pretraining.main()
    shown = capsys.readouterr().out
    (path,) = tmp_path.glob("pretraining_*.json")
    assert f"wrote {path}" in shown
    record = json.loads(path.read_text())
    assert {"processor", "torch", "transformers"} <= set(record["environment"])
    table = CostTable.from_json(record)
    assert [row.row for row in table.measurements] == ["none", "transformers", "diet-rel"]
    assert all(row.problem is None for row in table.measurements)
    speedup = 1 / table.ratio(table.measurements[2], "training", "transformers").median
    assert f"({speedup:.2f})" in shown


def test_all_rows_of_the_gpu_are_right_and_fit_the_question(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    config = pretraining.chosen(pretraining.options_of([])).resolved(cores=16)
    assert config.rows[0] == "none" and "transformers" in config.rows
    assert [config.batch_of(length) for length in config.lengths] == [256, 64]
    assert config.bf16 and config.compile
