"""Compile the kernel with the system's C++ compiler on first use, and load it; later uses read it from a cache."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("kernel.cpp")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-pthread", "-shared", "-fPIC")
COMPILERS = ("c++", "g++", "clang++")


class Unavailable(Exception):
    """Raised where the kernel cannot be compiled or loaded; the message says why."""


def kernel() -> ctypes.CDLL:
    """Return the compiled kernel; raise `Unavailable` where there is none."""
    if os.environ.get("HEADWAY_NATIVE") == "0":
        raise Unavailable("it is turned off by HEADWAY_NATIVE=0")
    found = _found(*(os.environ.get(name, "") for name in ("CXX", "XDG_CACHE_HOME", "HOME", "PATH")))
    if isinstance(found, str):
        raise Unavailable(found)
    return found


@functools.cache
def _found(cxx: str, cache: str, *_: str) -> ctypes.CDLL | str:  # or the reason, which is as costly to find out
    try:
        folder = Path(cache) if cache else Path.home() / ".cache"
        return ctypes.CDLL(str(_compiled(cxx, folder / "headway")))
    except (Unavailable, OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
        return str(error)


def _compiled(cxx: str, folder: Path) -> Path:
    commands = [shlex.split(cxx)] if cxx else [[name] for name in COMPILERS]
    compiler = next((command for command in commands if shutil.which(command[0])), None)
    if compiler is None:
        asked = f"CXX={cxx} is not a program" if cxx else f"there is none of {', '.join(COMPILERS)}"
        raise Unavailable(f"it needs a C++ compiler, and {asked}")
    version = _output([*compiler, "--version"])
    key = hashlib.sha256("\0".join([SOURCE.read_text(), *FLAGS, *compiler, version, _processor()]).encode())
    path = folder / f"attention_{key.hexdigest()[:24]}.so"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".build_") as build:
            made = Path(build) / path.name
            _output([*compiler, *FLAGS, str(SOURCE), "-o", str(made)])
            os.replace(made, path)  # whole or not at all, also where several processes compile at once
    return path


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        said = done.stderr.splitlines() or ["it did not say why"]
        first = next((line for line in said if "error" in line), said[0])
        raise Unavailable(f"{' '.join(command)} failed ({done.returncode}): {first.strip()}")
    return done.stdout


def _processor() -> str:
    """Describe the processor, on which the code that -march=native generates depends."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return f"{platform.machine()} {platform.processor()}"
    named = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in info.read_text().splitlines() if line.startswith(named)}))
