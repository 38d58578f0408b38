"""Timing that a noisy machine cannot bend: cases interleaved, ratios taken within one round, raw numbers kept."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch


def interleaved(cases: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each case in each round; one round runs every case once, after a warm-up round."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds + 1):
        for name, run in cases.items():
            start = time.perf_counter()
            run()
            if number > 0:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratios(seconds: dict[str, list[float]], baseline: str) -> dict[str, dict[str, float]]:
    """Median and 20/80 % of each case's time over the baseline's in the same round."""
    result = {}
    for name, times in seconds.items():
        paired = sorted(t / base for t, base in zip(times, seconds[baseline], strict=True))
        result[name] = {
            "median": statistics.median(paired),
            "low": paired[int(0.2 * (len(paired) - 1))],
            "high": paired[int(0.8 * (len(paired) - 1) + 0.5)],
        }
    return result


def environment() -> dict[str, Any]:
    """What a reader needs to judge the numbers."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    gpu: dict[str, Any] = {}
    if torch.cuda.is_available():
        import triton

        gpu = {"gpu": torch.cuda.get_device_name(), "cuda": torch.version.cuda, "triton": triton.__version__}
    return {
        "date": date.today().isoformat(),
        "commit": commit.stdout.strip() or None,
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load_before": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        **gpu,
    }


def save(name: str, record: dict[str, Any], out: Path) -> Path:
    """Write the raw result under a name that says what, where and when; an existing one is never overwritten."""
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
