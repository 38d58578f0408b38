"""`run.py` counts what its processes wrote, and says whether the record is of the present kernels."""

from __future__ import annotations

import json

import run


def test_a_test_counts_once_and_a_failure_stays(tmp_path):
    (tmp_path / "1.jsonl").write_text(
        '{"test": "a", "outcome": "started", "text": ""}\n{"test": "a", "outcome": "passed", "text": ""}\n'
        '{"test": "b", "outcome": "passed", "text": ""}\n{"test": "b", "outcome": "failed", "text": "teardown"}\n'
    )
    (tmp_path / "2.jsonl").write_text('{"test": "c", "outcome": "started", "text": ""}\n')
    found = run.outcomes(tmp_path)
    assert {test: line["outcome"] for test, line in found.items()} == {"a": "passed", "b": "failed", "c": "failed"}
    assert (found["b"]["text"], found["c"]["text"]) == ("teardown", "its process ended")


def test_the_record_is_compared_with_the_kernels(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "RECORD", tmp_path / "record.json")
    run.check()
    assert "there is none" in capsys.readouterr().out
    record = {"sources": run.sources(), "passed": 3, "failed": 0, "gpu": "some GPU", "date": "2026-01-01"}
    run.RECORD.write_text(json.dumps(record))
    run.check()
    assert capsys.readouterr().out == "GPU tests: 3 passed on some GPU, 2026-01-01.\n"
    changed = {**record["sources"], "triton/hopper.cuh": "another", "gone.py": "there no more"}
    run.RECORD.write_text(json.dumps({**record, "sources": changed, "failed": 1}))
    run.check()
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("GPU tests: 3 passed, 1 failed on some GPU")
    assert "Changed since: gone.py, triton/hopper.cuh; run make test-gpu" in line
