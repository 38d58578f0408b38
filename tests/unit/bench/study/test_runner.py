"""The runner: order, isolation of failures, and nothing lost or done twice, whatever is killed when."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace

import pytest

from headway.bench.study.executors import LocalExecutor
from headway.bench.study.runner import Runner
from headway.bench.study.store import Store, write_records


def run(jobs, path, slots=2, **rest):
    runner = Runner(jobs, Store(path), **rest)
    with LocalExecutor(slots) as executor:
        runner.run(executor)
    return runner


def states(runner):
    return {progress.job.label: progress.state for progress in runner.progress.values()}


def lines(path, job, name):
    file = path / job.key / name
    return file.read_text().splitlines() if file.exists() else []


def test_jobs_follow_their_needs(fakes, job, tmp_path):
    began = []
    first = job("first")
    left, right = job("left", [first]), job("right", [first])
    last = job("last", [left, right])

    def watch(progress):
        if progress is not None and progress.state == "running":
            began.append(progress.job.label)

    runner = run([first, left, right, last], tmp_path / "jobs", on_change=watch)
    assert set(states(runner).values()) == {"done"}
    assert began[0] == "first" and began[-1] == "last"
    assert runner.progress[last.key].result == {"name": "last", "value": 0.0}
    assert "begins, process" in (tmp_path / "jobs" / last.key / "log.txt").read_text()


def test_jobs_that_others_wait_for_begin_first(fakes, job, tmp_path):
    """The longest way is begun early; a job that nothing waits for fills in."""
    began = []
    first = job("first")
    leaf, middle = job("leaf", [first]), job("middle", [first])
    last = job("last", [middle])

    def watch(progress):
        if progress is not None and progress.state == "running":
            began.append(progress.job.label)

    run([first, leaf, middle, last], tmp_path / "jobs", slots=1, on_change=watch)
    assert began == ["first", "middle", "leaf", "last"]


def kept(folder, *jobs):
    return write_records(folder, {each.key: {"key": each.key, "result": {"kept": 1}, "seconds": 2.0} for each in jobs})


def test_kept_results_count_as_done(fakes, job, tmp_path):
    text = job("text")
    model, other = job("model", [text]), job("other", [text])
    score = job("score", [model])
    kept(tmp_path / "kept", text, model, score)
    runner = Runner([text, model, score], Store(tmp_path / "jobs", kept=tmp_path / "kept"))
    with LocalExecutor(1) as executor:
        runner.run(executor)
    assert not (tmp_path / "jobs").exists()
    assert runner.progress[score.key].result == {"kept": 1} and runner.progress[score.key].seconds == 2.0
    runner = Runner([text, model, score, other], Store(tmp_path / "jobs", kept=tmp_path / "kept"))
    with LocalExecutor(1) as executor:
        runner.run(executor)
    assert set(states(runner).values()) == {"done"}
    assert runner.progress[model.key].result == {"kept": 1}  # nothing that is to be done reads its folder
    assert runner.progress[text.key].result == {"name": "text", "value": 0.0}  # done again, for what it writes
    assert runner.progress[other.key].result == {"name": "other", "value": 0.0}


def test_a_result_that_is_read_need_not_be_made_again(fakes, job, tmp_path):
    """Unlike a folder that is needed: of the trials of a choice, and of the choice, the kept results suffice."""
    trials = [job("trial 1", value=1.0), job("trial 2", value=2.0)]
    choice = job("choice", reads=trials)
    model = job("model", reads=[choice])
    kept(tmp_path / "kept", *trials)
    runner = Runner([*trials, choice, model], Store(tmp_path / "jobs", kept=tmp_path / "kept"))
    with LocalExecutor(2) as executor:
        runner.run(executor)
    assert set(states(runner).values()) == {"done"}
    assert not any(lines(tmp_path / "jobs", each, "attempts") for each in trials)
    read = tmp_path / "jobs" / choice.key / "read"
    assert json.loads((read / "trial 1.json").read_text()) == {"kept": 1}
    assert json.loads((tmp_path / "jobs" / model.key / "read" / "choice.json").read_text())["name"] == "choice"
    assert choice.key != replace(choice, reads={}).key
    with pytest.raises(ValueError, match="expected jobs that stand before it"):
        Runner([choice, *trials], Store(tmp_path / "others"))


def test_text_that_is_not_the_kept_one_is_no_text_for_others(fakes, job, tmp_path):
    text = replace(job("text", value=2.0), kind="text")
    other = job("other", [text])
    record = {"key": text.key, "result": {"name": "text", "value": 1.0}, "seconds": 2.0}
    write_records(tmp_path / "kept", {text.key: record})
    for _ in range(2):  # what was made once is not taken the next time
        runner = Runner([text, other], Store(tmp_path / "jobs", kept=tmp_path / "kept"))
        with LocalExecutor(1) as executor:
            runner.run(executor)
        assert states(runner) == {"text": "failed", "other": "skipped"} and runner.progress[text.key].result is None
        assert "text: the data differ from those of the results in" in runner.progress[text.key].why
        assert ": value was 1.0 and is 2.0. Put the old files back" in runner.progress[text.key].why
    write_records(tmp_path / "kept", {text.key: {**record, "result": {"value": 2.0}}})
    runner = Runner([text, other], Store(tmp_path / "jobs", kept=tmp_path / "kept"))
    with LocalExecutor(1) as executor:
        runner.run(executor)
    assert set(states(runner).values()) == {"done"}


def test_a_kept_job_that_fails_when_it_is_done_again_has_failed(fakes, job, tmp_path):
    text = job("text", fails=True)
    other = job("other", [text])
    kept(tmp_path / "kept", text)
    runner = Runner([text, other], Store(tmp_path / "jobs", kept=tmp_path / "kept"))
    with LocalExecutor(1) as executor:
        runner.run(executor)
    assert states(runner) == {"text": "failed", "other": "skipped"}


def test_what_was_left_does_not_bring_kept_jobs_back(fakes, job, tmp_path):
    text = job("text")
    other = job("other", [text])
    kept(tmp_path / "kept", text)
    runner = Runner([text, other], Store(tmp_path / "jobs", kept=tmp_path / "kept"))
    runner.leave_out([other.key])
    with LocalExecutor(1) as executor:
        runner.run(executor)
    assert states(runner) == {"text": "done", "other": "left"}


def test_kept_results_that_cannot_be_read_are_named(job, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"kept: expected jobs.jsonl in .*headway report STUDY --keep"):
        Store(tmp_path / "jobs", kept=tmp_path)
    path = kept(tmp_path, job("a"), job("b"))
    path.write_text(path.read_text().splitlines()[0] + '\n{"key": "b", "resu\n')
    with pytest.raises(ValueError, match=r"jobs.jsonl, line 2: expected the result of a job, got"):
        Store(tmp_path / "jobs", kept=tmp_path)


def test_what_is_done_is_not_done_again_in_any_study(fakes, job, tmp_path):
    jobs = [job("a"), job("b")]
    run(jobs, tmp_path / "jobs")
    again = run([*jobs, job("c", jobs)], tmp_path / "jobs")
    assert set(states(again).values()) == {"done"}
    assert [progress.earlier for progress in again.progress.values()] == [True, True, False]
    assert all(len(lines(tmp_path / "jobs", each, "attempts")) == 1 for each in jobs)


def test_equal_jobs_are_one(fakes, job, tmp_path):
    runner = run([job("a"), job("a")], tmp_path / "jobs")
    assert len(runner.progress) == 1
    assert job("a", seconds=1).key != job("a").key


def test_a_failure_is_reported_with_its_log_and_stops_nobody_else(fakes, job, tmp_path):
    said = []
    bad = job("bad", fails=True)
    after, later = job("after", [bad]), None
    later = job("later", [after])
    good = job("good")
    runner = run([bad, after, later, good], tmp_path / "jobs", say=said.append)
    assert states(runner) == {"bad": "failed", "after": "skipped", "later": "skipped", "good": "done"}
    assert str(tmp_path / "jobs" / bad.key / "log.txt") in said[0]
    assert "a line of its log" in said[0] and "ValueError: the reason of bad" in said[0]
    assert runner.progress[after.key].why == "needs bad, which failed"
    assert runner.progress[later.key].why == "needs after, which was skipped"
    assert not (tmp_path / "jobs" / bad.key / "result.json").exists()
    run([bad], tmp_path / "jobs")
    assert len(lines(tmp_path / "jobs", bad, "attempts")) == 2  # a new study tries again


def test_needs_must_stand_before(job, tmp_path):
    first = job("first")
    with pytest.raises(ValueError, match="needs of second: expected jobs that stand before it, got first"):
        Runner([job("second", [first]), first], Store(tmp_path))


def test_jobs_that_measure_time_run_alone_and_last(fakes, job, tmp_path):
    from dataclasses import replace

    running, crowds = set(), []

    def watch(progress):
        if progress is None:
            return
        (running.add if progress.state == "running" else running.discard)(progress.job.label)
        if "alone" in running:
            crowds.append(set(running))

    alone = replace(job("alone", seconds=0.1), alone=True)
    others = [job(f"other {number}", seconds=0.1) for number in range(3)]
    runner = run([alone, *others], tmp_path / "jobs", on_change=watch)
    assert set(states(runner).values()) == {"done"}
    assert crowds == [{"alone"}]


def test_an_unreadable_result_is_named_and_done_again(fakes, job, tmp_path):
    one, two = job("one"), job("two")
    run([one, two], tmp_path / "jobs")
    (tmp_path / "jobs" / one.key / "result.json").write_text('{"key": "one", "resu')
    (tmp_path / "jobs" / two.key / "result.json").write_text(json.dumps({"key": "other", "result": {}}))
    said = []
    runner = run([one, two], tmp_path / "jobs", say=said.append)
    assert set(states(runner).values()) == {"done"}
    assert f"{tmp_path / 'jobs' / one.key / 'result.json'}: expected JSON" in said[0]
    assert f"expected the result of {two.key}, got something else" in said[1]
    assert len(list((tmp_path / "jobs" / one.key).glob("result.unreadable-*.json"))) == 1
    assert len(lines(tmp_path / "jobs", one, "attempts")) == 2


def test_a_killed_job_is_failed_and_the_next_ones_go_on(fakes, job, tmp_path):
    slow, quick = job("slow", seconds=60), job("quick", seconds=0.3)
    runner = Runner([slow, quick], Store(tmp_path / "jobs"))
    killed = []

    def watch(progress):
        attempts = lines(tmp_path / "jobs", slow, "attempts")
        if attempts and not killed:
            import os

            killed.append(os.kill(int(attempts[0]), signal.SIGKILL))

    runner._on_change = watch
    with LocalExecutor(2) as executor:
        runner.run(executor)
    assert states(runner) == {"slow": "failed", "quick": "done"}
    assert "killed by signal 9, perhaps for lack of memory" in runner.progress[slow.key].why


STUDY = textwrap.dedent(
    """
    import sys
    from pathlib import Path
    import headway.bench.processes as processes
    from headway.bench.study.executors import LocalExecutor
    from headway.bench.study.job import Job
    from headway.bench.study.store import Store
    from headway.bench.study.runner import Runner

    processes.start_method = lambda gpu: "spawn"
    if __name__ == "__main__":
        jobs = []
        for number in range(8):
            needs = {"before": jobs[number // 2].key} if number > 1 else {}
            config = {"name": str(number), "seconds": 0.15, "value": number}
            jobs.append(Job(kind="fake", config=config, needs=needs, label=str(number)))
        runner = Runner(jobs, Store(Path(sys.argv[1])))
        with LocalExecutor(2) as executor:
            runner.run(executor)
        assert all(progress.state == "done" for progress in runner.progress.values())
        print(sum(progress.result["value"] for progress in runner.progress.values()))
    """
)


def test_a_study_killed_at_random_moments_loses_nothing_and_does_nothing_twice(fakes, tmp_path):
    """The moments come after jobs that have begun, not after times, in which a busy machine may begin nothing."""
    script = tmp_path / "study.py"
    script.write_text(STUDY)
    command = [sys.executable, str(script), str(tmp_path / "jobs")]
    draw, kills = random.Random(), 0

    def begun():
        return sum(len(path.read_text().splitlines()) for path in tmp_path.glob("jobs/*/attempts"))

    for more in (0, 1, 1, 2, 1, 3):
        before = begun()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            while begun() < before + more and process.poll() is None:
                time.sleep(0.005)
            time.sleep(draw.uniform(0.0, 0.3))
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                kills += 1
            process.communicate()
    last = subprocess.run(command, capture_output=True, text=True)
    assert last.returncode == 0, last.stderr
    assert float(last.stdout) == sum(range(8))
    folders = [path for path in (tmp_path / "jobs").iterdir() if path.is_dir()]
    assert len(folders) == 8
    for folder in folders:  # the last attempt made the result; `fake` raises if one begins after it
        attempts, finished = ((folder / name).read_text().splitlines() for name in ("attempts", "finished"))
        assert attempts[-1] == finished[-1] and len(attempts) <= 1 + kills
    assert kills > 1
