"""What a run says: lines of JSON for machines, short ones for people."""

from __future__ import annotations

import json

import pytest

from headway.bench.tasks.training.journal import Journal
from headway.bench.tasks.training.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path):
    made = RunFolder(tmp_path)
    made.log_file.write_text('{"step": 5, "loss": 2.0}\n{"step": 10, "loss": 1.5}\n')
    return made


def test_lines_are_added_after_the_checkpoint(folder, capsys):
    with Journal(folder, steps=20, start=5, show=True, tensorboard=False) as journal:
        journal.step(15)
        journal.log({"step": 15, "loss": 1.25, "tokens_per_second": 12345.6, "learning_rate": 0.1})
        journal.log({"step": 15, "evaluation_loss": 1.5, "masked_accuracy": 0.25})
    lines = [json.loads(line) for line in folder.log_file.read_text().splitlines()]
    assert [line["step"] for line in lines] == [5, 15, 15]
    assert lines[1]["learning_rate"] == 0.1
    said = capsys.readouterr().err
    assert "step 15/20  loss 1.250, tokens per second 12,346\n" in said
    assert "step 15/20  evaluation loss 1.500, masked accuracy 25.0%\n" in said
    assert folder.logged("loss") == [2.0, 1.25]


def test_nothing_is_said_unless_asked(folder, capsys):
    with Journal(folder, steps=20, start=0, show=False, tensorboard=False) as journal:
        journal.log({"step": 1, "loss": 1.0})
    assert capsys.readouterr().err == ""


def test_a_bar_on_a_terminal(folder, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")  # how rich is told that it writes to a terminal
    with Journal(folder, steps=20, start=0, show=True, tensorboard=False) as journal:
        journal.step(10)
        journal.log({"step": 10, "loss": 1.25, "tokens_per_second": 50.0})
    said = capsys.readouterr().err
    assert "10/20" in said
    assert "loss 1.250, tokens per second 50" in said


def test_what_is_not_finite_is_not_written_as_if_it_were_json(folder):
    with Journal(folder, steps=20, start=0, show=False, tensorboard=False) as journal, pytest.raises(ValueError):
        journal.log({"step": 1, "loss": float("nan")})


@pytest.mark.parametrize(("start", "kept"), [(0, []), (5, [5])])
def test_curves_of_tensorboard_go_back_to_the_checkpoint(folder, start, kept):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for begun, steps in ((0, (5, 10)), (start, (15, 20))):
        with Journal(folder, steps=20, start=begun, show=False, tensorboard=True) as journal:
            for step in steps:
                journal.log({"step": step, "loss": 1.0})
    curves = EventAccumulator(str(folder.path / "tensorboard")).Reload()
    assert [point.step for point in curves.Scalars("loss")] == [*kept, 15, 20]
