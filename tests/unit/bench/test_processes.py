"""Worker processes: answers, errors, deaths, deadlines, and that nothing outlives the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from headway.bench import processes
from headway.bench.processes import Worker, WorkerDied, WorkerLate, end, ending, share_out, wait_for


def prepare(offset=0):
    """A function that a worker answers with."""

    def answer(what, value=None):
        if what == "add":
            return value + offset
        if what == "fail":
            raise value
        if what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "exit":
            os._exit(value)
        if what == "sleep":
            time.sleep(value)
        if what == "start":
            return subprocess.Popen(["sleep", "600"]).pid
        if what == "print":
            print(value, flush=True)
            os.system("echo from a process of its own")
        if what == "look":
            return os.getpid(), os.environ.get(value)
        return None

    return answer


def broken():
    raise KeyError("not ready")


@pytest.fixture(params=["spawn", pytest.param("forkserver", marks=pytest.mark.skipif("sys.platform != 'linux'"))])
def worker(request, monkeypatch):
    monkeypatch.setattr(processes, "start_method", lambda gpu: request.param)
    made = Worker(prepare, 3, gpu=False, threads=1, environment={"HEADWAY_TEST": "set"})
    yield made
    end([made], 0)


def ask(worker, *request, deadline=None):
    worker.ask(*request)
    return worker.answer(deadline)


def is_alive(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{process}/stat") as status:
        return status.read().split()[2] != "Z"


def soon(true, seconds=30):
    limit = time.monotonic() + seconds
    while not true() and time.monotonic() < limit:
        time.sleep(0.01)
    return true()


def test_a_worker_answers_and_goes_on_after_an_error(worker):
    assert ask(worker, "add", 4) == 7
    with pytest.raises(ValueError, match="wrong") as caught:
        ask(worker, "fail", ValueError("wrong"))
    assert "in answer" in caught.value.__notes__[0]  # where it was raised
    assert ask(worker, "add", 5) == 8
    number, variable = ask(worker, "look", "HEADWAY_TEST")
    assert (number, variable) == (worker.process.pid, "set")
    assert ask(worker, "look", "OMP_NUM_THREADS")[1] == "1"


def test_an_error_that_cannot_be_sent_is_sent_as_text(worker):
    class Local(Exception):
        pass

    worker.ask("add", "text")  # of a type that Python raises itself
    with pytest.raises(TypeError):
        worker.answer()
    with pytest.raises(AttributeError):  # a request that cannot be sent is the caller's mistake
        worker.ask("fail", Local("here"))


def test_a_worker_that_dies_says_how(worker):
    with pytest.raises(WorkerDied, match=r"its process ended \(killed by signal 9, perhaps for lack") as caught:
        ask(worker, "die")
    assert caught.value.status == -signal.SIGKILL
    with pytest.raises(WorkerDied):
        ask(worker, "add", 1)


def test_an_exit_code_is_told(worker):
    with pytest.raises(WorkerDied, match=r"its process ended \(exit code 3\)"):
        ask(worker, "exit", 3)


def test_a_deadline_is_kept(worker):
    ask(worker, "add", 1)
    with pytest.raises(WorkerLate):
        ask(worker, "sleep", 60, deadline=time.monotonic() + 0.1)
    assert wait_for([worker], 0) == []


def test_what_a_worker_started_ends_with_it(worker):
    started = ask(worker, "start")
    assert is_alive(started)
    worker.kill()
    assert soon(lambda: not is_alive(started))


def test_what_it_prints_goes_to_its_log(tmp_path):
    made = Worker(prepare, gpu=False, log=tmp_path / "log.txt")
    with ending([made]):
        ask(made, "print", "a line")
    assert (tmp_path / "log.txt").read_text() == "a line\nfrom a process of its own\n"


def test_a_failure_to_prepare_is_the_first_answer():
    made = Worker(broken, gpu=False)
    with ending([made]), pytest.raises(KeyError, match="not ready"):
        ask(made, "add", 1)


def test_requests_are_shared_out_in_order_and_all_are_answered():
    workers = [Worker(prepare, gpu=False) for _ in range(2)]
    with ending(workers):
        found = dict(share_out(workers, [("add", number) for number in range(7)]))
    assert found == {("add", number): number for number in range(7)}


def test_after_a_failure_what_is_under_way_is_finished_and_nothing_else_begun(tmp_path):
    workers = [Worker(prepare, gpu=False) for _ in range(2)]
    wrong = ValueError("wrong")
    requests = [("sleep", 1.0), ("fail", wrong), ("add", 1)]
    with ending(workers):
        for each in workers:  # both are ready, so that the first two requests begin together
            ask(each, "add", 1)
        answered = []
        with pytest.raises(ValueError, match="wrong"):
            answered.extend(request for request, _ in share_out(workers, requests))
    assert answered == [("sleep", 1.0)]


def test_workers_that_are_busy_are_killed_in_the_end():
    workers = [Worker(prepare, gpu=False) for _ in range(2)]
    workers[0].ask("sleep", 600)
    began = time.monotonic()
    end(workers, 1.0)
    assert time.monotonic() - began < 30
    assert not any(each.process.is_alive() for each in workers)


INTERRUPTED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from headway.bench.processes import Worker, ending
sys.path.append(sys.argv[1])
from test_processes import prepare

if __name__ == "__main__":
    workers = []
    try:
        with ending(workers):
            workers.append(Worker(prepare, gpu=sys.argv[2] == "spawn", preload=["slow_module"]))
            workers[0].answer()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""
SLOW_MODULE = """
import time
print("imported", flush=True)
time.sleep(3)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="starts a fork server")
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_ctrl_c_while_workers_start_is_the_parents_alone(tmp_path, method):
    (tmp_path / "parent.py").write_text(INTERRUPTED)
    (tmp_path / "slow_module.py").write_text(SLOW_MODULE)
    (tmp_path / "sitecustomize.py").write_text(
        "" if method == "forkserver" else "import sys\nif '--multiprocessing-fork' in sys.argv: import slow_module"
    )
    command = [sys.executable, str(tmp_path / "parent.py"), os.path.dirname(__file__), method]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    parent = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None and parent.stdout.readline() == "imported\n"
    os.killpg(parent.pid, signal.SIGINT)
    out, errors = parent.communicate(timeout=60)
    assert (out, errors) == ("interrupted\n", "")


PARENT = """
import sys, time
from headway.bench.processes import Worker
sys.path.append(sys.argv[1])
from test_processes import prepare

if __name__ == "__main__":
    worker = Worker(prepare, gpu=sys.argv[2] == "spawn")
    worker.ask("start")
    print(worker.process.pid, worker.answer(), flush=True)
    worker.ask("sleep", 600)
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_worker_ends_with_a_parent_that_is_killed(tmp_path, method):
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    command = [sys.executable, str(script), os.path.dirname(__file__), method]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    numbers = [int(number) for number in parent.stdout.readline().split()]
    assert all(map(is_alive, numbers))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert soon(lambda: not any(map(is_alive, numbers)))
