"""Does the jobs of a study in the order of their needs; what is done stays done, and what fails stops nobody else."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.bench.study.executors import KILLED, Executor
from headway.bench.study.job import Job, Store, Unreadable

WAIT = 0.5  # seconds between looks
TAIL = 15  # lines of a log that tell why a job failed


@dataclass(kw_only=True)
class Progress:
    """Where a job stands.

    Args:
        state: waiting, running, done, failed, skipped (for lack of what it needs), or left for another time.
        earlier: done before this study began, so that nothing was computed.
        why: of failed and skipped jobs.
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
    """All jobs of a study, by key.

    Args:
        told: called with the job whenever one begins or ends, and with None from time to time.
        say: called with what a user should know.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        store: Store,
        *,
        told: Callable[[Progress | None], None] = lambda progress: None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.store, self._told, self._say = store, told, say
        self.all: dict[str, Progress] = {}
        for job in jobs:
            missing = [name for name, key in job.needs.items() if key not in self.all]
            if missing:
                raise ValueError(f"needs of {job.label}: expected jobs that stand before it, got {', '.join(missing)}.")
            self.all.setdefault(job.key, Progress(job=job))
        self.needed = {key for job in jobs for key in job.needs.values()}
        for progress in self.all.values():
            self._look(progress, earlier=True)

    def leave(self, keys: Collection[str]) -> None:
        """Do not do these jobs now; what is done of them counts."""
        for key in keys:
            if self.all[key].state == "waiting":
                self.all[key].state = "left"

    def run(self, executor: Executor) -> None:
        """Until nothing can be done any more."""
        self._want_folders()
        try:
            while self._begin(executor) or self._running():
                for folder, status in executor.ended(WAIT):
                    self._end(self.all[folder.name], status)
                self._told(None)
        finally:
            for progress in self._running():
                progress.state = "waiting"

    def _want_folders(self) -> None:
        """A job of which only the result was kept is done again where one that is to be done reads its folder."""
        for progress in reversed(self.all.values()):  # needs stand before
            if progress.state == "waiting":
                for key in progress.job.needs.values():
                    if self.all[key].state == "done" and not self.store.is_here(key):
                        self.all[key] = Progress(job=self.all[key].job)

    def _running(self) -> list[Progress]:
        return [progress for progress in self.all.values() if progress.state == "running"]

    def _begin(self, executor: Executor) -> bool:
        """Start what can be started; whether anything was."""
        started = False
        for progress in self._ready():
            running = self._running()
            alone = progress.job.alone or any(each.job.alone for each in running)
            if len(running) >= executor.slots or (alone and running):
                break
            executor.start(self.store.ask(progress.job))
            progress.state, progress.began, started = "running", time.time(), True
            self._told(progress)
        return started

    def _ready(self) -> list[Progress]:
        """Waiting jobs whose needs are done: those that others wait for before others, and those that run alone last,
        when everything else is done."""
        waiting = [each for each in self.all.values() if each.state == "waiting"]
        for progress in waiting:
            lost = [
                self.all[key] for key in progress.job.needs.values() if self.all[key].state in ("failed", "skipped")
            ]
            if lost:
                progress.state, progress.why = "skipped", f"needs {lost[0].job.label}, which {lost[0].state}"
                self._told(progress)
        ready = [
            each
            for each in waiting
            if each.state == "waiting" and all(self.all[key].state == "done" for key in each.job.needs.values())
        ]
        ready.sort(key=lambda each: each.job.key not in self.needed)
        shared = [each for each in ready if not each.job.alone]
        if shared or any(not each.job.alone for each in waiting if each.state == "waiting"):
            return shared
        return ready

    def _end(self, progress: Progress, status: int) -> None:
        progress.seconds = time.time() - (progress.began or time.time())
        if self.store.is_here(progress.job.key):  # what was kept of it does not make up for a failure
            self._look(progress, earlier=False)
        others = self.store.unlike_kept(progress.job)
        if others:
            self.store.set_aside(progress.job.key, "other")
            progress.record = None
        if others or progress.state != "done":
            progress.state, progress.why = "failed", others or self._reason(progress, status)
            self._say(f"failed: {progress.job.label}\n{progress.why}")
        self._told(progress)

    def _look(self, progress: Progress, *, earlier: bool) -> None:
        """Take a result that is there; one that cannot be read is renamed, and the job done again."""
        key = progress.job.key
        try:
            progress.record = self.store.result(key)
        except Unreadable as error:
            aside = self.store.set_aside(key)
            self._say(f"{error} It is now {aside.name}, and {progress.job.label} is done again.")
        if progress.record is not None:
            progress.state, progress.earlier = "done", earlier
            progress.seconds = progress.record["seconds"]

    def _reason(self, progress: Progress, status: int) -> str:
        log = self.store.folder(progress.job.key) / "log.txt"
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
        killed = f", killed by signal {-status}" if status < 0 else ""
        memory = ", perhaps for lack of memory" if status == KILLED else ""
        return "\n".join([f"{log} (status {status}{killed}{memory}):", *lines[-TAIL:]])
