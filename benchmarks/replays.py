"""Timing on a GPU: a call is captured as a CUDA graph, and all graphs take turns, so that drift hits all alike."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

Run = Callable[[], Any]
SHORT = 0.3  # milliseconds: below, a sample is the mean of several calls back to back


def capture(run: Run, pool: Any = None) -> torch.cuda.CUDAGraph:
    """Run the call twice, then capture it as a graph. Graphs of one pool share memory and must take turns."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        run()
    return graph


def replay_milliseconds(graph: torch.cuda.CUDAGraph, repeats: int = 3) -> float:
    """Return the median of a few replays, after one that is not counted."""
    graph.replay()
    events = [_events() for _ in range(repeats)]
    for start, stop in events:
        start.record()
        graph.replay()
        stop.record()
    torch.cuda.synchronize()
    return float(statistics.median(start.elapsed_time(stop) for start, stop in events))


def replayed_in_turns(
    graphs: dict[Any, torch.cuda.CUDAGraph], calls: dict[Any, int], rounds: int, deadline: float
) -> dict[Any, list[float]]:
    """Return milliseconds of a replay of each graph in each round, after a round that is not counted."""
    samples: dict[Any, list[float]] = {key: [] for key in graphs}
    for number in range(rounds + 1):
        events = {key: _events() for key in graphs}
        for key, graph in graphs.items():
            start, stop = events[key]
            start.record()
            for _ in range(calls[key]):
                graph.replay()
            stop.record()
        torch.cuda.synchronize()
        if number > 0:
            for key, (start, stop) in events.items():
                samples[key].append(start.elapsed_time(stop) / calls[key])
        if number >= 5 and time.monotonic() > deadline:
            break
    return samples


def called_in_turns(
    runs: dict[Any, Run], calls: dict[Any, int], rounds: int, deadline: float, gpu: bool
) -> dict[Any, list[float]]:
    """Return milliseconds of a call from Python in each round: several calls, waiting for the GPU after the last."""
    samples: dict[Any, list[float]] = {key: [] for key in runs}
    gc.collect()
    for number in range(rounds + 1):
        for key, run in runs.items():
            if gpu:
                torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(calls[key]):
                run()
            if gpu:
                torch.cuda.synchronize()
            if number > 0:
                samples[key].append((time.perf_counter() - start) * 1e3 / calls[key])
        if number >= 5 and time.monotonic() > deadline:
            break
    return samples


def replays_in_a_row(milliseconds: float) -> int:
    """Number of replays whose mean is one sample."""
    return 1 if milliseconds >= SHORT else min(10, math.ceil(2 * SHORT / milliseconds))


def calls_in_a_row(milliseconds: float) -> int:
    """Number of calls from Python whose mean is one sample: what four milliseconds hold, from 8 to 20.

    So the host works ahead of the GPU, as it does where layers follow one another. Calls of more than 5 ms are fewer.
    """
    return min(20, max(round(4 / milliseconds), min(8, math.ceil(40 / milliseconds))))


def _events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def clock_milliseconds(run: Run) -> float:
    """Return milliseconds of one call on a CPU."""
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e3


def free_memory(gpu: bool) -> None:
    """Give what torch keeps for later back to the GPU."""
    if gpu:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
