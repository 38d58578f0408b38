"""Batches made on a thread while the device computes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def prefetched(make: Callable[[int], T], steps: range, ahead: int = 2) -> Iterator[tuple[int, T]]:
    """Each step with what `make` returns for it, made up to `ahead` steps before it is asked for.

    An error of `make` is raised where its step is asked for.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="batches") as worker:
        waiting: deque[Future[T]] = deque(worker.submit(make, step) for step in steps[:ahead])
        try:
            for index, step in enumerate(steps):
                made = waiting.popleft().result()
                for later in steps[index + ahead : index + ahead + 1]:
                    waiting.append(worker.submit(make, later))
                yield step, made
        finally:
            for future in waiting:
                future.cancel()
