"""The folder of a run: what it was asked, what it logged, what came out."""

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
    """A run that cannot go on; the message says why, what is left of it, and what to do."""


@contextmanager
def explain_disk_errors(path: Path, left: Callable[[], str]) -> Iterator[None]:
    """Say in plain words that the disk is full or broken; `left` tells what is left of the run."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        if isinstance(error, OSError) and error.errno not in DISK:
            raise
        raise RunStopped(
            f"{path}: expected to write it, got: {error}. {left()} Make room, then start again with --resume."
        ) from error


class RunFolder:
    """config.json when a run begins, log.jsonl and checkpoints/ as it goes, model/ and result.json when it is done."""

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
        """Keep other processes of this machine out of the folder, until the block ends or this process dies."""
        import fcntl  # not on Windows

        make_folder(self.path)
        with (self.path / ".lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise RunStopped(
                    f"out: expected a folder that nobody uses, got {self.path}, where another process is training. "
                    f"Wait for it, or name another folder."
                ) from None
            yield

    def open(self, config: Mapping[str, Any], *, resume: bool, free: Collection[str] = ()) -> None:
        """Begin the run of a configuration here, or go on with it; refuse where the folder holds anything else.

        A run that stopped before its first checkpoint may be begun anew, with another configuration too.

        Args:
            free: names in the configuration that may differ from attempt to attempt.
        """
        if self.config_file.is_file() and resume:
            self._check_same(config, free)
        elif self.config_file.is_file() and self._holds_work():
            raise FileExistsError(
                f"out: expected a new folder, got {self.path}, which holds a "
                f"{'finished' if self.finished else 'stopped'} run. Add --resume (resume=True) to "
                f"{'read its result' if self.finished else 'go on with it'}, or name another folder."
            )
        elif not self.config_file.is_file() and any(self.path.glob("[!.]*")):
            raise FileExistsError(
                f"out: expected a new folder or one of a run, got {self.path}, which holds other files. "
                f"Name another folder."
            )
        remove_leftovers(self.path)
        remove_leftovers(self.checkpoints)
        if not resume and self.runs.exists():  # of an attempt that got no further than their configurations
            shutil.rmtree(self.runs)
        if not self.finished:
            before = read_json(self.config_file) if resume and self.config_file.is_file() else {}
            write_json(self.config_file, {**before, "config": config, "environment": environment()})

    def check_data(self, data: str, source: str | Path) -> None:
        """Write down which data the run has; refuse where it began with others.

        A run from before this was written down goes on with what is there.

        Args:
            data: what tells them from others.
            source: where they are, for people.
        """
        record = read_json(self.config_file)
        if self._holds_work() and record.get("data", data) != data:
            raise ValueError(
                f"resume: expected the data that {self.path} began with, got others in {source}: they have changed "
                f"since. Put the old ones back, or name another folder (--out) to begin anew."
            )
        write_json(self.config_file, {**record, "data": data})

    def _holds_work(self) -> bool:
        """Whether there is more than what a run has before its first checkpoint."""
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
                f"resume: expected the configuration that {self.path} began with, got another: {'; '.join(changed)}. "
                f"Resume with the old values, or name another folder."
            )

    def logged(self, name: str) -> list[float]:
        """All values of a name in the log, in order."""
        entries = map(json.loads, self.log_file.read_text(encoding="utf-8").splitlines())
        return [entry[name] for entry in entries if name in entry]

    def rewind_log(self, step: int) -> None:
        """Forget what was logged after a step, and what a killed process left half written at the end."""
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
    """Nested mappings as one: {"data": {"length": 128}} is {"data.length": 128}."""
    result: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            result |= flat(value, f"{prefix}{key}.")
        else:
            result[prefix + key] = value
    return result
