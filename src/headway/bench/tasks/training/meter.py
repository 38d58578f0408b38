"""Loss and gradient norm, kept on the device until somebody asks, so that no step waits for the host."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from headway.bench.tasks.training.processes import Processes


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """The mean loss since the last reset, the last gradient norm, and the first step with one that is not finite."""

    loss: float
    gradient_norm: float
    broken_step: int | None


class Meter:
    """Sums over the steps since the last reset; `total` and `steps` can be saved and given back."""

    def __init__(self, processes: Processes, *, total: float = 0.0, steps: int = 0) -> None:
        self.processes = processes
        self.steps = steps
        self._total = torch.tensor(total, dtype=torch.float64, device=processes.device)
        self._norm = torch.zeros((), device=processes.device)
        self._broken = torch.full((), math.inf, dtype=torch.float64, device=processes.device)

    def add(self, step: int, loss: Tensor, norm: Tensor) -> None:
        """One step, counted from 0: this process's loss, whose mean over processes is the step's, and the norm."""
        self.steps += 1
        self._total += loss
        self._norm = norm
        finite = torch.isfinite(loss) & torch.isfinite(norm)
        self._broken = torch.where(finite, self._broken, self._broken.clamp(max=step))

    def read(self) -> Reading:
        """What all processes saw. All of them must ask; this is where the host waits for the device."""
        total, norm = torch.stack([self._mean(), self._norm.double()]).tolist()
        return Reading(loss=total / max(1, self.steps), gradient_norm=norm, broken_step=self.broken_step())

    def broken_step(self) -> int | None:
        """The first step, counted from 0, whose loss or gradients were not finite."""
        step = self._broken.item()
        return None if math.isinf(step) else int(step)

    def saved(self) -> dict[str, Any]:
        """What the constructor wants to have back. All processes must ask."""
        return {"total": self._mean().item(), "steps": self.steps}

    def reset(self) -> None:
        self.steps = 0
        self._total.zero_()

    def _mean(self) -> Tensor:
        mean: Tensor = self.processes.total(self._total) / self.processes.world
        return mean
