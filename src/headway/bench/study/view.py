"""The progress of a study: a live table on a terminal, a line for each job elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from headway.bench.study.estimate import Estimates, wall_time
from headway.bench.study.runner import Progress, Runner

SHOWN = 12  # running jobs that are listed
BEST_EVERY = 5.0  # seconds between updates of the best rows


class View:
    """Shows the progress of a runner while its `with` block runs.

    Args:
        best: function that returns a line for each column, with the best row so far.
    """

    def __init__(self, console: Console, estimates: Estimates, slots: int, best: Callable[[], list[str]]) -> None:
        self._console, self._estimates, self._slots, self._best = console, estimates, slots, best
        self._live = Live(console=console, refresh_per_second=2, transient=True) if console.is_terminal else None
        self._runner: Runner | None = None
        self._best_lines: tuple[float, list[str]] = (0.0, [])

    def watch(self, runner: Runner) -> None:
        """Show the jobs of this runner from now on."""
        self._runner = runner
        done = sum(progress.state == "done" for progress in runner.progress.values())
        if done:
            self.say(f"{done} of {len(runner.progress)} jobs are done already")

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """Print a line above the live table."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def update(self, progress: Progress | None) -> None:
        if self._runner is None:
            return
        if progress is not None and progress.state == "done" and progress.record is not None:
            self._estimates.learn(progress.job, progress.record)
        if self._live is not None:
            self._live.update(self._render())
        elif progress is not None and progress.state in ("done", "failed", "skipped"):
            states = [each.state for each in self._runner.progress.values()]
            took = "" if progress.seconds is None else f" in {duration(progress.seconds)}"
            why = f": {progress.why}" if progress.state == "skipped" else ""
            ended = sum(state in ("done", "failed", "skipped") for state in states)
            left = f", about {duration(self._left())} left" if ended < len(states) else ""
            self.say(f"{ended}/{len(states)} {progress.state}: {progress.job.label}{took}{why}{left}")

    def _left(self) -> float:
        assert self._runner is not None
        waiting = [each.job for each in self._runner.progress.values() if each.state in ("waiting", "running")]
        return wall_time(waiting, self._estimates, self._slots)

    def _render(self) -> Any:
        assert self._runner is not None
        every = list(self._runner.progress.values())
        counts = {
            state: sum(each.state == state for each in every) for state in ("done", "running", "failed", "skipped")
        }
        words = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
        table = Table.grid(padding=(0, 2))
        running = [each for each in every if each.state == "running"]
        for each in running[:SHOWN]:
            table.add_row("running", Text(each.job.label), duration(time.time() - (each.began or time.time())))
        if time.monotonic() - self._best_lines[0] > BEST_EVERY:
            self._best_lines = (time.monotonic(), self._best())
        head = Text(f"{words} of {len(every)} jobs; about {duration(self._left())} left")
        bar = ProgressBar(total=len(every), completed=counts["done"] + counts["failed"] + counts["skipped"], width=60)
        best = Text("best so far: " + "; ".join(self._best_lines[1])) if self._best_lines[1] else Text("")
        line = Table.grid()  # a bar alone would not end its line
        line.add_row(bar)
        return Group(head, line, table, best)


def duration(seconds: float) -> str:
    """Format seconds as 45 s, 12 min, 3 h 20 min or 2 d 4 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"
