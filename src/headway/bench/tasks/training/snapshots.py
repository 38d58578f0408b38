"""Weights alone, without the optimizer's state: those of the last checkpoints, to be averaged, and the best ones.

A run's folder weights/ holds step-NUMBER.safetensors and best-NUMBER.safetensors. They are written before the
checkpoint of the same step, and older ones removed after it, so that a run that goes on from a checkpoint finds what it
needs.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from headway.bench.tasks.training.runs import writing
from headway.storage import atomic_path, remove_leftovers


class Snapshots:
    """Weights of a run.

    Args:
        folder: where they are.
        last: how many of the last ones to keep.
        keep_best: whether to keep those with the lowest loss in an evaluation at the step of a checkpoint.
    """

    def __init__(self, folder: Path, *, last: int, keep_best: bool = False) -> None:
        self.folder, self.last, self.keep_best = folder, last, keep_best
        self.best: dict[str, Any] | None = None  # step and loss

    def judge(self, step: int, loss: float | None) -> dict[str, Any] | None:
        """Take note of the loss at a step, if it was evaluated; return which step is the best one now."""
        if self.keep_best and loss is not None and (self.best is None or loss < self.best["loss"]):
            self.best = {"step": step, "loss": loss}
        return self.best

    def save(self, step: int, tensors: dict[str, Tensor]) -> None:
        """Write the weights of a step that was judged."""
        remove_leftovers(self.folder)
        kinds = ["step"] * (self.last > 0) + ["best"] * (self.best is not None and self.best["step"] == step)
        for kind in kinds:
            path = self._path(kind, step)
            with writing(path, lambda: "The checkpoints before are whole."), atomic_path(path) as temporary:
                save_file(tensors, temporary)

    def prune(self, step: int) -> None:
        """Delete what is no longer needed when the checkpoint of this step is whole."""
        best = [] if self.best is None else [self._path("best", self.best["step"])]
        for path in set(self.folder.glob("*.safetensors")) - {*self.steps(step), *best}:
            path.unlink()

    def steps(self, step: int) -> list[Path]:
        """The last ones up to a step, oldest first."""
        there = sorted(path for path in self.folder.glob("step-*.safetensors") if path <= self._path("step", step))
        return there[max(0, len(there) - self.last) :] if self.last else []

    def best_weights(self) -> dict[str, Tensor]:
        assert self.best is not None
        return load_file(self._path("best", self.best["step"]))

    def _path(self, kind: str, step: int) -> Path:
        return self.folder / f"{kind}-{step:08d}.safetensors"


def average(paths: Iterable[Path]) -> dict[str, Tensor]:
    """The arithmetic mean of weights, summed in float64; what is no floating-point number is taken from the last.

    Paper:    Vaswani et al. (2017), Sec. 6.1; Shaw et al. (2018), Sec. 4.1, the last 20 of the big model
    """
    loaded = [load_file(path) for path in paths]
    if not loaded:
        raise ValueError("paths: expected the weights of at least one checkpoint, got none.")
    return {
        name: torch.stack([each[name].double() for each in loaded]).mean(0).to(value.dtype)
        if value.is_floating_point()
        else value
        for name, value in loaded[-1].items()
    }
