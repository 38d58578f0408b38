"""What a learned position bias costs on a GPU, beside torch's own attention with and without one.

    python -m benchmarks.attention [--out benchmarks/results]

bf16, 12 heads x 64. Parity first, at the shapes that are timed: if a row of headway is farther from the formula in
float64 than `benchmarks.parity` allows, nothing is timed; a row of torch is reported as wrong, without a time. Then all
rows take turns in rounds, once as replays of CUDA graphs and once called from Python, and every sample is kept. The
record also says which settings of torch's functions were tried, whether two calls give the same bits, and the memory of
a training step. It takes about four minutes on an H200 with 16 cores. --tiny tries the whole on a CPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.attention_inputs import HEADS, WIDTH, Inputs
from benchmarks.attention_rows import DROPOUT, MODES, rows, train
from benchmarks.attention_shape import Bench, Results, check, time_shape
from benchmarks.flex_tiles import FlexTiles, first_line
from benchmarks.measure import add_record_options, environment, save
from benchmarks.parity import is_right
from benchmarks.replays import free_memory
from headway.bench.terminal import fitting_tables

SHAPES = ((64, 1024), (128, 512), (512, 128), (2048, 16), (8192, 2))  # length and batch size
TINY = ((16, 3), (72, 2))
MEMORY_ROWS = {  # and the longest sequence for which each is measured
    "torch, cuDNN, no bias": 65536,
    "headway, no bias": 65536,
    "headway, learned Toeplitz": 65536,
    "torch, learned Toeplitz made dense": 16384,
}
COMPILED_BY = 95  # seconds after the start: tiles of FlexAttention that are not compiled by then are not timed


def wrong_rows(bench: Bench) -> dict[str, Any]:
    """Return the rows of headway that do not run or are wrong, with what is wrong."""
    wrong = {}
    for (length, _), results in bench.found.items():
        for name, result in results.items():
            for mode, found in result["settings"].get("", {}).items() if name.startswith("headway") else ():
                if "problem" in found or not is_right(found["parity"]):
                    wrong[f"{name}, n = {length}, {mode}"] = found
    return wrong


def memory(bench: Bench) -> dict[str, dict[int, Any]]:
    """Return the bytes by which a training step of one sequence raises the peak above its inputs, or the problem."""
    found: dict[str, dict[int, Any]] = {}
    for name, longest in MEMORY_ROWS.items():
        row, chosen = bench.rows[name], bench.found[bench.shapes[-1]][name]["chosen"]
        attend = row.settings[chosen.get(MODES[1], next(iter(row.settings)))]
        found[name] = {}
        for length in (2**power for power in range(10, 17)):
            if length > longest:
                break
            x = Inputs(length, 1, parameters=("values",))
            try:
                train(attend, x, row.wanted)  # what the first call compiles and keeps
                free_memory(bench.gpu)
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
                train(attend, x, row.wanted)
                torch.cuda.synchronize()
                found[name][length] = torch.cuda.max_memory_allocated() - before
            except RuntimeError as error:
                found[name][length] = first_line(error)
            free_memory(bench.gpu)
    return found


def record_of(bench: Bench, machine: dict[str, Any]) -> dict[str, Any]:
    """Return all that was found so far."""
    return {
        "environment": machine,
        "command": ["benchmarks/attention.py", *sys.argv[1:]],
        "settings": {"heads": HEADS, "width": WIDTH, "dropout": DROPOUT},
        "seconds": time.monotonic() - bench.started,
        "shapes": {f"n={length} B={batch}": found for (length, batch), found in bench.found.items()},
    }


def print_times(shapes: dict[str, Results], kind: str, console: Console) -> None:
    """Print the median milliseconds of every row at every shape."""
    names = list(next(iter(shapes.values())))
    columns = [
        (shape, [" / ".join(median_time(found[name].get(kind, {}), mode) for mode in MODES) for name in names])
        for shape, found in shapes.items()
    ]
    title = f"milliseconds, {kind}, forward / forward+backward, {HEADS} heads x {WIDTH}, bf16"
    for table in fitting_tables(names, columns, console.width, title=title):
        console.print(table)


def median_time(samples: dict[str, Any], mode: str) -> str:
    """Write the median of a mode's milliseconds, or a dash where there are none."""
    return f"{statistics.median(samples[mode]['milliseconds']):.3f}" if mode in samples else "-"


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--lengths", type=int, nargs="+", default=[length for length, _ in SHAPES])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=230.0, help="when time is short, five rounds are enough")
    parser.add_argument("--keep-going", action="store_true", help="time the others though a row of headway is wrong")
    parser.add_argument("--tiny", action="store_true", help="small shapes on a CPU: does it run?")
    add_record_options(parser)
    return parser.parse_args(arguments)


def main() -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS refuses to be deterministic
    options = options_of()
    machine = environment(dirty=options.dirty or options.tiny, commit=options.commit)
    shapes = TINY if options.tiny else tuple(shape for shape in SHAPES if shape[0] in options.lengths)
    bench = Bench(not options.tiny, shapes, options.rounds, rows(gpu=not options.tiny))
    options.out.mkdir(parents=True, exist_ok=True)
    unfinished = options.out / "unfinished_attention.json"
    compare(bench, machine, options.keep_going, unfinished)
    gc.collect()
    gc.freeze()  # what is there already is not looked at again whenever a graph is captured
    end = bench.started + options.seconds
    for number, shape in enumerate(bench.shapes):
        now = time.monotonic()
        time_shape(bench, shape, now + (end - now) / (len(bench.shapes) - number))
        bench.tell(f"n = {shape[0]}: timed")
        unfinished.write_text(json.dumps(record_of(bench, machine)) + "\n")
    record = record_of(bench, machine)
    if bench.gpu:
        record["memory"] = memory(bench)
    print_times(record["shapes"], "replayed" if bench.gpu else "from Python", Console())
    print(f"wrote {save('attention', record, options.out)} after {record['seconds']:.0f} s")
    unfinished.unlink()
    if wrong := wrong_rows(bench):
        raise SystemExit(f"These of headway's rows are wrong: {wrong}")


def compare(bench: Bench, machine: dict[str, Any], keep_going: bool, unfinished: Path) -> None:
    """Compare all rows with the formula while FlexAttention's tiles are compiled, then time these tiles."""
    tiles = FlexTiles(bench.shapes, max(1, (os.cpu_count() or 2) - 2)) if bench.gpu else None
    try:
        for shape in bench.shapes:
            check(bench, shape)
            bench.tell(f"n = {shape[0]}: compared with the formula")
        wrong = wrong_rows(bench)
        if wrong and not keep_going:
            unfinished.write_text(json.dumps(record_of(bench, machine), indent=1) + "\n")
            raise SystemExit(f"parity: {wrong}; nothing is timed. All that was found is in {unfinished}.")
        if tiles is not None:
            tiles.wait(bench.started + COMPILED_BY)
            bench.tell("FlexAttention's tiles are compiled")
            bench.tiles = tiles.timed()
            bench.tell("FlexAttention's tiles are timed")
    finally:
        if tiles is not None:
            tiles.stop()


if __name__ == "__main__":
    main()
