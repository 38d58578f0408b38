"""FlexAttention's fastest tiles at each shape: many are compiled at a time, then timed one after the other.

As shipped, FlexAttention asks for more shared memory than there is for a learned Toeplitz bias, and its time depends on
the tiles. Compiling takes seconds for each choice of tiles, so processes of their own compile them in parallel and stay
to time them when the GPU is free. What they compiled is in the caches of Inductor and Triton when the benchmark's own
process asks for the chosen tiles.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch

from benchmarks.attention_rows import BIASES, MODES, Attend, Inputs, by_flex, train
from benchmarks.replays import captured, replay_milliseconds

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
    """Every choice of tiles that is tried at this length, by a name that says all of it."""
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
        """Next message of the process, or None if there is none in time or it has ended."""
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
        """Until all is compiled, or the deadline; who is not ready by then is stopped."""
        self.ready = [worker for worker in self.workers if worker.answer(deadline) == "ready"]
        for worker in self.workers:
            if worker not in self.ready:
                worker.stop()

    def timed(self, seconds_each: float = 10.0) -> dict[Shape, dict[str, dict[str, Any]]]:
        """Milliseconds of each mode, or the problem, of each choice of tiles at each shape."""
        found: dict[Shape, dict[str, dict[str, Any]]] = {}
        for worker in self.workers:
            for shape, name in worker.tasks:
                found.setdefault(shape, {})[name] = {"problem": "it was not compiled in time"}
        for worker in self.ready:
            for shape, name in worker.tasks:
                worker.pipe.send((shape, name))
                answer = worker.answer(time.monotonic() + seconds_each)
                found[shape][name] = answer or {"problem": "its process ended, or did not answer in time"}
                if answer is None:
                    break  # a later answer would be taken for another's
            worker.stop()
        return found

    def stop(self) -> None:
        for worker in self.workers:
            worker.stop()


def _work(tasks: list[tuple[Shape, str]], pipe: Connection) -> None:
    """Compile every task by running it once, say so, and time what is asked for."""
    prepare_compiler()
    problems: dict[tuple[Shape, str], str] = {}
    for shape, name in tasks:
        try:
            _run_once(settings(shape[0])[name], Inputs(*shape, parameters=("values",)))
        except Exception as error:  # Inductor and Triton have many; each is a result
            problems[shape, name] = first_line(error)
        torch.cuda.empty_cache()
    pipe.send("ready")
    while True:
        shape, name = pipe.recv()
        if (shape, name) in problems:
            pipe.send({"problem": problems[shape, name]})
            continue
        try:
            pipe.send(_times(settings(shape[0])[name], Inputs(*shape, parameters=("values",))))
        except Exception as error:
            pipe.send({"problem": first_line(error)})
        torch.cuda.empty_cache()


def prepare_compiler() -> None:
    """Compile in this process, keep every choice of tiles, and share what is compiled through the caches on disk."""
    import torch._dynamo
    import torch._inductor.config

    torch._inductor.config.compile_threads = 1
    torch._inductor.config.fx_graph_cache = True
    torch._dynamo.config.recompile_limit = 64


def _run_once(attend: Attend, x: Inputs) -> None:
    with torch.no_grad():
        attend(x)
    train(attend, x, WANTED)
    torch.cuda.synchronize()


def _times(attend: Attend, x: Inputs) -> dict[str, float]:
    def forward() -> Any:
        with torch.no_grad():
            return attend(x)

    runs: dict[str, Callable[[], Any]] = {MODES[0]: forward, MODES[1]: lambda: train(attend, x, WANTED)}
    return {mode: replay_milliseconds(captured(run)) for mode, run in runs.items()}


def first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"[:300]
