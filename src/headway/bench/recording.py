"""Work that is recorded once and then replayed as a CUDA graph.

A step is hundreds of kernels, and in small models or small batches each is shorter than its launch takes in Python. As
a graph they are launched at once, and processes that share a GPU hand it whole steps.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import torch
from torch.optim import Optimizer

MOST = 128  # graphs of one run: each keeps some megabytes


class NotRecorded(RuntimeError):
    """Raised for work that cannot be recorded; says why."""


class Recordings:
    """Runs work by its key: the first time as it is, which compiles it; the second time it is recorded, then replayed.

    Work that is recorded reads and writes tensors that stay where they are, waits for nothing, and draws its random
    numbers on the device. What it allocates belongs to all recordings together: the next may write over it.

    Args:
        on: whether anything is recorded, which needs a CUDA device and `own_stream`; else all work runs as it is.
        optimizer: the one that the work steps, if any.
    """

    def __init__(self, *, on: bool, optimizer: Optimizer | None = None) -> None:
        self.on, self.optimizer = on, optimizer
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph | None] = {}  # None ran once and is not recorded yet
        self.pool = torch.cuda.graph_pool_handle() if on else None

    def __call__(self, key: Hashable, work: Callable[[], object]) -> None:
        if not self.on or (key not in self.graphs and len(self.graphs) >= MOST):
            work()
        elif key not in self.graphs:
            self.graphs[key] = None
            work()
        else:
            graph = self.graphs[key]
            if graph is None:
                graph = self.graphs[key] = self._record(work)
            graph.replay()

    def _record(self, work: Callable[[], object]) -> torch.cuda.CUDAGraph:
        """Record the work as a graph. Recording computes nothing, and threads that prepare batches go on meanwhile."""
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream()
        try:
            with (
                _capturable(self.optimizer),
                torch.cuda.graph(graph, pool=self.pool, stream=stream, capture_error_mode="thread_local"),
            ):
                work()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise NotRecorded(str(error).splitlines()[0]) from error
        return graph


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Run the block in a stream of its own on a GPU: work in the default stream cannot be recorded."""
    if device.type != "cuda":
        yield
        return
    outside = torch.cuda.current_stream(device)
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(outside)
    with torch.cuda.stream(stream):
        yield
    outside.wait_stream(stream)


@contextmanager
def _capturable(optimizer: Optimizer | None) -> Iterator[None]:
    """Set the flag without which torch's optimizers refuse to be recorded; with it they warn of other steps."""
    groups = [] if optimizer is None else optimizer.param_groups
    for group in groups:
        group["capturable"] = True
    try:
        yield
    finally:
        for group in groups:
            group["capturable"] = False
