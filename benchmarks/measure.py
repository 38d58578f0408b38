"""Timing on a noisy machine: cases take turns, ratios are taken within one round, and raw numbers are kept."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import torch

from headway.bench.statistics import ratio


def interleaved(cases: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Time each case once in every round, after a warm-up round; return seconds by case."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds + 1):
        for name, run in cases.items():
            start = time.perf_counter()
            run()
            if number > 0:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratios(seconds: dict[str, list[float]], baseline: str) -> dict[str, dict[str, float]]:
    """Return the median and the 20 and 80 % quantiles of each case's time over the baseline's in the same round."""
    return {name: asdict(ratio(times, seconds[baseline])) for name, times in seconds.items()}


def add_record_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which commit a record belongs to; pass them on to `environment`."""
    parser.add_argument("--dirty", action="store_true", help="measure although tracked files have uncommitted changes")
    parser.add_argument("--commit", help="hash to record where git is missing or this is not a repository")


def environment(dirty: bool = False, commit: str | None = None) -> dict[str, Any]:
    """Describe machine, versions and commit. Exits unless the numbers belong to a commit; see `commit_here`."""
    found = commit_here(dirty, commit)
    gpu: dict[str, Any] = {}
    if torch.cuda.is_available():
        import triton

        gpu = {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda, "triton": triton.__version__}
    return {
        "date": date.today().isoformat(),
        "commit": found,
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        **gpu,
    }


def commit_here(dirty: bool, commit: str | None) -> str | None:
    """Return the short hash of HEAD.

    Exits if tracked files have uncommitted changes, unless `dirty`; then the hash ends in "-dirty". Untracked files do
    not count. Where git cannot be asked, the answer is `commit`; without it None if `dirty`, else an exit.
    """
    head, problem = _git("rev-parse", "--short", "HEAD")
    if problem is None:
        changes, problem = _git("status", "--porcelain", "--untracked-files=no")
    if problem is not None:
        if commit is None and not dirty:
            raise SystemExit(f"git cannot tell which commit is measured: {problem} Give it with --commit HASH.")
        return commit
    if commit is not None and not (commit.startswith(head) or head.startswith(commit)):
        raise SystemExit(f"--commit: expected the commit that is checked out, {head}, got {commit}. Leave it out.")
    if changes and not dirty:
        raise SystemExit(
            f"Tracked files have uncommitted changes, so that no commit has what is measured:\n{changes}\n"
            f"Commit them, or measure with --dirty, which the record will say."
        )
    return f"{head}-dirty" if changes else head


def _git(*arguments: str) -> tuple[str, str | None]:
    """Return what git prints and, if it failed, the problem."""
    folder = Path(__file__).parents[1]
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=folder)
    except OSError as error:
        return "", f"git could not be started ({error})."
    return done.stdout.strip(), None if done.returncode == 0 else f"{done.stderr.strip()}."


def save(name: str, record: dict[str, Any], out: Path) -> Path:
    """Write a record to a file named after benchmark, machine, torch and date; existing files are never overwritten."""
    out.mkdir(parents=True, exist_ok=True)
    env = record["environment"]
    machine = env["gpu"].split()[-1].lower() if "gpu" in env else f"{env['cores']}core"
    stem = f"{name}_{machine}_torch{env['torch'].split('+')[0]}_{env['date']}"
    path, number = out / f"{stem}.json", 1
    while path.exists():
        number += 1
        path = out / f"{stem}_{number}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    return path


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()
