"""The folder of a run: begun once, gone on with only as it was begun."""

from __future__ import annotations

import json

import pytest

from headway.bench.tasks.training.run_folder import RunFolder, RunStopped, explain_disk_errors, flat
from headway.storage import read_json, write_json

CONFIG = {"seed": 0, "text": {"length": 64, "corpus": ("builtin", "a.txt")}, "model": {"options": {}}}


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "run")


def test_a_new_run_writes_what_it_was_asked_and_where_it_ran(folder):
    folder.open(CONFIG, resume=False)
    written = read_json(folder.config_file)
    assert written["config"] == json.loads(json.dumps(CONFIG))
    assert written["environment"]["torch"]


def test_resume_begins_where_there_is_nothing(folder):
    folder.open(CONFIG, resume=True)
    assert folder.config_file.is_file()


def test_the_same_configuration_goes_on(folder):
    folder.open(CONFIG, resume=False)
    (folder.path / ".result.json.0badf00d.tmp").write_text("{")  # of a killed process
    folder.open(CONFIG, resume=True)
    assert [path.name for path in folder.path.iterdir()] == ["config.json"]


def test_a_second_run_must_say_resume(folder):
    folder.open(CONFIG, resume=False)
    (folder.checkpoints / "step-00000001").mkdir(parents=True)
    with pytest.raises(FileExistsError, match=r"holds a stopped run\. Add --resume .* to go on with it"):
        folder.open(CONFIG, resume=False)
    write_json(folder.result_file, {})
    with pytest.raises(FileExistsError, match=r"holds a finished run\. Add --resume .* to read its result"):
        folder.open(CONFIG, resume=False)


def test_what_stopped_before_its_first_checkpoint_may_begin_anew(folder):
    folder.open(CONFIG, resume=False)
    folder.log_file.write_text('{"step": 1}\n')
    folder.checkpoints.mkdir()
    folder.open({**CONFIG, "seed": 1}, resume=False)
    assert read_json(folder.config_file)["config"]["seed"] == 1
    (folder.path / "run-of-a-sweep").mkdir()
    with pytest.raises(FileExistsError, match="holds a stopped run"):
        folder.open({**CONFIG, "seed": 1}, resume=False)


def test_a_sweep_of_which_no_run_got_anywhere_may_begin_anew(folder):
    folder.open(CONFIG, resume=False)
    run = RunFolder(folder.runs / "rate-1-seed-0")
    run.open(CONFIG, resume=True)
    folder.open({**CONFIG, "seed": 1}, resume=False)
    assert not folder.runs.exists()  # its configuration would be in the way of the new one
    run.open(CONFIG, resume=True)
    run.checkpoints.mkdir()
    (run.checkpoints / "epoch-1").mkdir()
    with pytest.raises(FileExistsError, match="holds a stopped run"):
        folder.open({**CONFIG, "seed": 1}, resume=False)
    assert run.has_checkpoint


def test_a_changed_configuration_is_refused_by_the_names_of_what_changed(folder):
    folder.open(CONFIG, resume=False)
    changed = {
        **CONFIG,
        "seed": 3,
        "text": {"length": 128, "corpus": ("builtin", "a.txt")},
        "model": {"options": {"rank": 8}},
    }
    with pytest.raises(ValueError, match=r"resume: .* began with another configuration") as caught:
        folder.open(changed, resume=True)
    message = str(caught.value)
    assert "seed was 0 and is 3" in message
    assert "text.length was 64 and is 128" in message
    assert "model.options.rank" in message
    assert "corpus" not in message


def test_data_that_changed_are_refused_once_there_is_work_with_the_old_ones(folder):
    folder.open(CONFIG, resume=False)
    folder.check_data("old", "data")
    folder.open(CONFIG, resume=True)
    folder.check_data("other", "data")  # nothing was trained yet
    (folder.checkpoints / "step-00000001").mkdir(parents=True)
    folder.open(CONFIG, resume=True)
    folder.check_data("other", "data")
    with pytest.raises(ValueError, match=r"began with other data than data has now\. Put the old data"):
        folder.check_data("old", "data")
    write_json(folder.config_file, {"config": CONFIG})  # as runs had it before data were written down
    folder.open(CONFIG, resume=True)
    folder.check_data("old", "data")
    assert read_json(folder.config_file)["data"] == "old"


def test_a_folder_of_something_else_is_left_alone(folder):
    folder.path.mkdir()
    (folder.path / "thesis.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="holds files that are not a run's"):
        folder.open(CONFIG, resume=True)
    assert (folder.path / "thesis.txt").read_text() == "mine"
    assert not folder.config_file.exists()


@pytest.mark.parametrize("inside", ["", "runs", "runs/first"])
def test_a_file_where_the_folder_should_be_is_named(tmp_path, inside):
    (tmp_path / "thesis.txt").write_text("mine")
    said = r"out: expected a folder, got .*thesis\.txt, which is a file\. Name another one"
    with pytest.raises(FileExistsError, match=said), RunFolder(tmp_path / "thesis.txt" / inside).locked():
        pass
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_the_log_goes_back_to_the_checkpoint(folder):
    folder.open(CONFIG, resume=False)
    lines = [json.dumps({"step": step, "loss": 1.0}) + "\n" for step in (10, 20, 30)]
    folder.log_file.write_text("".join(lines) + '{"step": 40, "lo')
    folder.rewind_log(20)
    assert folder.log_file.read_text() == "".join(lines[:2])
    folder.rewind_log(0)
    assert folder.log_file.read_text() == ""


def test_what_cannot_be_written_is_said_with_what_is_left(tmp_path):
    said = r"log.jsonl could not be written: .*No space left.* All is lost. Make room.*--resume"
    with pytest.raises(RunStopped, match=said), explain_disk_errors(tmp_path / "log.jsonl", lambda: "All is lost."):
        raise OSError(28, "No space left on device")


def test_what_is_no_fault_of_the_disk_is_left_as_it_is(tmp_path):
    with pytest.raises(PermissionError), explain_disk_errors(tmp_path / "log.jsonl", lambda: ""):
        raise PermissionError(13, "Permission denied")


def test_flat():
    assert flat({"a": {"b": {"c": 1}, "d": {}}, "e": [2]}) == {"a.b.c": 1, "a.d": {}, "e": [2]}
