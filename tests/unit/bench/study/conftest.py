"""Jobs that do nothing but count how often they are done, in processes as real ones."""

from __future__ import annotations

import os
import textwrap

import pytest

from headway.bench.study.job import Job

FAKES = textwrap.dedent(
    '''
    """Replaces the kinds of jobs in every process that is started with this folder on its path."""
    import os, time
    import headway.bench.study.kinds as kinds


    def fake(config, inputs, folder):
        assert not (folder / "result.json").exists()
        with open(folder / "attempts", "a") as file:
            file.write(f"{os.getpid()}\\n")
        for path in inputs.values():
            assert path.is_file() or (path / "result.json").is_file()
        time.sleep(config.get("seconds", 0.0))
        if config.get("fails"):
            print("a line of its log")
            raise ValueError(f"the reason of {config['name']}")
        with open(folder / "finished", "a") as file:
            file.write(f"{os.getpid()}\\n")
        return {"name": config["name"], "value": config.get("value", 0.0)}


    kinds.KINDS.clear()
    kinds.KINDS["fake"] = kinds.KINDS["text"] = fake
    '''
)


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    """Workers that this process starts know the kind "fake" alone."""
    folder = tmp_path / "fakes"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(FAKES)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    monkeypatch.setattr("headway.bench.processes.start_method", lambda gpu: "spawn")
    return folder


def fake(name, needs=(), reads=(), **config):
    return Job(
        kind="fake",
        config={"name": name, **config},
        needs={job.label: job.key for job in needs},
        reads={job.label: job.key for job in reads},
        label=name,
    )


@pytest.fixture
def job():
    return fake
