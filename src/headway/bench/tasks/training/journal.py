"""The progress of a run: lines of JSON in a file, a bar or lines on the terminal, curves for TensorBoard."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from headway.bench.tasks.training.checkpoint import last_checkpoint_hint
from headway.bench.tasks.training.distributed import Processes
from headway.bench.tasks.training.run_folder import RunFolder, explain_disk_errors

SHOWN = {
    "loss": ".3f",
    "tokens_per_second": ",.0f",
    "evaluation_loss": ".3f",
    "masked_accuracy": ".1%",
    "score": ".1%",
    "bleu": ".1f",
    "exact_match": ".1%",
}


class Journal:
    """Reports the progress of a run; a context for the main process.

    Args:
        folder: folder of the run, whose log.jsonl gets a line of JSON for each `log`.
        steps: number of steps of the whole run.
        start: number of steps taken before; later lines of the log are removed.
        show: show a bar on a terminal and a line for each `log` elsewhere, on standard error.
        tensorboard: also write curves to the folder's tensorboard/.
    """

    def __init__(self, folder: RunFolder, *, steps: int, start: int, show: bool, tensorboard: bool) -> None:
        folder.rewind_log(start)
        self._folder = folder
        self._file = folder.log_file.open("a", encoding="utf-8")
        self._steps = steps
        self._writer = _tensorboard(folder.path / "tensorboard", start) if tensorboard else None
        console = Console(stderr=True)
        self._console = console if show and not console.is_terminal else None
        self._bar = _bar(console) if show and console.is_terminal else None
        self._task = None if self._bar is None else self._bar.add_task("", total=steps, completed=start, said="")
        self._said: dict[str, str] = {}

    def __enter__(self) -> Journal:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        if self._writer is not None:
            self._writer.close()
        self._file.close()

    def step(self, done: int) -> None:
        """Move the bar to so many steps."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done)

    def log(self, entry: dict[str, Any]) -> None:
        """Log numbers by name; "step" is the number of steps taken."""
        with explain_disk_errors(self._folder.log_file, lambda: last_checkpoint_hint(self._folder.checkpoints)):
            self._file.write(json.dumps(entry, allow_nan=False) + "\n")
            self._file.flush()
        step = entry["step"]
        self._said |= {name: f"{entry[name]:{form}}" for name, form in SHOWN.items() if name in entry}
        if self._console is not None:
            now = (f"{name.replace('_', ' ')} {self._said[name]}" for name in SHOWN if name in entry)
            self._console.print(f"step {step}/{self._steps}  {', '.join(now)}", highlight=False)
        if self._bar is not None and self._task is not None:
            said = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in self._said.items())
            self._bar.update(self._task, said=said)
        if self._writer is not None:
            for name, value in entry.items():
                if name != "step":
                    self._writer.add_scalar(name, value, step)

    def sync(self) -> None:
        """Make sure that the log is on the disk."""
        os.fsync(self._file.fileno())


def _bar(console: Console) -> Progress:
    return Progress(
        BarColumn(bar_width=24), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[said]}"),
        console=console,
    )  # fmt: skip


def _tensorboard(folder: Path, start: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("The package tensorboard is not installed: pip install 'headway[tensorboard]'.") from error
    return SummaryWriter(str(folder), purge_step=start + 1)  # drops later points of earlier attempts


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """The mean loss since the last reset, the last gradient norm, and the first step where either was not finite."""

    loss: float
    gradient_norm: float
    broken_step: int | None


class Meter:
    """Loss and gradient norm since the last reset, kept on the device so that no step waits for the host.

    Args:
        total, steps: state that `saved` returned.
    """

    def __init__(self, processes: Processes, *, total: float = 0.0, steps: int = 0) -> None:
        self.processes = processes
        self.steps = steps
        self._total = torch.tensor(total, dtype=torch.float64, device=processes.device)
        self._norm = torch.zeros((), device=processes.device)
        self._broken = torch.full((), math.inf, dtype=torch.float64, device=processes.device)

    def add(self, step: int, loss: Tensor, norm: Tensor) -> None:
        """Add a step, counted from 0: this process's loss, whose mean over processes is the step's, and the norm."""
        self.steps += 1
        self._total += loss
        self._norm = norm
        finite = torch.isfinite(loss) & torch.isfinite(norm)
        self._broken = torch.where(finite, self._broken, self._broken.clamp(max=step))

    def read(self) -> Reading:
        """Return the values over all processes, which must all call this. The host waits for the device here."""
        total, norm = torch.stack([self._mean(), self._norm.double()]).tolist()
        return Reading(loss=total / max(1, self.steps), gradient_norm=norm, broken_step=self.broken_step())

    def broken_step(self) -> int | None:
        """Return the first step, counted from 0, whose loss or gradients were not finite."""
        step = self._broken.item()
        return None if math.isinf(step) else int(step)

    def saved(self) -> dict[str, Any]:
        """Return the state for the constructor. All processes must call this."""
        return {"total": self._mean().item(), "steps": self.steps}

    def reset(self) -> None:
        """Begin a new mean."""
        self.steps = 0
        self._total.zero_()

    def _mean(self) -> Tensor:
        mean: Tensor = self.processes.sum(self._total) / self.processes.world
        return mean
