"""A study from plan to results: lock its folder, run its jobs, collect their results."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from headway.bench.study.collect import collect_results
from headway.bench.study.estimate import Estimates, free_bytes, wall_time
from headway.bench.study.executors import Executor
from headway.bench.study.graph import Planned, jobs
from headway.bench.study.job import DATA_KINDS, Job
from headway.bench.study.kinds import sources_changed_since
from headway.bench.study.plan import Plan
from headway.bench.study.runner import Progress, Runner
from headway.bench.study.store import Store, Unreadable
from headway.bench.study.view import View, duration
from headway.bench.tasks.training.run_folder import RunFolder, RunStopped
from headway.storage import read_json, write_json

COLLECT_EVERY = 20.0  # seconds after which results.json is written again while jobs run
DISK_MARGIN = 1.2  # free bytes wanted for each estimated byte


class Study:
    """A plan with its folder, which holds plan.json, results.json and, unless a shared store is given, jobs/.

    Args:
        kept: folder that `headway report --keep` wrote, whose jobs count as done.
    """

    def __init__(
        self, plan: Plan, out: Path, *, store: Path | None = None, kept: Path | None = None, gpu: bool = False
    ) -> None:
        self.plan, self.out = plan, out
        self.store = Store(store or out / "jobs", kept=kept)
        self.planned: list[Planned] = jobs(plan)
        self.estimates = Estimates(self.store, gpu=gpu)
        self._check_folder()

    def _check_folder(self) -> None:
        path = self.out / "plan.json"
        if path.is_file():
            saved = read_json(path)
            name, size = saved.get("name"), saved.get("size")
            if (name, size) != (self.plan.name, self.plan.size):
                raise FileExistsError(
                    f"out: expected a new folder or one of study {self.plan.name} ({self.plan.size}), got {self.out}, "
                    f"which is of study {name} ({size}). Name another folder; --store shares its jobs."
                )
        elif self.out.is_dir() and any(self.out.glob("[!.]*")):
            raise FileExistsError(
                f"out: expected a new folder or one of a study, got {self.out}, which holds other files. "
                f"Name another folder."
            )

    def run(self, executor: Executor, *, console: Console, command: str, rows: Collection[str] = ()) -> dict[str, Any]:
        """Run the jobs that are not done, write results.json, and return it. A killed study continues where it was.

        Args:
            rows: names of the rows whose jobs are done now; none given means all. Finished jobs of other rows are
                collected too.
        """
        _check_rows(self.plan, rows)
        self._check_sources()
        with RunFolder(self.out).locked():
            return self._run(executor, console, command, rows)

    def _check_sources(self) -> None:
        """Raise if a file that a finished job read has changed, because new results could not be compared with it."""
        for job in {each.job.key: each.job for each in self.planned}.values():
            try:
                record = self.store.result(job.key)
            except Unreadable:  # the runner does it again
                continue
            if record is None or (job.kind in DATA_KINDS and not self.store.is_here(job.key)):
                continue
            if sources_changed_since(job.kind, job.config, self.store.folder(job.key), record["result"]):
                raise ValueError(
                    f"'{job.label}' was done with files that have changed since. Put the old files back; or name "
                    f"another --out, and another --store where one was named, to begin anew."
                )
            if difference := self.store.difference_from_kept(job):
                raise ValueError(difference)

    def _run(self, executor: Executor, console: Console, command: str, rows: Collection[str]) -> dict[str, Any]:
        written = 0.0
        runner: Runner

        def results() -> dict[str, Any]:
            places = {"store": self.store.path, "kept": self.store.kept}
            relative = {
                name: None if path is None else os.path.relpath(path, self.out) for name, path in places.items()
            }
            return collect_results(self.plan, self.planned, runner.progress, command=command, places=relative)

        view = View(console, self.estimates, executor.slots, lambda: best_so_far(results()))

        def update(progress: Progress | None) -> None:
            nonlocal written
            view.update(progress)
            if progress is not None and progress.state == "done" and time.monotonic() - written > COLLECT_EVERY:
                self._write(results())
                written = time.monotonic()

        runner = Runner([each.job for each in self.planned], self.store, on_change=update, say=view.say)
        if rows:
            runner.leave_out({each.job.key for each in self.planned} - set(self._jobs_of(rows)))
        self._check_disk(runner)
        self._write(asdict(self.plan), "plan.json")
        with view:
            view.watch(runner)
            runner.run(executor)
        final = results()
        self._write(final)
        return final

    def _write(self, value: Any, name: str = "results.json") -> None:
        try:
            write_json(self.out / name, value)
        except OSError as error:
            raise RunStopped(
                f"{self.out / name} could not be written: {error}. Finished jobs stay in {self.store.path}: make room, "
                f"then give the same command again."
            ) from error

    def _check_disk(self, runner: Runner) -> None:
        waiting = [progress.job for progress in runner.progress.values() if progress.state == "waiting"]
        needed, free = DISK_MARGIN * sum(self.estimates.of(job).bytes for job in waiting), free_bytes(self.store.path)
        if needed > free:
            raise RunStopped(
                f"store: the jobs need about {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free at "
                f"{self.store.path}. Make room, or name another --store."
            )

    def _jobs_of(self, rows: Collection[str]) -> dict[str, Job]:
        """Return the jobs of some rows by key, with those that they need, such as another row's model; or all jobs."""
        every = {each.job.key: each.job for each in self.planned}
        chosen = {each.job.key for each in self.planned if not rows or each.row in (None, *rows)}
        following = list(chosen)
        while following:
            needed = set(every[following.pop()].after.values()) - chosen
            chosen |= needed
            following += needed
        return {key: job for key, job in every.items() if key in chosen}

    def outline(self, slots: int, rows: Collection[str] = ()) -> list[str]:
        """Return lines that list the jobs, whether each is done, and else how long it will take. Nothing is run.

        Args:
            rows: names of the rows whose jobs are listed; without any, all rows.
        """
        _check_rows(self.plan, rows)
        lines, waiting, size = [], [], 0.0
        unique = self._jobs_of(rows)
        for job in unique.values():
            if self.store.result(job.key) is not None:
                lines.append(f"{'done' if self.store.is_here(job.key) else 'kept':>10}  {job.label}")
                continue
            estimate = self.estimates.of(job)
            waiting.append(job)
            size += estimate.bytes
            mark = " (measured)" if estimate.measured else ""
            lines.append(f"{duration(estimate.seconds):>10}  {job.label}{mark}")
        took = duration(wall_time(waiting, self.estimates, slots))
        lines.append(
            f"{len(unique)} jobs, {len(waiting)} to do: about {took} with {slots} at once, "
            f"and {size / 1e9:.2g} GB of disk in {self.store.path}."
        )
        return [*lines, self.estimates.assumptions()]


def _check_rows(plan: Plan, rows: Collection[str]) -> None:
    known = [row.name for row in plan.rows]
    unknown = [name for name in rows if name not in known]
    if unknown:
        raise ValueError(f"rows: the plan has no {'; '.join(unknown)}. Its rows are {'; '.join(known)}.")


def best_so_far(results: dict[str, Any]) -> list[str]:
    """Return a line for each column, with its best row."""
    lines = []
    derived = {row["name"] for row in results["rows"] if row.get("derived")}
    for column, cells in zip(results["columns"], results["cells"], strict=True):
        medians = {
            name: cell["summary"]["median"] for name, cell in cells.items() if cell["summary"] and name not in derived
        }
        if medians:
            choose: Callable[..., str] = max if column["higher"] else min
            name = choose(medians, key=lambda row: medians[row])
            lines.append(f"{column['name']} {name} {medians[name]:.{column['digits']}f}")
    return lines
