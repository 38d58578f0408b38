"""Run all of tests/gpu in several processes, with nothing but pytest, and record what passed.

    make test-gpu                                  # or: python tests/gpu/run.py [--processes 14]
    python tests/gpu/run.py --again                # only what failed
    python tests/gpu/run.py --check                # is the record of the kernels as they are?

Every process collects all tests and runs those that it claims before the others do, by making a file that only one of
them can make. Each begins at a place of its own, because neighbours often share what they compile. A process in which
CUDA failed ends, because all its later tests would fail too; another takes its place. The record,
tests/gpu/record.json, is written if no test was left out, and is committed with the sources it is of.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import date
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORD = ROOT / "tests" / "gpu" / "record.json"
CUDA_BROKE = 70  # exit status of a process that cannot go on


class Share:
    """A plugin of pytest: runs tests that no other process has claimed, and writes a line for each."""

    def __init__(self, folder: Path, begin: float, only: set[str] | None) -> None:
        self.folder, self.lines = folder, folder / f"{os.getpid()}.jsonl"
        self.begin, self.only = begin, only

    def pytest_runtestloop(self, session):
        tests = [test for test in session.items if self.only is None or test.nodeid in self.only]
        first = int(self.begin * len(tests))
        mine = filter(self._claim, tests[first:] + tests[:first])
        test = next(mine, None)
        while test is not None:
            following = next(mine, None)  # whose fixtures pytest keeps
            test.config.hook.pytest_runtest_protocol(item=test, nextitem=following)
            test = following
        return True

    def _claim(self, test: pytest.Item) -> bool:
        try:
            (self.folder / hashlib.sha256(test.nodeid.encode()).hexdigest()).touch(exist_ok=False)
        except FileExistsError:
            return False  # somebody else's
        self._write(test.nodeid, "started")
        return True

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or report.outcome != "passed":
            self._write(report.nodeid, report.outcome, "" if report.passed else str(report.longrepr)[-3000:])
        if report.failed and ("CUDA error" in str(report.longrepr) or "CUDA:" in str(report.longrepr)):
            os._exit(CUDA_BROKE)  # the one test that it has claimed ahead counts as failed

    def _write(self, test: str, outcome: str, text: str = "") -> None:
        with self.lines.open("a") as file:
            file.write(json.dumps({"test": test, "outcome": outcome, "text": text}) + "\n")


def outcomes(folder: Path) -> dict[str, dict[str, str]]:
    """The last line of each test: failed if it failed at any stage, or if its process ended in it."""
    found: dict[str, dict[str, str]] = {}
    for path in folder.glob("*.jsonl"):
        for line in map(json.loads, path.read_text().splitlines()):
            if found.get(line["test"], {}).get("outcome") != "failed":
                found[line["test"]] = line
    for line in found.values():
        if line["outcome"] == "started":
            line |= {"outcome": "failed", "text": "its process ended"}
    return found


def run_all(processes: int, more: list[str]) -> dict[str, dict[str, str]]:
    with tempfile.TemporaryDirectory() as name:
        folder, environment = Path(name), {**os.environ, "OMP_NUM_THREADS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])

        def start(begin: float) -> subprocess.Popen[bytes]:
            command = [sys.executable, __file__, "--share", name, "--begin", str(begin), *more]
            return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)

        running = {start(number / processes): number / processes for number in range(processes)}
        told, started = 0, time.monotonic()
        while running:
            time.sleep(1)
            for process in [process for process in running if process.poll() is not None]:
                begin = running.pop(process)
                if process.returncode == CUDA_BROKE or process.returncode < 0:
                    running[start(begin)] = begin
            done = (
                Counter(line["outcome"] for line in outcomes(folder).values())
                if int(time.monotonic()) % 30 == 0
                else {}
            )
            if done and sum(done.values()) != told:
                told = sum(done.values())
                print(f"{time.monotonic() - started:4.0f} s: {dict(done)}", flush=True)
        return outcomes(folder)


def sources() -> dict[str, str]:
    """A hash of each file that decides what a GPU runs: not of the backends that refuse whatever is not on a CPU."""
    attention, found = ROOT / "src" / "headway" / "attention", {}
    for path in sorted(attention.rglob("*")):
        of_cpu = path.relative_to(attention).parts[0] in ("blockwise", "native")
        if path.suffix in (".py", ".cu", ".cuh", ".cpp") and not of_cpu:
            found[path.relative_to(attention).as_posix()] = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    return found


def check() -> None:
    """Say in a line what passed, and which sources have changed since."""
    if not RECORD.exists():
        print("tests/gpu/record.json: there is none. Run make test-gpu on a GPU and commit it.")
        return
    record, now = json.loads(RECORD.read_text()), sources()
    failed = f", {record['failed']} failed" if record["failed"] else ""
    changed = sorted({file for file, _ in set(now.items()) ^ set(record["sources"].items())})
    since = (
        f" Changed since: {', '.join(changed)}; run make test-gpu on a GPU and commit its record." if changed else ""
    )
    print(f"GPU tests: {record['passed']} passed{failed} on {record['gpu']}, {record['date']}.{since}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 1) - 2))
    parser.add_argument("--record", type=Path, default=RECORD)
    parser.add_argument("--again", action="store_true", help="run the tests that failed, and correct the record")
    parser.add_argument("--check", action="store_true", help="compare the record with the sources, and run nothing")
    parser.add_argument("--share", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--begin", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--only", type=Path, help=argparse.SUPPRESS)
    options, more = parser.parse_known_args()
    if options.check:
        check()
        return 0
    if options.share is not None:
        only = None if options.only is None else set(json.loads(options.only.read_text())["failures"])
        share = Share(options.share, options.begin, only)
        return int(pytest.main(["tests/gpu", "-p", "no:cacheprovider", *more], plugins=[share]))

    import torch
    import triton

    if not torch.cuda.is_available():
        print("make test-gpu needs a CUDA GPU; without one, make test interprets the kernels.")
        return 1
    before = json.loads(options.record.read_text()) if options.again else {}
    started = time.monotonic()
    found = run_all(options.processes, [*more, "--only", str(options.record)] if options.again else more)
    counts = Counter(line["outcome"] for line in found.values())
    failures = {test: line["text"] for test, line in sorted(found.items()) if line["outcome"] == "failed"}
    for test, text in failures.items():
        print(f"FAILED {test}\n{text[-1500:]}\n")
    seconds = time.monotonic() - started
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped in {seconds:.0f} s")
    if not more:  # all of them
        passed = {test for test, line in found.items() if line["outcome"] == "passed"}
        again = set(before.get("failures", []))
        record = {
            "sources": before.get("sources", sources()), "gpu": torch.cuda.get_device_name(),
            "torch": torch.__version__, "triton": triton.__version__, "date": date.today().isoformat(),
            "passed": before.get("passed", 0) + counts["passed"], "failed": len(again - passed | set(failures)),
            "skipped": before.get("skipped", 0) + counts["skipped"], "failures": sorted(again - passed | set(failures)),
            "passed_again": sorted(again & passed | set(before.get("passed_again", []))),
            "seconds": round(seconds), "processes": options.processes,
        }  # fmt: skip
        options.record.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if failures or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
