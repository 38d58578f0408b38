"""Checkpoints: whole or not there, of tensors and numbers only, the same for one process and for sharded ones."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from headway.bench.tasks.training.runs import RunStopped, writing
from headway.storage import LEFTOVER, atomic_path, read_json, write_json


def save(
    folder: Path, step: int, model: dict[str, Tensor], optimizer: dict[str, Tensor], state: dict[str, Any]
) -> None:
    """Write the checkpoint of a step as a new folder; a failure leaves the ones before as they were.

    Args:
        folder: of all checkpoints of a run.
        step: steps taken.
        model, optimizer: from `model_tensors` and `optimizer_tensors`.
        state: numbers to have back.
    """
    target = folder / f"step-{step:08d}"
    with writing(target, lambda: last_good(folder)), atomic_path(target) as temporary:
        temporary.mkdir()
        save_file(model, temporary / "model.safetensors")
        save_file(optimizer, temporary / "optimizer.safetensors")
        write_json(temporary / "state.json", {"step": step, **state})


def prune(folder: Path, keep: int) -> None:
    """Delete all checkpoints but the last `keep`; to be called when a new one is whole."""
    for path in steps(folder)[:-keep]:
        going = path.rename(folder / f".{path.name}{LEFTOVER}")  # so that what is left of it is not taken for one
        shutil.rmtree(going)


def steps(folder: Path) -> list[Path]:
    """The whole checkpoints of a run, oldest first."""
    return sorted(path for path in folder.glob("step-*") if path.is_dir())


def last_good(folder: Path) -> str:
    """A sentence that says which checkpoint a run can go on from."""
    kept = steps(folder)
    return f"The last good checkpoint is {kept[-1]}." if kept else "There is no checkpoint yet."


def load(folder: Path, model: nn.Module, optimizer: Optimizer) -> dict[str, Any] | None:
    """Put the last checkpoint into model and optimizer and return its numbers; None where there is no checkpoint."""
    kept = steps(folder)
    if not kept:
        return None
    path = kept[-1]
    try:
        state: dict[str, Any] = read_json(path / "state.json")
        tensors, moments = load_file(path / "model.safetensors"), load_file(path / "optimizer.safetensors")
    except (OSError, ValueError, SafetensorError) as error:
        raise RunStopped(
            f"checkpoint: expected {path} to be whole, got: {error}. "
            f"Delete that folder to go on from the one before, then start again with --resume."
        ) from error
    _load_model(path, model, tensors)
    _load_optimizer(model, optimizer, moments)
    return state


def model_tensors(model: nn.Module, *, wanted: bool = True) -> dict[str, Tensor]:
    """Parameters and lasting buffers by name, on the CPU, tied ones once.

    Where parameters are sharded all processes must call this; those that do not want the tensors get none.
    """
    return _whole(_lasting(model).items(), wanted)


def optimizer_tensors(model: nn.Module, optimizer: Optimizer, *, wanted: bool = True) -> dict[str, Tensor]:
    """The optimizer's state of each parameter, as "name/kind", on the CPU."""
    named = (
        (f"{name}/{kind}", value)
        for name, parameter in model.named_parameters()
        for kind, value in optimizer.state.get(parameter, {}).items()
    )
    return _whole(named, wanted)


def _lasting(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and lasting buffers themselves, tied ones once."""
    saved = model.state_dict(keep_vars=True).keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in saved}
    return {**dict(model.named_parameters()), **buffers}


def _whole(named: Iterable[tuple[str, Tensor]], wanted: bool) -> dict[str, Tensor]:
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
    targets = _lasting(model)
    if targets.keys() != tensors.keys():
        raise RunStopped(
            f"checkpoint: expected in {path} the tensors of this model, got others: "
            f"{', '.join(sorted(targets.keys() ^ tensors.keys())[:5])}. Was it written by another version?"
        )
    for name, target in targets.items():
        if target.shape != tensors[name].shape:
            raise RunStopped(
                f"checkpoint: expected {name} of shape {tuple(target.shape)}, as in this model, got "
                f"{tuple(tensors[name].shape)} in {path}. Has the tokenizer of its data changed since? Put the old "
                f"data back, or name another folder (--out) to begin anew."
            )
        target.copy_(_like(target, tensors[name]))


def _load_optimizer(model: nn.Module, optimizer: Optimizer, tensors: dict[str, Tensor]) -> None:
    state: dict[str, dict[str, Tensor]] = {}
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        name, kind = key.rsplit("/", 1)
        state.setdefault(name, {})[kind] = value if kind == "step" else _like(parameters[name], value)
    index = {id(p): i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    by_index = {index[id(parameters[name])]: kinds for name, kinds in state.items()}
    optimizer.load_state_dict({"state": by_index, "param_groups": optimizer.state_dict()["param_groups"]})


def _like(target: Tensor, value: Tensor) -> Tensor:
    """The value, cut as the target is."""
    if isinstance(target, DTensor):
        return distribute_tensor(value.to(target.device), target.device_mesh, target.placements, src_data_rank=None)
    return value
