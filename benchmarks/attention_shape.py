"""One shape of the attention benchmark: every row is compared with the formula, then all are timed in turns."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.deterministic

from benchmarks.attention_inputs import BIASES, Form, Inputs
from benchmarks.attention_rows import MODES, SEED, Attend, Row, train
from benchmarks.flex_tiles import Shape, first_line, prepare_compiler, settings
from benchmarks.parity import Judge, is_right, judge, kept_by_dropout
from benchmarks.replays import (
    Run,
    called_in_turns,
    calls_in_a_row,
    capture,
    clock_milliseconds,
    free_memory,
    replay_milliseconds,
    replayed_in_turns,
    replays_in_a_row,
)

SURE_RIGHT = 3  # of FlexAttention's fastest tiles, how many are checked before its row counts as wrong
LATE = 10.0  # seconds after a shape's time is over from which on nothing that can be left out is begun
Results = dict[str, dict[str, Any]]  # what is found of each row at one shape
Call = tuple[str, str]  # the name of a row, and a mode
Task = tuple[Form, str, bool, str]  # form, bias, whether causal; with dropout, the row that alone has this result


class Bench:
    """One run: its rows and shapes, and all that it has found."""

    def __init__(self, gpu: bool, shapes: tuple[Shape, ...], rounds: int, rows: dict[str, Row]) -> None:
        self.started = time.monotonic()
        self.gpu, self.shapes, self.rounds, self.rows = gpu, shapes, rounds, rows
        self.found: dict[Shape, Results] = {
            shape: {name: {"settings": {}, "chosen": {}} for name in self.rows} for shape in shapes
        }
        self.judges: dict[Shape, Judge] = {}  # for FlexAttention, whose tiles are chosen later
        self.tiles: dict[Shape, dict[str, dict[str, Any]]] = {}  # see `FlexTiles.timed`

    def tell(self, text: str) -> None:
        print(f"{time.monotonic() - self.started:5.0f} s  {text}", flush=True)

    def inputs(self, shape: Shape) -> dict[Form, Inputs]:
        """Draw what the rows of each form read."""
        reads: dict[Form, set[str]] = {}
        for row in self.rows.values():
            reads.setdefault(row.form, set()).update(BIASES[row.bias].reads)
        device = "cuda" if self.gpu else "cpu"
        return {form: Inputs(*shape, device, form=form, parameters=names) for form, names in reads.items()}

    @property
    def tasks(self) -> dict[Task, list[str]]:
        """List the names of the rows of each task."""
        tasks: dict[Task, list[str]] = {}
        for name, row in self.rows.items():
            tasks.setdefault((*row.task, name if row.dropout else ""), []).append(name)
        return tasks


def check(bench: Bench, shape: Shape) -> None:
    """Compare every setting of every row with the formula; rows of one task share what is exact."""
    inputs = bench.inputs(shape)
    for task, names in bench.tasks.items():
        check_task(bench, shape, task, names, inputs[task[0]])


def check_task(bench: Bench, shape: Shape, task: Task, names: list[str], x: Inputs) -> None:
    """Compare every setting of the rows of one task with the formula."""
    found, kept = bench.found[shape], None
    _, bias, causal, with_dropout = task
    if with_dropout:
        try:
            kept = kept_by_dropout(bench.rows[with_dropout].settings[""], x)
        except RuntimeError as error:
            found[with_dropout]["settings"][""] = {mode: {"problem": first_line(error)} for mode in MODES}
            return
        found[with_dropout]["kept"] = kept.float().mean().item()
    exact = judge(x, bias, causal, kept)
    for name in names:
        row = bench.rows[name]
        for setting, attend in row.settings.items():
            found[name]["settings"][setting] = check_setting(exact, row, attend, x)
        if row.compiled:
            bench.judges[shape] = exact
    del kept, exact
    free_memory(bench.gpu)


def check_setting(exact: Judge, row: Row, attend: Attend, x: Inputs) -> dict[str, Any]:
    """Return the error over the allowed error in each mode, or why it does not run."""

    def forward() -> dict[str, float | None]:
        with torch.no_grad():
            return exact.ratios({"output": attend(x)})

    def both() -> dict[str, float | None]:
        return exact.ratios(train(attend, x, row.wanted))

    found: dict[str, Any] = {}
    for mode, run in zip(MODES, (forward, both), strict=True):
        torch.manual_seed(SEED)
        try:
            found[mode] = {"parity": run()}
        except Exception as error:  # torch's kernels and compilers raise many kinds where they do not run
            found[mode] = {"problem": first_line(error)}
            free_memory(x.q.is_cuda)
    return found


def time_shape(bench: Bench, shape: Shape, deadline: float) -> None:
    """Choose each row's fastest right setting, time all rows in turns, and see whether they repeat their bits."""
    if bench.gpu:
        torch.compiler.reset()
        prepare_compiler()
    (x,), results = bench.inputs(shape).values(), bench.found[shape]  # all rows have one form
    chosen = choose_settings(bench, shape, x)
    bench.tell(f"n = {shape[0]}: {len(chosen)} calls are ready")
    replays = {key: replays_in_a_row(each.milliseconds) for key, each in chosen.items()}
    calls = {key: calls_in_a_row(each.milliseconds) for key, each in chosen.items()}
    if bench.gpu:
        half = (time.monotonic() + deadline) / 2
        graphs = {key: each.graph for key, each in chosen.items() if each.graph is not None}
        keep_samples(results, "replayed", replays, replayed_in_turns(graphs, replays, bench.rounds, half))
        del graphs
    runs = {key: each.run for key, each in chosen.items()}
    keep_samples(results, "from Python", calls, called_in_turns(runs, calls, bench.rounds, deadline, bench.gpu))
    attends = {name: each.attend for (name, mode), each in chosen.items() if mode == MODES[1]}
    del chosen, runs
    free_memory(bench.gpu)
    for name, attend in attends.items():
        row = bench.rows[name]
        results[name]["repeats"] = repeats(row, attend, x)
        # FlexAttention would be compiled once more at each shape; once is enough to see what torch says.
        asked = not row.compiled or shape == bench.shapes[0]
        if bench.gpu and asked and name.startswith("torch") and time.monotonic() < deadline + LATE:
            results[name]["deterministic"] = deterministic(row, attend, x)
    bench.judges.pop(shape, None)
    free_memory(bench.gpu)


@dataclass(frozen=True)
class Chosen:
    """The setting of a row that one mode is timed with; `graph` is None on a CPU."""

    attend: Attend
    run: Run
    graph: torch.cuda.CUDAGraph | None
    milliseconds: float  # of a first look


def choose_settings(bench: Bench, shape: Shape, x: Inputs) -> dict[Call, Chosen]:
    """Choose and capture the fastest correct setting of each row in each mode; leave out rows without one."""
    pool = torch.cuda.graph_pool_handle() if bench.gpu else None
    chosen: dict[Call, Chosen] = {}
    for name, row in bench.rows.items():
        attends = right_tiles(bench, shape, name, x) if row.compiled else row.settings
        chosen |= choose_setting(bench, shape, name, attends, x, pool)
    return chosen


def choose_setting(
    bench: Bench, shape: Shape, name: str, attends: dict[str, Attend], x: Inputs, pool: Any
) -> dict[Call, Chosen]:
    """Choose and capture the fastest correct setting of one row in each mode, if there is one."""
    row, found = bench.rows[name], bench.found[shape][name]
    chosen: dict[Call, Chosen] = {}
    for mode in MODES:
        for setting, attend in attends.items():
            record = found["settings"][setting][mode]
            if "parity" not in record or not is_right(record["parity"]):
                continue
            run = run_of(row, attend, x, mode)
            try:
                graph = capture(run, pool) if bench.gpu else None
                milliseconds = clock_milliseconds(run) if graph is None else replay_milliseconds(graph)
            except Exception as error:
                record["problem"] = first_line(error)
                free_memory(bench.gpu)
                continue
            record["milliseconds"] = milliseconds
            if (name, mode) not in chosen or milliseconds < chosen[name, mode].milliseconds:
                chosen[name, mode] = Chosen(attend, run, graph, milliseconds)
                found["chosen"][mode] = setting
    return chosen


def right_tiles(bench: Bench, shape: Shape, name: str, x: Inputs) -> dict[str, Attend]:
    """Return FlexAttention's fastest correct tiles of each mode; all that were tried stay in the record."""
    record, all_tiles = bench.found[shape][name]["settings"], settings(shape[0])
    record.update(bench.tiles.get(shape, {}))
    right: dict[str, Attend] = {}
    for mode in MODES:
        times = {tiles: found[mode]["milliseconds"] for tiles, found in record.items() if "milliseconds" in found[mode]}
        for tiles in sorted(times, key=times.__getitem__)[:SURE_RIGHT]:
            if tiles not in right:
                right[tiles] = all_tiles[tiles]
                checked = check_setting(bench.judges[shape], bench.rows[name], right[tiles], x)
                for each in MODES:
                    record[tiles][each] |= checked[each]
            if is_right(record[tiles][mode].get("parity", {"": None})):
                break
    return right


def keep_samples(results: Results, kind: str, calls: dict[Call, int], samples: dict[Call, list[float]]) -> None:
    """Write every sample into the record, with the number of calls whose mean it is."""
    for (name, mode), milliseconds in samples.items():
        results[name].setdefault(kind, {})[mode] = {"calls": calls[name, mode], "milliseconds": milliseconds}


def run_of(row: Row, attend: Attend, x: Inputs, mode: str) -> Run:
    def forward() -> Any:
        with torch.no_grad():
            return attend(x)

    return forward if mode == MODES[0] else lambda: train(attend, x, row.wanted)


def repeats(row: Row, attend: Attend, x: Inputs) -> dict[str, bool]:
    """Whether two calls give the same bits, in the output and in each gradient."""
    torch.manual_seed(SEED)
    first = train(attend, x, row.wanted)
    torch.manual_seed(SEED)
    second = train(attend, x, row.wanted)
    return {name: torch.equal(tensor, second[name]) for name, tensor in first.items()}


def deterministic(row: Row, attend: Attend, x: Inputs) -> dict[str, Any]:
    """Time torch when it is told to be deterministic, or keep what it says where it cannot be."""
    filled = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = False  # it would cost time and changes no result
    torch.use_deterministic_algorithms(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found: dict[str, Any] = {"repeats": repeats(row, attend, x)}
            found["milliseconds"] = replay_milliseconds(capture(run_of(row, attend, x, MODES[1])))
    except Exception as error:
        found = {"problem": first_line(error)}
        free_memory(x.q.is_cuda)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = filled
    return found
