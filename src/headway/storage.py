"""Files: atomic writes, text, JSON, hashes of configurations, and a record of the environment."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields, is_dataclass
from importlib import metadata
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

LEFTOVER = ".tmp"  # temporary files are named .NAME.RANDOM.tmp
# Metadata of a field that was added to a configuration after results with it were kept: at its default it is left out
# of the configuration's description, so that the hashes of older configurations stay the same.
OMIT_DEFAULT = {"omit_default": True}


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path for a file or a folder, which is renamed to `path` when the block ends.

    The contents are flushed to the disk before they are renamed, so that a crash leaves the old or the new version,
    never a part. A file replaces an older file. A folder replaces only an empty folder; give each version its own name.
    If the block raises, the temporary path is removed, and disk errors of libraries are raised as OSError. Missing
    parent folders are made.
    """
    path = Path(path)
    make_folder(path.parent)
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}{LEFTOVER}"
    try:
        yield temporary
        if not temporary.exists():
            raise FileNotFoundError(f"{path}: expected a file or folder written to {temporary}, got none.")
        if temporary.is_dir() and path.is_dir() and any(path.iterdir()):
            raise FileExistsError(f"{path}: expected a new folder, got one with files in it. Remove it first.")
        _flush(temporary)
        os.replace(temporary, path)
    except BaseException as error:
        _remove(temporary)
        if (number := _os_error_number(error)) is not None:
            raise OSError(number, os.strerror(number), str(path)) from error
        raise
    _fsync(path.parent)


def make_folder(path: str | os.PathLike[str]) -> None:
    """Make a folder and its parents where they are missing; raise FileExistsError if one of them is a file."""
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        file = next(each for each in (path, *path.parents) if os.path.lexists(each) and not each.is_dir())
        raise FileExistsError(f"out: expected a folder, got {file}, which is a file. Name another one.") from None


def check_file(path: str | os.PathLike[str]) -> None:
    """Raise, before work begins, if a file could not be written to `path`; make its folder."""
    if Path(path).is_dir():
        raise FileExistsError(f"out: expected a file, got {path}, which is a folder. Name a file in it.")
    make_folder(Path(path).parent)


def remove_leftovers(folder: str | os.PathLike[str]) -> list[Path]:
    """Remove and return temporary files of killed processes. No other process may be writing to the folder."""
    left = sorted(path for path in Path(folder).glob(f".*{LEFTOVER}"))
    for path in left:
        _remove(path)
    return left


@contextmanager
def exclusive(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Lock a folder; other processes of this machine wait for it until the block ends or this process dies."""
    import fcntl  # not on Windows

    with (Path(folder) / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def file_name(name: str) -> str:
    """Return a name that is safe in a path: characters that file systems may treat specially become _."""
    return re.sub(r"[^\w ,+=()-]", "_", name)


def text_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file; raise if one is not UTF-8."""
    start = 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            yield decode_line(raw, f"{path}, line {number}", start)
            start += len(raw)


def decode_line(raw: bytes, where: str, start: int) -> str:
    """Decode a line of UTF-8, without its end; `start` is the place of its first byte in the text."""
    try:
        text = raw.decode("utf-8-sig" if start == 0 else "utf-8")
    except UnicodeDecodeError as error:
        utf16 = start == 0 and raw[:2] in (b"\xff\xfe", b"\xfe\xff")
        raise UnicodeError(
            f"{where}: expected UTF-8, got byte 0x{raw[error.start]:02x} at byte {start + error.start} of the text "
            f"({error.reason}). Convert the text (iconv -f {'UTF-16' if utf16 else 'LATIN1'} -t UTF-8)."
        ) from error
    return text.removesuffix("\n").removesuffix("\r")


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write a value as JSON, atomically; paths become strings."""
    try:
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False, default=_plain)
    except ValueError as error:
        raise ValueError(f"{path}: expected a value that JSON can hold, got {error}. Replace NaN by None.") from error
    with atomic_path(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_json(path: str | os.PathLike[str]) -> Any:
    """Read the value in a JSON file."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: expected a JSON file, got none. Check the folder's name.") from None
    except ValueError as error:  # wrong JSON or wrong UTF-8
        raise ValueError(f"{path}: expected JSON, got {error}. Write it again with what made it.") from error


def settings(config: Any) -> dict[str, Any]:
    """Return the fields of a dataclass, and of dataclasses in it, by name.

    Fields marked `OMIT_DEFAULT` are left out at their default, so that configurations written before such a field
    existed keep their hash.
    """
    found = {field.name: getattr(config, field.name) for field in fields(config) if not _is_omitted(config, field)}
    return {name: settings(value) if is_dataclass(value) else value for name, value in found.items()}


def _is_omitted(config: Any, field: Field[Any]) -> bool:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return bool(field.metadata.get("omit_default")) and getattr(config, field.name) == default


def plain_settings(config: Any) -> dict[str, Any]:
    """Return `settings` as the plain values that JSON has."""
    value: dict[str, Any] = json.loads(json.dumps(settings(config)))
    return value


def restore(kind: type[T], value: Mapping[str, Any]) -> T:
    """Build the dataclass that `plain_settings` was given; names that it has no field for are left out."""
    hints = get_type_hints(kind)
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: _restored(hints[name], part) for name, part in value.items() if name in known})


def _restored(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    if get_origin(hint) in (Union, UnionType):
        hint = next(each for each in get_args(hint) if each is not type(None))
    if is_dataclass(hint) and isinstance(hint, type):
        return restore(hint, value)
    if get_origin(hint) is tuple and isinstance(value, list):
        inner = [each for each in get_args(hint) if each is not Ellipsis] or [Any]
        return tuple(_restored(inner[min(at, len(inner) - 1)], each) for at, each in enumerate(value))
    return value


def config_hash(config: Mapping[str, Any]) -> str:
    """Return a hash of a configuration, 12 hexadecimal digits, that does not depend on the order of its keys."""
    canonical = json.dumps(config, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_plain)
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def environment() -> dict[str, Any]:
    """Return versions, commit and hardware, to be recorded beside a result; None where there is none."""
    import torch

    cuda = torch.cuda.is_available()
    return {
        "headway": _version("headway"),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": _version("transformers"),
        "tokenizers": _version("tokenizers"),
        "platform": platform.platform(),
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name() if cuda else None,
        "gpus": torch.cuda.device_count() if cuda else 0,
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Return the commit of the checkout that this file is tracked in, with "-dirty" if files differ from it."""
    git = ["git", "--no-optional-locks", "-C", str(Path(__file__).parent)]
    try:
        subprocess.run([*git, "ls-files", "--error-unmatch", __file__], capture_output=True, check=True)
        describe = [*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        return subprocess.run(describe, capture_output=True, check=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None  # no git, or not installed from a checkout


def _os_error_number(error: BaseException) -> int | None:
    """Return the number of an operating system error that tokenizers or safetensors only mention in a message."""
    if isinstance(error, OSError) or error.__cause__ is not None:
        return None
    found = re.search(r"\(os error (\d+)\)", str(error))
    return int(found[1]) if found else None


def _plain(value: Any) -> str:
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    raise TypeError(f"expected a value that JSON can hold, or a path, got {type(value).__name__}: {value!r}.")


def _flush(path: Path) -> None:
    if path.is_dir():
        for entry in path.iterdir():
            _flush(entry)
    _fsync(path)


def _fsync(path: Path) -> None:
    if path.is_dir() and os.name != "posix":
        return  # only POSIX can open a folder
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
