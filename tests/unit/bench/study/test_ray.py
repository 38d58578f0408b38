"""Jobs on a Ray cluster of two workers, which is started and stopped here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

STUDY = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    from headway.bench.study.executors import RayExecutor
    from headway.bench.study.job import Job
    from headway.bench.study.store import Store
    from headway.bench.study.runner import Runner

    first = Job(kind="fake", config={"name": "first", "value": 1}, label="first")
    bad = Job(kind="fake", config={"name": "bad", "fails": True}, label="bad")
    last = Job(kind="fake", config={"name": "last", "value": 2}, needs={"first": first.key}, label="last")
    runner = Runner([first, bad, last], Store(Path(sys.argv[1])))
    with RayExecutor() as executor:
        print("slots", executor.slots)
        runner.run(executor)
    for progress in runner.progress.values():
        print(progress.job.label, progress.state, progress.result and progress.result["value"])
        print(progress.why)
    """
)


@pytest.fixture
def cluster(fakes):
    """The environment in which a cluster of two workers is found; its workers know the fake jobs."""
    ray = shutil.which("ray", path=str(Path(sys.executable).parent))
    if ray is None:
        pytest.skip("ray is not installed: pip install 'headway[ray]'")
    begin = [ray, "start", "--head", "--num-cpus", "2", "--port", "0", "--include-dashboard", "false"]
    with tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True) as temporary:
        # pytest's own folders have paths that are too long for Ray's sockets.
        settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": temporary, "PYTHONWARNINGS": "ignore"}
        environment = {**os.environ, **settings}
        started = subprocess.run(begin, env=environment, capture_output=True, text=True, timeout=300)
        assert started.returncode == 0, started.stderr
        yield environment
        subprocess.run([ray, "stop"], env=environment, capture_output=True, timeout=120)


@pytest.mark.slow
def test_jobs_run_on_a_cluster(cluster, tmp_path):
    script = tmp_path / "study.py"
    script.write_text(STUDY)
    command = [sys.executable, str(script), str(tmp_path / "jobs")]
    done = subprocess.run(command, env=cluster, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "slots 2" in done.stdout
    assert "first done 1" in done.stdout and "last done 2" in done.stdout
    assert "bad failed None" in done.stdout and "ValueError: the reason of bad" in done.stdout
