"""The benchmark of fused models runs from end to end, on tiny models, and gives no time to a wrong row."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
import torch

from benchmarks import fuse, model_tables
from headway.pretrained.fusing.families import alibi


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    def measured(*more):
        monkeypatch.setattr(sys, "argv", ["fuse", "--quick", "--cpu", *more, "--out", str(tmp_path)])
        fuse.main()
        (path,) = tmp_path.glob("fuse_*.json")
        return json.loads(path.read_text()), capsys.readouterr().out

    return measured


def test_rows_are_checked_timed_and_shown(run, tmp_path, monkeypatch):
    record, shown = run("--cases", "t5", "bert")
    assert set(record["cases"]) == {"t5", "bert"}
    for case in record["cases"].values():
        for mode in fuse.MODES:
            part = case[mode]
            assert {"eager", "SDPA", "headway"} <= set(part["seconds"])
            assert {len(times) for times in part["seconds"].values()} == {2}
            assert set(part["errors"]["headway"]) == {"outputs", *(["gradients"] if mode == "training" else [])}
            assert max(part["errors"]["headway"].values()) < 1e-4
        assert fuse.summary(case["training"])[0].split()[0] in shown
    assert record["environment"]["transformers"]
    monkeypatch.setattr(model_tables, "RESULTS", tmp_path)
    monkeypatch.setattr(model_tables, "ROOT", tmp_path)
    ratio = fuse.summary(record["cases"]["t5"]["inference"])[2].split()[0]
    row = next(line for line in model_tables.fused_on_cpu().splitlines() if line.startswith("| t5"))
    assert row.split(" | ")[-1].startswith(ratio)


def test_a_wrong_row_has_no_time(run, monkeypatch):
    bias_of_alibi = alibi.bias_of_alibi
    monkeypatch.setattr(alibi, "bias_of_alibi", lambda numbers, q, mask: bias_of_alibi(1.1 * numbers, q, mask))
    record, shown = run("--cases", "bloom")
    for mode in fuse.MODES:
        part = record["cases"]["bloom"][mode]
        assert "headway" not in part["seconds"]
        assert "error" in part["problems"]["headway"]
        assert "computes attention itself" in part["problems"]["SDPA"]
    assert "bloom, headway: " in shown


@pytest.mark.parametrize("shapes", [fuse.ON_GPU, fuse.ON_CPU])
def test_every_model_of_the_tables_runs_at_its_length(shapes):
    """With one layer, narrow, and one sequence of each batch."""
    for name, case in fuse.cases_of(1, 32, shapes).items():
        assert (case.batch, case.length) == shapes[name]
        runs = fuse.Runs(replace(case, batch=1), "inference", torch.device("cpu"), compiled=False)
        assert runs.rows["eager"].config._attn_implementation == "eager", name
        assert runs.outputs(runs.rows[fuse.FUSED]).isfinite().all(), name


def test_unknown_cases_are_listed(run, capsys):
    with pytest.raises(SystemExit):
        run("--cases", "gpt")
    assert "expected some of t5, bloom, bert, got gpt" in capsys.readouterr().err
