"""The folder of a run: its configuration, its log, its checkpoints and its result."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from headway.storage import atomic_path, environment, make_folder, read_json, remove_leftovers, write_json

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)


class RunStopped(RuntimeError):
    """A run that cannot continue; the message says why, which checkpoint is left, and what to do."""


class Diverged(RunStopped):
    """A training whose loss or gradients became NaN or infinite."""


@contextmanager
def explain_disk_errors(path: Path, left: Callable[[], str]) -> Iterator[None]:
    """Raise `RunStopped` if the disk is full or broken; `left` says from where the run can continue."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if isinstance(error, OSError) and error.errno not in DISK:
            raise
        raise RunStopped(
            f"{path} could not be written: {error}. {left()} Make room, then start again with --resume."
        ) from error


class RunFolder:
    """A run's folder: config.json from the beginning, log.jsonl and checkpoints/, at the end model/ and result.json."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.json"
        self.log_file = path / "log.jsonl"
        self.result_file = path / "result.json"
        self.checkpoints = path / "checkpoints"
        self.model = path / "model"
        self.runs = path / "runs"  # of a sweep

    @property
    def finished(self) -> bool:
        return self.result_file.is_file()

    @property
    def has_checkpoint(self) -> bool:
        return any(self.checkpoints.glob("[!.]*"))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder against other processes of this machine, until the block or this process ends."""
        import fcntl  # not on Windows

        make_folder(self.path)
        with (self.path / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunStopped(
                    f"out: another process is training in {self.path}. Wait for it, or name another folder."
                ) from None
            yield

    def open(self, config: Mapping[str, Any], *, resume: bool, free: Collection[str] = ()) -> None:
        """Begin the run of a configuration here, or resume it; raise if the folder holds anything else.

        A run that stopped before its first checkpoint may begin again, also with another configuration.

        Args:
            free: names of settings that a resumed run may change.
        """
        if self.config_file.is_file() and resume:
            self._check_same(config, free)
        elif self.config_file.is_file() and self._holds_work():
            raise FileExistsError(
                f"out: {self.path} holds a {'finished' if self.finished else 'stopped'} run. Add --resume "
                f"(resume=True) to {'read its result' if self.finished else 'go on with it'}, or name another folder."
            )
        elif not self.config_file.is_file() and any(self.path.glob("[!.]*")):
            raise FileExistsError(f"out: {self.path} holds files that are not a run's. Name another folder.")
        remove_leftovers(self.path)
        remove_leftovers(self.checkpoints)
        if not resume and self.runs.exists():  # left by an attempt that got no further than their configurations
            shutil.rmtree(self.runs)
        if not self.finished:
            before = read_json(self.config_file) if resume and self.config_file.is_file() else {}
            write_json(self.config_file, {**before, "config": config, "environment": environment()})

    def check_data(self, data: str, source: str | Path) -> None:
        """Record which data the run has; raise if it began with other data.

        A run from before this was recorded continues with the data that are there.

        Args:
            data: fingerprint of the data.
            source: where they are, for the message.
        """
        record = read_json(self.config_file)
        if self._holds_work() and record.get("data", data) != data:
            raise ValueError(
                f"resume: {self.path} began with other data than {source} has now. Put the old data back, or name "
                f"another folder (--out) to begin anew."
            )
        write_json(self.config_file, {**record, "data": data})

    def _holds_work(self) -> bool:
        """Return whether there is more than what a run has before its first checkpoint."""
        begun = {"config.json", "log.jsonl", "tensorboard", "data", "checkpoints", "runs"}
        others = {path.name for path in self.path.glob("[!.]*")} - begun
        return (
            bool(others) or self.has_checkpoint or any(RunFolder(run)._holds_work() for run in self.runs.glob("[!.]*"))
        )

    def _check_same(self, config: Mapping[str, Any], free: Collection[str]) -> None:
        before, now = flat(read_json(self.config_file)["config"]), flat(json.loads(json.dumps(config)))
        changed = [
            f"{name} was {json.dumps(before.get(name))} and is {json.dumps(now.get(name))}"
            for name in dict.fromkeys([*before, *now])
            if before.get(name) != now.get(name) and name not in free
        ]
        if changed:
            raise ValueError(
                f"resume: {self.path} began with another configuration: {'; '.join(changed)}. Resume with the old "
                f"values, or name another folder."
            )

    def logged(self, name: str) -> list[float]:
        """Return all values of a name in the log, in order."""
        entries = map(json.loads, self.log_file.read_text(encoding="utf-8").splitlines())
        return [entry[name] for entry in entries if name in entry]

    def rewind_log(self, step: int) -> None:
        """Remove lines of the log after a step, and a line at the end that a killed process left incomplete."""
        if not self.log_file.is_file():
            return
        kept = []
        for line in self.log_file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                break
            if entry["step"] <= step:
                kept.append(line + "\n")
        with atomic_path(self.log_file) as temporary:
            temporary.write_text("".join(kept), encoding="utf-8")


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings: {"data": {"length": 128}} becomes {"data.length": 128}."""
    result: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            result |= flat(value, f"{prefix}{key}.")
        else:
            result[prefix + key] = value
    return result
