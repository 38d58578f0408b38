"""Runs the jobs of a study in the order of their needs. Finished jobs are kept, and a failed one stops no other."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.bench.processes import describe_exit
from headway.bench.study.executors import Executor
from headway.bench.study.job import Job
from headway.bench.study.store import Store, Unreadable

WAIT = 0.5  # seconds after which the view is updated if no job has ended
TAIL = 15  # last lines of a failed job's log that are shown


@dataclass(kw_only=True)
class Progress:
    """Where a job stands.

    Args:
        state: waiting, running, done, failed, skipped (because a job that it needs failed), or left for another time.
        earlier: whether it was done before this study began.
        why: reason, for failed and skipped jobs.
    """

    job: Job
    state: str = "waiting"
    began: float | None = None
    seconds: float | None = None
    earlier: bool = False
    why: str = ""
    record: dict[str, Any] | None = field(default=None, repr=False)

    @property
    def result(self) -> dict[str, Any] | None:
        return None if self.record is None else self.record["result"]


class Runner:
    """Runs jobs, and has the progress of each of them by key.

    Args:
        on_change: called with the job whenever one begins or ends, and with None at least every `WAIT` seconds.
        say: called with messages for the user.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        store: Store,
        *,
        on_change: Callable[[Progress | None], None] = lambda progress: None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.store, self._on_change, self._say = store, on_change, say
        self.progress: dict[str, Progress] = {}
        for job in jobs:
            missing = [name for name, key in job.after.items() if key not in self.progress]
            if missing:
                raise ValueError(f"needs of {job.label}: expected jobs that stand before it, got {', '.join(missing)}.")
            self.progress.setdefault(job.key, Progress(job=job))
        self.needed = {key for job in jobs for key in job.after.values()}
        for progress in self.progress.values():
            self._read_result(progress, earlier=True)

    def leave_out(self, keys: Collection[str]) -> None:
        """Do not run these jobs; the results of those that are done are still used."""
        for key in keys:
            if self.progress[key].state == "waiting":
                self.progress[key].state = "left"

    def run(self, executor: Executor) -> None:
        """Run jobs until none is left that can be run."""
        self._redo_exported()
        try:
            while self._begin(executor) or self._running():
                for folder, status in executor.ended(WAIT):
                    self._end(self.progress[folder.name], status)
                self._on_change(None)
        finally:
            for progress in self._running():
                progress.state = "waiting"

    def _redo_exported(self) -> None:
        """Run jobs again of which only the result was kept, if a job that is still to be run needs their folder."""
        for progress in reversed(self.progress.values()):  # needs stand before
            if progress.state == "waiting":
                for key in progress.job.needs.values():
                    if self.progress[key].state == "done" and not self.store.is_here(key):
                        self.progress[key] = Progress(job=self.progress[key].job)

    def _running(self) -> list[Progress]:
        return [progress for progress in self.progress.values() if progress.state == "running"]

    def _begin(self, executor: Executor) -> bool:
        """Start the jobs that can be started, and return whether any was."""
        started = False
        for progress in self._ready():
            running = self._running()
            alone = progress.job.alone or any(each.job.alone for each in running)
            if len(running) >= executor.slots or (alone and running):
                break
            executor.start(self.store.write_request(progress.job))
            progress.state, progress.began, started = "running", time.time(), True
            self._on_change(progress)
        return started

    def _ready(self) -> list[Progress]:
        """Return the waiting jobs whose needs are done: first those that others need, and last those that run alone.

        A waiting job with a failed need becomes skipped.
        """
        waiting = [each for each in self.progress.values() if each.state == "waiting"]
        for progress in waiting:
            needs = [self.progress[key] for key in progress.job.after.values()]
            if missing := next((need for need in needs if need.state in ("failed", "skipped")), None):
                outcome = "failed" if missing.state == "failed" else "was skipped"
                progress.state, progress.why = "skipped", f"needs {missing.job.label}, which {outcome}"
                self._on_change(progress)
        ready = [
            each
            for each in waiting
            if each.state == "waiting" and all(self.progress[key].state == "done" for key in each.job.after.values())
        ]
        ready.sort(key=lambda each: each.job.key not in self.needed)
        shared = [each for each in ready if not each.job.alone]
        if shared or any(not each.job.alone for each in waiting if each.state == "waiting"):
            return shared
        return ready

    def _end(self, progress: Progress, status: int) -> None:
        progress.seconds = time.time() - (progress.began or time.time())
        if self.store.is_here(progress.job.key):  # a kept result does not hide that the job failed now
            self._read_result(progress, earlier=False)
        difference = self.store.difference_from_kept(progress.job)
        if difference:
            self.store.set_aside(progress.job.key, "other")
            progress.record = None
        if difference or progress.state != "done":
            progress.state, progress.why = "failed", difference or self._failure(progress, status)
            self._say(progress.why)
        self._on_change(progress)

    def _read_result(self, progress: Progress, *, earlier: bool) -> None:
        """Read the result of a job, if there is one. If it cannot be read, rename it, so that the job is done again."""
        key = progress.job.key
        try:
            progress.record = self.store.result(key)
        except Unreadable as error:
            aside = self.store.set_aside(key)
            self._say(f"{error} It is now {aside.name}, and {progress.job.label} is done again.")
        if progress.record is not None:
            progress.state, progress.earlier = "done", earlier
            progress.seconds = progress.record["seconds"]

    def _failure(self, progress: Progress, status: int) -> str:
        """Describe how a job failed, with the path and the last lines of its log."""
        log = self.store.folder(progress.job.key) / "log.txt"
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
        message = f"run '{progress.job.label}' failed ({describe_exit(status)}); its log is {log}, which ends:"
        return "\n".join([message, *(f"  {line}" for line in lines[-TAIL:])])
