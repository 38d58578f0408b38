"""A record of a benchmark belongs to a commit."""

import argparse
import subprocess

import pytest

from benchmarks import measure


@pytest.fixture
def repository(tmp_path, monkeypatch):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "benchmarks").mkdir()
    monkeypatch.setattr(measure, "__file__", str(tmp_path / "benchmarks" / "measure.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    git("init")
    (tmp_path / "file").write_text("one")
    git("add", "file")
    git("commit", "-m", "one")
    return tmp_path


def test_a_clean_tree_gives_its_commit_whatever_is_untracked(repository):
    (repository / "other").write_text("untracked")
    head = measure.environment()["commit"]
    assert len(head) >= 7 and not head.endswith("-dirty")
    assert measure.environment(commit=head[:7])["commit"] == head
    with pytest.raises(SystemExit, match="expected the commit that is checked out"):
        measure.environment(commit="0000000")


def test_uncommitted_changes_are_refused_unless_asked_for(repository):
    (repository / "file").write_text("two")
    with pytest.raises(SystemExit, match=r"uncommitted changes(.|\n)*--dirty"):
        measure.environment()
    assert measure.environment(dirty=True)["commit"].endswith("-dirty")


def test_without_a_repository_the_commit_must_be_given(tmp_path, monkeypatch):
    (tmp_path / "benchmarks").mkdir()
    monkeypatch.setattr(measure, "__file__", str(tmp_path / "benchmarks" / "measure.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    with pytest.raises(SystemExit, match="--commit HASH"):
        measure.environment()
    assert measure.environment(commit="abc1234")["commit"] == "abc1234"
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit, match="git could not be started"):
        measure.environment()


def test_both_options_are_read():
    parser = argparse.ArgumentParser()
    measure.add_record_options(parser)
    options = parser.parse_args(["--dirty", "--commit", "abc"])
    assert options.dirty and options.commit == "abc"
