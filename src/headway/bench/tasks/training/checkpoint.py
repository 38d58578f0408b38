"""Files of weights: checkpoints to resume from, snapshots of weights alone, and the final model.

A checkpoint is complete or absent, holds tensors and numbers only, and does not depend on how parameters were sharded.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from transformers import PreTrainedModel
from transformers.utils import logging

from headway.bench.tasks.training.run_folder import RunFolder, RunStopped, explain_disk_errors
from headway.storage import LEFTOVER, atomic_path, read_json, remove_leftovers, write_json


def save(
    folder: Path, step: int, model: dict[str, Tensor], optimizer: dict[str, Tensor], state: dict[str, Any]
) -> None:
    """Write the checkpoint of a step as a new folder; a failure leaves earlier checkpoints as they were.

    Args:
        folder: folder of all checkpoints of a run.
        step: number of steps taken.
        model: the tensors that `model_tensors` returned.
        optimizer: the tensors that `optimizer_tensors` returned.
        state: numbers that `load` will return.
    """
    target = folder / f"step-{step:08d}"
    with explain_disk_errors(target, lambda: last_checkpoint_hint(folder)), atomic_path(target) as temporary:
        temporary.mkdir()
        save_file(model, temporary / "model.safetensors")
        save_file(optimizer, temporary / "optimizer.safetensors")
        write_json(temporary / "state.json", {"step": step, **state})


def prune(folder: Path, keep: int) -> None:
    """Delete all checkpoints but the last `keep`. Call it when a new one is complete."""
    for path in steps(folder)[:-keep]:
        going = path.rename(
            folder / f".{path.name}{LEFTOVER}"
        )  # so that no half-deleted folder is taken for a checkpoint
        shutil.rmtree(going)


def steps(folder: Path) -> list[Path]:
    """Return the complete checkpoints of a run, oldest first."""
    return sorted(path for path in folder.glob("step-*") if path.is_dir())


def last_checkpoint_hint(folder: Path) -> str:
    """Return a sentence that names the checkpoint from which a run can be resumed."""
    kept = steps(folder)
    return f"The last good checkpoint is {kept[-1]}." if kept else "There is no checkpoint yet."


def load(folder: Path, model: nn.Module, optimizer: Optimizer) -> dict[str, Any] | None:
    """Load the last checkpoint into model and optimizer and return its numbers; None if there is no checkpoint."""
    kept = steps(folder)
    if not kept:
        return None
    path = kept[-1]
    try:
        state: dict[str, Any] = read_json(path / "state.json")
        tensors, moments = load_file(path / "model.safetensors"), load_file(path / "optimizer.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise RunStopped(
            f"checkpoint: {path} cannot be read: {error}. Delete that folder to continue from the one before, then "
            f"start again with --resume."
        ) from error
    _load_model(path, model, tensors)
    _load_optimizer(model, optimizer, moments)
    return state


def model_tensors(model: nn.Module, *, wanted: bool = True) -> dict[str, Tensor]:
    """Return parameters and persistent buffers by name, on the CPU, tied ones once.

    If parameters are sharded, all processes must call this; those that do not want the tensors get none.
    """
    return _gathered(_persistent(model).items(), wanted)


def optimizer_tensors(model: nn.Module, optimizer: Optimizer, *, wanted: bool = True) -> dict[str, Tensor]:
    """Return the optimizer's state of each parameter as "name/kind", on the CPU."""
    named = (
        (f"{name}/{kind}", value)
        for name, parameter in model.named_parameters()
        for kind, value in optimizer.state.get(parameter, {}).items()
    )
    return _gathered(named, wanted)


def _persistent(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and persistent buffers themselves, tied ones once."""
    saved = model.state_dict(keep_vars=True).keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in saved}
    return {**dict(model.named_parameters()), **buffers}


def _gathered(named: Iterable[tuple[str, Tensor]], wanted: bool) -> dict[str, Tensor]:
    tensors = {}
    for name, value in named:
        value = value.detach()
        if isinstance(value, DTensor):
            value = value.full_tensor()
        if wanted:
            tensors[name] = value.to("cpu", copy=True).contiguous()
    return tensors


@torch.no_grad()
def _load_model(path: Path, model: nn.Module, tensors: dict[str, Tensor]) -> None:
    targets = _persistent(model)
    if targets.keys() != tensors.keys():
        raise RunStopped(
            f"checkpoint: {path} has other tensors than this model, which differ in "
            f"{', '.join(sorted(targets.keys() ^ tensors.keys())[:5])}. Was it written by another version?"
        )
    for name, target in targets.items():
        if target.shape != tensors[name].shape:
            raise RunStopped(
                f"checkpoint: {name} has shape {tuple(tensors[name].shape)} in {path} and {tuple(target.shape)} in "
                f"this model. Has the tokenizer of its data changed? Put the old data back, or name another folder "
                f"(--out) to begin anew."
            )
        target.copy_(_sharded_like(target, tensors[name]))


def _load_optimizer(model: nn.Module, optimizer: Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[str, dict[str, Tensor]] = {}
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        name, kind = key.rsplit("/", 1)
        state.setdefault(name, {})[kind] = value if kind == "step" else _sharded_like(parameters[name], value)
    index = {id(p): i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    by_index = {index[id(parameters[name])]: kinds for name, kinds in state.items()}
    optimizer.load_state_dict({"state": by_index, "param_groups": optimizer.state_dict()["param_groups"]})


def _sharded_like(target: Tensor, value: Tensor) -> Tensor:
    """Return the value, sharded as the target is."""
    if isinstance(target, DTensor):
        return distribute_tensor(value.to(target.device), target.device_mesh, target.placements, src_data_rank=None)
    return value


class Snapshots:
    """Weights of a run without the optimizer's state: those of the last checkpoints, to be averaged, and the best.

    The folder holds step-NUMBER.safetensors and best-NUMBER.safetensors. They are written before the checkpoint of the
    same step, and older ones are deleted after it, so that a resumed run finds the weights that it needs.

    Args:
        last: number of last checkpoints whose weights are kept.
        keep_best: keep the weights with the lowest loss in an evaluation at the step of a checkpoint.
    """

    def __init__(self, folder: Path, *, last: int, keep_best: bool = False) -> None:
        self.folder, self.last, self.keep_best = folder, last, keep_best
        self.best: dict[str, Any] | None = None  # its step and its loss

    def note_loss(self, step: int, loss: float | None) -> dict[str, Any] | None:
        """Record the loss at a step, if it was evaluated, and return the step and the loss of the best weights."""
        if self.keep_best and loss is not None and (self.best is None or loss < self.best["loss"]):
            self.best = {"step": step, "loss": loss}
        return self.best

    def save(self, step: int, tensors: dict[str, Tensor]) -> None:
        """Write the weights of a step whose loss was recorded."""
        remove_leftovers(self.folder)
        kinds = ["step"] * (self.last > 0) + ["best"] * (self.best is not None and self.best["step"] == step)
        for kind in kinds:
            path = self._path(kind, step)
            with explain_disk_errors(path, lambda: "Earlier checkpoints are complete."), atomic_path(path) as temporary:
                save_file(tensors, temporary)

    def prune(self, step: int) -> None:
        """Delete weights that are no longer needed once the checkpoint of this step is complete."""
        best = [] if self.best is None else [self._path("best", self.best["step"])]
        for path in set(self.folder.glob("*.safetensors")) - {*self.steps(step), *best}:
            path.unlink()

    def steps(self, step: int) -> list[Path]:
        """Return the weights of the last checkpoints up to a step, oldest first."""
        there = sorted(path for path in self.folder.glob("step-*.safetensors") if path <= self._path("step", step))
        return there[max(0, len(there) - self.last) :] if self.last else []

    def best_weights(self) -> dict[str, Tensor]:
        """Load the best weights."""
        assert self.best is not None
        return load_file(self._path("best", self.best["step"]))

    def _path(self, kind: str, step: int) -> Path:
        return self.folder / f"{kind}-{step:08d}.safetensors"


def average(paths: Iterable[Path]) -> dict[str, Tensor]:
    """Average weights in float64; tensors that are not floating-point are those of the last.

    Paper:    Vaswani et al. (2017), Sec. 6.1; Shaw et al. (2018), Sec. 4.1, the last 20 of the big model
    """
    loaded = [load_file(path) for path in paths]
    if not loaded:
        raise ValueError("average: there are no weights to average.")
    return {
        name: torch.stack([each[name].double() for each in loaded]).mean(0).to(value.dtype)
        if value.is_floating_point()
        else value
        for name, value in loaded[-1].items()
    }


def save_model(folder: RunFolder, model: PreTrainedModel, tensors: dict[str, Tensor], tokenizer: Any) -> None:
    """Save model and tokenizer in the run's folder model/."""
    if folder.model.exists():  # left by a process that was killed before it wrote the result
        shutil.rmtree(folder.model)
    hint = partial(last_checkpoint_hint, folder.checkpoints)
    with explain_disk_errors(folder.model, hint), without_bar(), atomic_path(folder.model) as temporary:
        model.save_pretrained(temporary, state_dict=tensors)
        tokenizer.save_pretrained(temporary)


@contextmanager
def without_bar() -> Iterator[None]:
    """Hide the progress bar of transformers, which is not needed for one file."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
