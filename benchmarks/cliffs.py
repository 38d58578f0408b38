"""Every kind of call beside torch's fastest attention without bias or mask: where does a step aside cost a multiple?

    python -m benchmarks.cliffs [--quick] [--only TEXT ...] [--out benchmarks/results]

16,384 tokens a call, at n = 512 and n = 2048. Parity first, at the shapes that are timed: what is farther from the
formula in float64 than `benchmarks.parity` allows has no time. Then all rows take turns in rounds as replays of CUDA
graphs, and every sample is kept. Each call is made on the kernels that `auto` takes, and on the general Triton kernels,
which serve GPUs of other generations. Last, the time that one call takes on the host. --tiny tries the whole on a CPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks.attention_inputs import PADDING, Inputs
from benchmarks.attention_rows import MODES
from benchmarks.attention_shape import (
    Bench,
    Call,
    Chosen,
    check_setting,
    check_task,
    choose_setting,
    keep_samples,
    run_of,
)
from benchmarks.cliff_rows import (
    CLIFFS,
    GENERAL,
    HOST,
    HOST_AIM,
    PEERS,
    USUAL,
    Cliff,
    backend_of,
    compile_ahead,
    host_rows,
    rows,
)
from benchmarks.cliff_table import cells, wrong
from benchmarks.flex_tiles import Shape
from benchmarks.measure import add_record_options, environment, save
from benchmarks.parity import is_right, judge
from benchmarks.replays import called_in_turns, calls_in_a_row, free_memory, replayed_in_turns, replays_in_a_row
from headway.bench.terminal import fitting_tables

SHAPES = ((512, 32), (2048, 8))  # length and batch size
TINY = ((16, 3),)
HOST_SHAPE = (512, 1)  # on which a GPU is done before the host is
HOST_CALLS = 20  # in a row, whose mean is a sample; the driver queues about a thousand launches
COMPILED_WITHIN = 120.0  # seconds
HOST_SECONDS = 15.0  # kept for the last part
# Of the seconds that a shape has: when no row is begun to be compared any more, and when none is captured any more.
COMPARED_BY, CAPTURED_BY = 0.65, 0.9
QUICK_ROUNDS, ROUNDS = 5, 15
LATE = "left out: there was no time left"


def chosen_cliffs(only: list[str] | None) -> dict[str, Cliff]:
    """Return the calls whose names contain one of the texts; all, if there is none."""
    names = [*CLIFFS, HOST]
    for text in only or ():
        if not any(text in name for name in names):
            raise SystemExit(f"--only {text!r}: no row has this in its name. The rows are: {'; '.join(names)}.")
    return {name: cliff for name, cliff in CLIFFS.items() if only is None or any(text in name for text in only)}


def measure_shape(bench: Bench, shape: Shape, end: float) -> None:
    """Compare all rows with the formula, then time those that are right, in turns, until about `end`."""
    began, results, inputs = time.monotonic(), bench.found[shape], bench.inputs(shape)
    compare(bench, shape, inputs, began + COMPARED_BY * (end - began))
    gc.collect()
    gc.freeze()  # what is there already is not looked at again whenever a graph is captured
    chosen = capture_all(bench, shape, inputs, began + CAPTURED_BY * (end - began))
    bench.tell(f"n = {shape[0]}: {len(chosen)} calls are ready")
    if bench.gpu:
        calls = {key: replays_in_a_row(each.milliseconds) for key, each in chosen.items()}
        graphs = {key: each.graph for key, each in chosen.items() if each.graph is not None}
        keep_samples(results, "replayed", calls, replayed_in_turns(graphs, calls, bench.rounds, end))
        del graphs
    else:
        calls = {key: calls_in_a_row(each.milliseconds) for key, each in chosen.items()}
        runs = {key: each.run for key, each in chosen.items()}
        keep_samples(results, "from Python", calls, called_in_turns(runs, calls, bench.rounds, end, gpu=False))
    del chosen
    free_memory(bench.gpu)
    bench.tell(f"n = {shape[0]}: timed")


def compare(bench: Bench, shape: Shape, inputs: dict[Any, Inputs], until: float) -> None:
    """Compare every row with the formula; those that are not begun in time are left out."""
    began, tasks = time.monotonic(), bench.tasks
    for number, (task, names) in enumerate(tasks.items(), start=1):
        now = time.monotonic()
        if now > until:
            for name in names:
                for setting in bench.rows[name].settings:
                    bench.found[shape][name]["settings"][setting] = {mode: {"problem": LATE} for mode in MODES}
            continue
        check_task(bench, shape, task, names, inputs[task[0]])
        each = (time.monotonic() - began) / number
        bench.tell(
            f"n = {shape[0]}: {number} of {len(tasks)} compared with the formula, {names[-1].removesuffix(GENERAL)}; "
            f"the others take about {each * (len(tasks) - number):.0f} s"
        )
    for name, row in bench.rows.items():
        if name in CLIFFS:
            bench.found[shape][name]["backend"] = backend_of(row, inputs[row.form])


def capture_all(bench: Bench, shape: Shape, inputs: dict[Any, Inputs], until: float) -> dict[Call, Chosen]:
    """Choose and capture the fastest right setting of each row and mode."""
    pool = torch.cuda.graph_pool_handle() if bench.gpu else None
    chosen: dict[Call, Chosen] = {}
    for name, row in bench.rows.items():
        if time.monotonic() > until:
            for setting in bench.found[shape][name]["settings"].values():
                for mode in MODES:
                    setting[mode].setdefault("problem", LATE)
            continue
        chosen |= choose_setting(bench, shape, name, row.settings, inputs[row.form], pool)
        tried = [setting[mode] for setting in bench.found[shape][name]["settings"].values() for mode in MODES]
        if bench.gpu and any("problem" in each and "parity" in each for each in tried):
            pool = torch.cuda.graph_pool_handle()  # where a capture failed, its pool may take no other
    return chosen


def measure_host(bench: Bench, end: float) -> dict[str, Any]:
    """Time a call from Python on inputs so small that a GPU waits for the host."""
    shape = HOST_SHAPE if bench.gpu else TINY[0]
    x = Inputs(*shape, "cuda" if bench.gpu else "cpu", form=USUAL, parameters=("values",))
    found: dict[str, dict[str, Any]] = {}
    runs = {}
    for name, row in host_rows(bench.gpu).items():
        (attend,) = row.settings.values()
        found[name] = {"settings": {"": check_setting(judge(x, row.bias, row.causal), row, attend, x)}}
        for mode, checked in found[name]["settings"][""].items():
            if is_right(checked.get("parity", {"": None})):
                runs[name, mode] = run_of(row, attend, x, mode)
    calls = dict.fromkeys(runs, HOST_CALLS)
    keep_samples(found, "from Python", calls, called_in_turns(runs, calls, bench.rounds, end, bench.gpu))
    return {"name": HOST, "length": shape[0], "batch": shape[1], "aim": HOST_AIM, "rows": found}


def record_of(bench: Bench, cliffs: dict[str, Cliff], machine: dict[str, Any]) -> dict[str, Any]:
    """Return all that was found so far."""
    about = {
        name: {
            "form": str(cliff.form), "base": cliff.base, "peer": PEERS.get(name), "general": name + GENERAL,
            "aim": cliff.aim,
        }
        for name, cliff in cliffs.items()
    }  # fmt: skip
    return {
        "environment": machine,
        "command": ["benchmarks/cliffs.py", *sys.argv[1:]],
        "seconds": time.monotonic() - bench.started,
        "kind": "replayed" if bench.gpu else "from Python",
        "padding": PADDING,
        "cliffs": about,
        "shapes": {f"n={length} B={batch}": found for (length, batch), found in bench.found.items()},
    }


def print_cells(record: dict[str, Any], console: Console) -> None:
    """Print the ratios of every call, with what is aimed at."""
    header, lines = cells(record)
    columns = [(title, [line[place] for line in lines]) for place, title in enumerate(header) if place > 0]
    for table in fitting_tables([line[0] for line in lines], columns, console.width, title=header[0]):
        console.print(table)


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="only rows whose names contain one of these")
    parser.add_argument("--rounds", type=int, help=f"{ROUNDS}, or {QUICK_ROUNDS} if quick")
    parser.add_argument("--quick", action="store_true", help=f"n = {SHAPES[0][0]} alone, {QUICK_ROUNDS} rounds")
    parser.add_argument("--seconds", type=float, default=470.0, help="what is not begun by then is left out, and named")
    parser.add_argument("--tiny", action="store_true", help="small shapes on a CPU: does it run?")
    add_record_options(parser)
    return parser.parse_args(arguments)


def main() -> None:
    options = options_of()
    if not options.tiny and not torch.cuda.is_available():
        raise SystemExit("This benchmark needs a CUDA GPU, and torch sees none. --tiny tries its code on a CPU.")
    cliffs = chosen_cliffs(options.only)
    machine = environment(dirty=options.dirty or options.tiny, commit=options.commit)
    shapes = TINY if options.tiny else SHAPES[:1] if options.quick else SHAPES
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    bench = Bench(not options.tiny, shapes, rounds, rows(not options.tiny, cliffs))
    bench.tell(
        f"{len(bench.rows)} rows, {' and '.join(f'n = {length}' for length, _ in shapes)}; "
        f"it ends after at most about {options.seconds / 60:.0f} minutes"
    )
    options.out.mkdir(parents=True, exist_ok=True)
    unfinished, end = options.out / "unfinished_cliffs.json", bench.started + options.seconds - HOST_SECONDS
    if bench.gpu and cliffs:
        done = compile_ahead([name + GENERAL for name in cliffs], shapes[0], min(COMPILED_WITHIN, options.seconds / 3))
        bench.tell(f"the general kernels of {done} of {len(cliffs)} calls are compiled")
    for number, shape in enumerate(shapes if cliffs else ()):
        now = time.monotonic()
        measure_shape(bench, shape, now + (end - now) / (len(shapes) - number))
        unfinished.write_text(json.dumps(record_of(bench, cliffs, machine)) + "\n")
    record = record_of(bench, cliffs, machine)
    if options.only is None or any(text in HOST for text in options.only):
        record["host"] = measure_host(bench, end + HOST_SECONDS)
    record["seconds"] = time.monotonic() - bench.started
    print_cells(record, Console())
    print(f"wrote {save('cliffs', record, options.out)} after {record['seconds']:.0f} s")
    unfinished.unlink(missing_ok=True)
    if problems := wrong(record):
        reasons = [f"{reason}:\n  " + "\n  ".join(where) for reason, where in problems.items()]
        raise SystemExit("These have no time.\n" + "\n".join(reasons))


if __name__ == "__main__":
    main()
