"""A run's folder, held and opened by all processes together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from headway.bench.tasks.training.checkpoint import last_good
from headway.bench.tasks.training.processes import Processes
from headway.bench.tasks.training.runs import RunFolder


@contextmanager
def begun(
    folder: RunFolder, config: Mapping[str, Any], processes: Processes, *, resume: bool, free: Collection[str]
) -> Iterator[bool]:
    """Begin the run of a configuration, or go on with it; yields whether it is finished. See `RunFolder.open`."""
    with ExitStack() as stack, processes.noticing_the_dead(lambda: last_good(folder.checkpoints)):

        def begin() -> bool:
            stack.enter_context(folder.held())
            folder.open(config, resume=resume, free=free)
            return folder.finished

        yield processes.on_main(begin)
