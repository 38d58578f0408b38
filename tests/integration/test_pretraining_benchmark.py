"""The benchmark of pretraining runs from end to end, on a tiny model."""

import json
import re
import sys

from benchmarks import model_tables, pretraining
from headway.bench.cost import CostConfig, CostTable, Measurement, Timing, rounds


def test_it_prints_a_table_and_saves_the_numbers(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(rounds.SECONDS_IN_A_ROUND, "cpu", 0.01)
    monkeypatch.setattr(sys, "argv", ["pretraining", "--tiny", "--out", str(tmp_path)])
    pretraining.main()
    shown = capsys.readouterr().out
    (path,) = tmp_path.glob("pretraining_*.json")
    assert f"wrote {path}" in shown
    record = json.loads(path.read_text())
    assert {"processor", "torch", "transformers"} <= set(record["environment"])
    table = CostTable.from_json(record)
    assert [row.row for row in table.measurements] == ["none", *pretraining.THEIRS, "diet-rel"]
    assert all(row.problem is None for row in table.measurements)
    diet = table.measurements[-1]
    faster = [table.speed_over_transformers(diet, "training", same_work=same).median for same in (False, True)]
    assert re.search(rf"diet-rel .* {faster[0]:.2f} +{faster[1]:.2f} *\n", shown)


def test_the_docs_show_the_newest_run_that_has_what_a_table_is_about(monkeypatch, tmp_path):
    settings, older = ["none", *pretraining.THEIRS], ["none", "transformers", "shaw"]
    for date, n, rows, modes in (
        ("2026-11-18", 128, older, ("training", "inference")),
        ("2026-11-18", 512, older, ("training", "inference")),
        ("2026-11-20", 128, settings, ("training",)),
    ):
        measurements = tuple(
            Measurement(row=row, model="bert-base", length=n, batch=4, **dict.fromkeys(modes, timing(k)))
            for k, row in enumerate(rows)
        )
        config = CostConfig(encodings=tuple(rows), models=("bert-base",), lengths=(n,), device="cuda", bf16=True)
        facts = {"gpu": "NVIDIA H200", "torch": "2.11.0", "date": date}
        table = CostTable(config=config, environment=facts, measurements=measurements)
        (tmp_path / f"pretraining_n{n}_h200_torch2.11.0_{date}.json").write_text(json.dumps(table.to_json()))
    monkeypatch.setattr(model_tables, "RESULTS", tmp_path)
    monkeypatch.setattr(model_tables, "ROOT", tmp_path)
    head, _, none, *_, caption = model_tables.pretraining().splitlines()
    # 512 tokens in 1 s, 40 % of the peak rate; transformers as it comes takes 2 s, the head at few places 6 s
    assert none == "| none | 1 | 40 % | 2.00 | 6.00 |"
    assert head.count("|") == none.count("|")
    assert "`transformers:compile=false,graphs=false` and `transformers:mask=false,head=masked` at n = 128" in caption
    assert "within 10.0 %" in caption
    assert model_tables.pretraining_over_none().splitlines()[2:4] == [
        "| none | 1.00 | 1.00 | 1.00 | 1.00 |",
        "| shaw | 3.00 | 3.00 | 3.00 | 3.00 |",
    ]


def timing(place):
    seconds = tuple((1 + place) * factor for factor in (0.9, 1.0, 1.1))
    return Timing(seconds=seconds, launched=seconds, flops=int(0.4 * 989e12), peak_bytes=None)


def test_all_rows_of_the_gpu_are_right_and_fit_the_question(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    config = pretraining.chosen(pretraining.options_of([])).resolved(cores=16)
    assert config.rows[0] == "none" and "transformers" in config.rows
    assert [config.batch_of(length) for length in config.lengths] == [256, 64]
    assert config.bf16 and config.compile
