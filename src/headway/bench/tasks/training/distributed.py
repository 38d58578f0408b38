"""One process or many: the device of each, communication between them, and models distributed over them.

accelerate detects how the processes were started (torchrun, accelerate launch, MPI, or not at all) and connects them.
Its `Accelerator` is not used: there, precision is a setting of the whole process, which a second run could not change,
and FSDP is silently off between CPU processes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from headway.bench.tasks.training.checkpoint import last_checkpoint_hint
from headway.bench.tasks.training.objective import Objective
from headway.bench.tasks.training.run_folder import RunFolder, RunStopped

T = TypeVar("T")
STEP_TIMEOUT = timedelta(minutes=10)  # how long processes wait for one another in a step
MAIN_TIMEOUT = timedelta(days=30)  # how long they wait for the main process; if it dies, that is noticed at once


class Processes:
    """All processes of a run, as one of them sees them; the main process has rank 0."""

    def __init__(self, *, cpu: bool = False) -> None:
        cpu = cpu or not torch.cuda.is_available() or parse_flag_from_env("ACCELERATE_USE_CPU")
        state = PartialState(cpu=cpu, timeout=STEP_TIMEOUT)  # the first one decides for the whole process
        self.rank, self.world = state.process_index, state.num_processes
        self.device = state.device
        if self.world == 1:
            self.device = torch.device("cpu") if cpu else torch.device("cuda", torch.cuda.current_device())
        elif cpu != (state.device.type == "cpu"):
            raise ValueError(f"cpu: expected the same choice in all runs of a process, got {cpu} after {state.device}.")
        self.main = self.rank == 0
        self._control = dist.new_group(backend="gloo", timeout=MAIN_TIMEOUT) if self.world > 1 else None

    def on_main(self, work: Callable[[], T]) -> T:
        """Call `work` in the main process only; all processes return its result, and all stop if it fails."""
        if self._control is None:
            return work()
        error: Exception | None = None
        answer: list[object] = [None, None]
        if self.main:
            try:
                answer[0] = work()
            except Exception as failure:
                error, answer[1] = failure, str(failure)
        dist.broadcast_object_list(answer, src=0, group=self._control)
        if error is not None:
            raise error
        if answer[1] is not None:
            raise RunStopped(f"The main process stopped: {answer[1]}")
        return answer[0]  # type: ignore[return-value]

    def to_device(self, value: Tensor) -> Tensor:
        """Copy a tensor to this process's device, from pinned memory without waiting."""
        return value.to(self.device, non_blocking=True)

    def sum(self, value: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes."""
        if self.world > 1:
            value = value.clone()
            dist.all_reduce(value)
        return value

    @contextmanager
    def explain_lost_processes(self, hint: Callable[[], str]) -> Iterator[None]:
        """Raise `RunStopped` if another process died or hangs; `hint` says from where the run can continue."""
        try:
            yield
        except RuntimeError as error:
            if self.world == 1 or isinstance(error, RunStopped) or not _is_of_communication(error):
                raise
            raise RunStopped(
                f"process {self.rank} of {self.world}: another process died or hangs, and its own messages say why "
                f"({str(error).split('. ')[0]}). {hint()} Start all processes again with --resume."
            ) from error


def distribute(module: Objective, processes: Processes, *, fsdp: bool) -> nn.Module:
    """Move a module to this process's device, and average its gradients over all processes.

    With `fsdp`, parameters, gradients and the optimizer's state are sharded, one shard for each process (FSDP2). Make
    the optimizer afterwards.
    """
    module.to(processes.device)
    if fsdp:
        if processes.world == 1:
            raise ValueError("fsdp: expected several processes to share a model, got one. Start them with torchrun.")
        mesh = init_device_mesh(processes.device.type, (processes.world,))
        for layer in module.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(module, mesh=mesh)
        return module
    if processes.world == 1:
        return module
    devices = [processes.device] if processes.device.type == "cuda" else None
    return DistributedDataParallel(module, device_ids=devices, gradient_as_bucket_view=True)


def gradient_sync(module: nn.Module, *, last: bool) -> AbstractContextManager[object]:
    """Return a context for one of several parts of a batch, in the last of which alone gradients are exchanged."""
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(last)
    elif isinstance(module, DistributedDataParallel) and not last:
        return module.no_sync()
    return nullcontext()


def _is_of_communication(error: RuntimeError) -> bool:
    text = str(error).lower()
    return isinstance(error, dist.DistError) or any(word in text for word in ("gloo", "nccl", "connection"))


@contextmanager
def begin_run(
    folder: RunFolder, config: Mapping[str, Any], processes: Processes, *, resume: bool, free: Collection[str]
) -> Iterator[bool]:
    """Lock a run's folder, begin or resume its run, and yield whether it is finished. See `RunFolder.open`."""
    with ExitStack() as stack, processes.explain_lost_processes(lambda: last_checkpoint_hint(folder.checkpoints)):

        def begin() -> bool:
            stack.enter_context(folder.locked())
            folder.open(config, resume=resume, free=free)
            return folder.finished

        yield processes.on_main(begin)
