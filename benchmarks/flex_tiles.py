"""FlexAttention's fastest tiles at each shape: many are compiled at a time, then timed one after the other.

As shipped, FlexAttention asks for more shared memory than there is for a learned Toeplitz bias, and its time depends on
the tiles. Compiling takes seconds for each choice of tiles, so processes of their own compile them in parallel and stay
to time them when the GPU is free. What they compiled is in the caches of Inductor and Triton when the benchmark's own
process asks for the chosen tiles.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Container
from multiprocessing.connection import Connection
from typing import Any

import torch

from benchmarks.attention_inputs import BIASES, Inputs
from benchmarks.attention_rows import MODES, Attend, by_flex, train
from benchmarks.replays import Run, capture, replay_milliseconds

Shape = tuple[int, int]  # length and batch size
WANTED = BIASES["Toeplitz"].wanted

# BLOCK_M, BLOCK_N, warps and stages of the forward kernel; BLOCK_M1, N1, M2, N2, warps and stages of the backward
# kernel; whether gradients of the table are added up in the loop for the gradient of q; and the table's dtype.
TRIED = (
    ((64, 64, 4, 3), (32, 64, 64, 32, 4, 2), True, torch.bfloat16),
    ((128, 64, 4, 3), (64, 64, 64, 64, 4, 2), True, torch.bfloat16),
    ((128, 64, 8, 3), (32, 128, 128, 32, 8, 2), True, torch.bfloat16),
    ((128, 128, 8, 2), (64, 128, 128, 64, 8, 2), True, torch.bfloat16),
    ((128, 64, 4, 2), (64, 64, 64, 64, 8, 2), True, torch.bfloat16),
    ((64, 64, 4, 2), (32, 64, 64, 32, 4, 3), False, torch.bfloat16),
    ((128, 64, 4, 2), (64, 64, 64, 64, 4, 2), True, torch.float32),
    ((64, 64, 4, 2), (32, 128, 128, 32, 4, 2), False, torch.float32),
)

PLAIN = {
    "BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_M1": 32, "BLOCK_N1": 64, "BLOCK_M2": 64, "BLOCK_N2": 32, "num_stages": 2,
}  # fmt: skip


def settings(length: int) -> dict[str, Attend]:
    """List every choice of tiles that is tried at this length, by a name that says all of it."""
    found = {}
    for number, (forward, backward, with_q, table_dtype) in enumerate(TRIED):
        options: dict[str, Any] = dict(zip(("fwd_BLOCK_M", "fwd_BLOCK_N"), forward[:2], strict=True))
        options |= {"fwd_num_warps": forward[2], "fwd_num_stages": forward[3]}
        options |= dict(zip((f"bwd_BLOCK_{each}" for each in ("M1", "N1", "M2", "N2")), backward[:4], strict=True))
        options |= {"bwd_num_warps": backward[4], "bwd_num_stages": backward[5], "WRITE_DQ": with_q}
        if length < 128 and number % 2:  # else torch takes its kernel for decoding where queries are this few
            options["FORCE_USE_FLEX_ATTENTION"] = True
        name = " ".join(f"{key}={value}" for key, value in options.items())
        found[f"{name} table={str(table_dtype).removeprefix('torch.')}"] = by_flex(options, table_dtype)
    found[" ".join(f"{key}={value}" for key, value in PLAIN.items())] = by_flex(PLAIN, torch.bfloat16)
    return found


class Worker:
    """A process that compiles some tiles of one or several shapes, then times them when it is told to."""

    def __init__(self, tasks: list[tuple[Shape, str]]) -> None:
        context = multiprocessing.get_context("spawn")
        self.tasks = tasks
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_work, args=(tasks, other), daemon=True)
        self.process.start()
        other.close()

    def answer(self, deadline: float) -> Any:
        """Return the next message of the process, or None if there is none in time or it has ended."""
        try:
            return self.pipe.recv() if self.pipe.poll(max(0.0, deadline - time.monotonic())) else None
        except (EOFError, OSError):
            return None

    def stop(self) -> None:
        self.process.terminate()
        self.process.join()


class FlexTiles:
    """Start compiling at once; `wait` for it, then see what is `timed`, while nothing else runs on the GPU."""

    def __init__(self, shapes: tuple[Shape, ...], processes: int) -> None:
        tasks = [(shape, name) for shape in shapes for name in settings(shape[0])]
        self.workers = [Worker(tasks[first::processes]) for first in range(min(processes, len(tasks)))]
        self.ready: list[Worker] = []

    def wait(self, deadline: float) -> None:
        """Wait until all is compiled or the deadline has come; stop processes that are not ready by then."""
        self.ready = [worker for worker in self.workers if worker.answer(deadline) == "ready"]
        for worker in self.workers:
            if worker not in self.ready:
                worker.stop()

    def timed(self, seconds_each: float = 10.0) -> dict[Shape, dict[str, dict[str, Any]]]:
        """Return milliseconds or the problem, by shape, choice of tiles and mode."""
        found: dict[Shape, dict[str, dict[str, Any]]] = {}
        for worker in self.workers:
            for shape, name in worker.tasks:
                found.setdefault(shape, {})[name] = _problem("it was not compiled in time")
        for worker in self.ready:
            for shape, name in worker.tasks:
                worker.pipe.send((shape, name))
                answer = worker.answer(time.monotonic() + seconds_each)
                found[shape][name] = answer or _problem("its process ended, or did not answer in time")
                if answer is None:
                    break  # a later answer would be taken for another's
            worker.stop()
        return found

    def stop(self) -> None:
        for worker in self.workers:
            worker.stop()


def _work(tasks: list[tuple[Shape, str]], pipe: Connection) -> None:
    """Compile every task by running it once, say so, and time what is asked for."""
    os.nice(10)  # the benchmark's own process compiles too, and everything waits for it
    prepare_compiler()
    problems = {}
    for task in tasks:
        problems[task] = {mode: found for mode, found in _each_mode(task, _run).items() if found is not None}
    pipe.send("ready")
    while True:
        task = pipe.recv()
        pipe.send({**_each_mode(task, _time, skip=problems[task]), **problems[task]})


def _each_mode(task: tuple[Shape, str], do: Callable[[Run], Any], skip: Container[str] = ()) -> dict[str, Any]:
    """Call `do` for each mode and keep what it returns, or the problem that it met."""
    (length, batch), name = task
    x, attend = Inputs(length, batch, parameters=("values",)), settings(length)[name]

    def forward() -> Any:
        with torch.no_grad():
            return attend(x)

    found: dict[str, Any] = {}
    for mode, run in zip(MODES, (forward, lambda: train(attend, x, WANTED)), strict=True):
        if mode not in skip:
            try:
                found[mode] = do(run)
            except Exception as error:  # Inductor and Triton raise many kinds, and each is a result
                found[mode] = {"problem": first_line(error)}
    torch.cuda.empty_cache()
    return found


def _run(run: Run) -> None:
    run()
    torch.cuda.synchronize()


def _time(run: Run) -> dict[str, float]:
    return {"milliseconds": replay_milliseconds(capture(run))}


def prepare_compiler() -> None:
    """Compile in this process, keep every choice of tiles, and share what is compiled through the caches on disk."""
    import torch._dynamo
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1
    torch._inductor.config.fx_graph_cache = True
    torch._dynamo.config.recompile_limit = 64


def _problem(text: str) -> dict[str, dict[str, str]]:
    return {mode: {"problem": text} for mode in MODES}


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"[:300]
