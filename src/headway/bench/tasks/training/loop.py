"""The training loop: steps, logs, evaluations and checkpoints, in one process or many.

A step is a pure function of the weights and of (seed, step): batches, masks and dropout are drawn from these two and
never from a stream of random numbers. Therefore a run that is resumed from a checkpoint ends with the same weights, bit
for bit on a CPU, and any number of processes sees the same batches.

On one GPU steps are replayed as CUDA graphs, one for each combination of a batch's shapes.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from headway.bench.recording import NotRecorded, Recordings, own_stream
from headway.bench.tasks.training import checkpoint
from headway.bench.tasks.training.checkpoint import Snapshots
from headway.bench.tasks.training.distributed import Processes, distribute, gradient_sync
from headway.bench.tasks.training.journal import Journal, Meter, Reading
from headway.bench.tasks.training.objective import Batch, Objective
from headway.bench.tasks.training.optimizer import rates_as_tensors, set_rate
from headway.bench.tasks.training.run_folder import Diverged, RunFolder, RunStopped
from headway.bench.tasks.training.settings import Intervals, Steps

T = TypeVar("T")


class Training:
    """A run in progress: making one restores its last checkpoint, and `run` takes the remaining steps.

    Args:
        parts: called with (step, rank, world); returns the batches that a process computes in a step. All processes
            have the same number of batches, and all batches of a step together depend on the step alone.
        evaluate: called with the objective in all processes, with dropout off; returns numbers by name.
        optimisation: the steps, their learning rates and the optimizer.
        intervals: number of steps between logs, evaluations and checkpoints.
        tokens: number of tokens of a step, for the speed that is reported.
        dynamic: tell the compiler that shapes differ from batch to batch.
        graphs: on a GPU that one process has for itself, replay steps as CUDA graphs.
        snapshots: weights to keep beside the checkpoints.
    """

    def __init__(
        self,
        objective: Objective,
        *,
        parts: Callable[[int, int, int], list[Batch]],
        evaluate: Callable[[Callable[[Batch, Tensor], Tensor]], dict[str, float]],
        optimisation: Steps,
        intervals: Intervals,
        tokens: float,
        seed: int,
        folder: RunFolder,
        processes: Processes,
        fsdp: bool = False,
        dynamic: bool = False,
        graphs: bool = True,
        snapshots: Snapshots | None = None,
    ) -> None:
        self.parts, self.evaluate_with, self.tokens = parts, evaluate, tokens
        self.optimisation, self.intervals, self.seed = optimisation, intervals, seed
        self.folder, self.processes = folder, processes
        self.objective = objective
        self.spread = distribute(objective, processes, fsdp=fsdp)
        self.forward = torch.compile(self.spread, dynamic=dynamic) if optimisation.compile else self.spread
        self.optimizer = optimisation.optimizer(objective)
        saved = checkpoint.load(folder.checkpoints, objective, self.optimizer) or {"step": 0}
        self.start: int = saved["step"]
        self.seconds: float = saved.get("seconds", 0.0)  # of all steps, in all processes that worked on the run
        self.last: dict[str, float] = saved.get("last", {})  # the last logged value of each name
        self.meter = Meter(processes, **saved.get("meter", {}))
        self.snapshots = snapshots
        if snapshots is not None:
            snapshots.best = saved.get("best")
        device = processes.device
        self.count, self.loss, self.norm = (torch.zeros((), device=device) for _ in range(3))  # of the step
        self.recordings = Recordings(
            on=graphs and device.type == "cuda" and processes.world == 1, optimizer=self.optimizer
        )
        self.inputs: dict[Hashable, Batch] = {}  # tensors that recorded steps read, by the shapes of a batch
        if self.recordings.on:
            rates_as_tensors(self.optimizer, device)

    def run(self, *, show: bool = True, tensorboard: bool = False) -> dict[str, float]:
        """Take the remaining steps; return the last logged value of each name."""
        self.clock, self.logged = time.perf_counter(), (self.start, self.seconds)
        with self._journal(show, tensorboard) as self.journal, own_stream(self.processes.device):
            self.spread.train()
            for step, (parts, count) in prefetched(self._batch, range(self.start, self.optimisation.steps)):
                with self._explain_errors():
                    self._step(step, parts, count)
                done = step + 1
                if self.journal is not None:
                    self.journal.step(done)
                if self._due(done, self.intervals.log):
                    self._log(done)
                if self._due(done, self.intervals.evaluate):
                    self._evaluate(done)
                if self._due(done, self.intervals.checkpoint):
                    self._save(done)
        return self.last

    def _due(self, done: int, every: int) -> bool:
        return done % every == 0 or done == self.optimisation.steps

    def _batch(self, step: int) -> tuple[list[Batch], Tensor]:
        """Make this process's parts of a step's batch, and count their items. Runs on a thread."""
        parts = self.parts(step, self.processes.rank, self.processes.world)
        count = torch.stack([self.objective.count(part) for part in parts]).sum()
        if self.processes.device.type == "cuda":  # pinned memory is copied while the device computes
            return [{name: value.pin_memory() for name, value in part.items()} for part in parts], count.pin_memory()
        return parts, count

    def _step(self, step: int, parts: list[Batch], count: Tensor) -> None:
        """Update the weights once. Nothing here waits for the device, except when a step is recorded."""
        everywhere = self.processes.sum(self.processes.to_device(count).float())
        self.count.copy_(everywhere.clamp(min=1) / self.processes.world)  # gradients are averaged over processes
        self.loss.zero_()
        set_rate(self.optimizer, self.optimisation.rate(step))
        for index, part in enumerate(parts):
            seed_dropout(self.processes.device, seed_of(self.seed, step, self.processes.rank, index))
            shapes, batch = self._to_device(part)
            with gradient_sync(self.spread, last=index == len(parts) - 1):
                self.recordings(shapes, partial(self._full_step if len(parts) == 1 else self._add_gradients, batch))
        if len(parts) > 1:
            self.recordings("update", partial(self._update, keep=self.recordings.on))
        self.meter.add(step, self.loss, self.norm)

    def _to_device(self, part: Batch) -> tuple[Hashable, Batch]:
        """Return a part's shapes, and its tensors on the device, at one address for equal shapes if recorded."""
        if not self.recordings.on:
            return None, {name: self.processes.to_device(value) for name, value in part.items()}
        shapes = tuple((name, value.shape, value.dtype) for name, value in part.items())
        if shapes not in self.inputs:
            self.inputs[shapes] = {
                name: torch.empty_like(value, device=self.processes.device) for name, value in part.items()
            }
        places = self.inputs[shapes]
        for name, value in part.items():
            places[name].copy_(value, non_blocking=True)
        return shapes, places

    def _full_step(self, batch: Batch) -> None:
        """Take a step whose batch has one part."""
        self._add_gradients(batch)
        self._update(keep=False)

    def _add_gradients(self, batch: Batch) -> None:
        """Add the loss and the gradients of a part to those of the step."""
        with self.precision():
            share = self.forward(batch, self.count)
        share.backward()
        self.loss += share.detach()

    def _update(self, *, keep: bool) -> None:
        """Update the weights. With `keep`, gradients are set to zero in place: recorded parts add to them there."""
        gradients = [each.grad for each in self.objective.parameters() if each.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        if self.optimisation.clip is not None:
            nn.utils.clip_grads_with_norm_(self.objective.parameters(), self.optimisation.clip, norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=not keep)
        self.norm.copy_(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        """Turn an error in a step into its cause: too little memory, or weights that an earlier step broke."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise RunStopped(
                f"training: a step ran out of memory: {str(error).splitlines()[0]} "
                f"{self.optimisation.less_memory_hint()} {self._last_checkpoint()}"
            ) from error
        except NotRecorded as error:
            raise RunStopped(
                f"training: a step could not be recorded as a CUDA graph: {error} {self._last_checkpoint()} "
                f"Start again with --resume and --no-graphs."
            ) from error
        except ValueError as error:  # on a CPU, attention refuses a bias that is not finite
            if self.meter.broken_step() is not None:
                raise self._diverged() from error
            raise

    def precision(self) -> torch.autocast:
        """Return the precision of forward passes, as a context."""
        return torch.autocast(self.processes.device.type, torch.bfloat16, enabled=bool(self.optimisation.bf16))

    def _log(self, done: int) -> None:
        reading = self._checked()
        self._tick()
        steps, seconds = done - self.logged[0], self.seconds - self.logged[1]
        self.logged = (done, self.seconds)
        self.meter.reset()
        self._note(
            done,
            loss=reading.loss,
            gradient_norm=reading.gradient_norm,
            learning_rate=self.optimisation.rate(done - 1),
            tokens_per_second=steps * self.tokens / seconds,
            seconds=self.seconds,
        )

    def _checked(self) -> Reading:
        """Read the meter; raise if loss or gradients were not finite. The host waits for the device here."""
        reading = self.meter.read()
        if reading.broken_step is not None:
            raise self._diverged()
        return reading

    def _diverged(self) -> Diverged:
        step = self.meter.broken_step()
        assert step is not None
        return Diverged(
            f"training: the loss or a gradient became NaN or infinite at step {step + 1} (learning rate "
            f"{self.optimisation.rate(step):.3g}). {self._last_checkpoint()} A lower learning rate, a longer warm-up "
            f"or --set optimisation.bf16=false may help; each is a new run."
        )

    def _last_checkpoint(self) -> str:
        return checkpoint.last_checkpoint_hint(self.folder.checkpoints)

    @torch.no_grad()
    def _evaluate(self, done: int) -> None:
        self._checked()
        with self._clock_stopped(), self.precision():
            self.spread.eval()
            try:
                found = self.evaluate_with(self.forward)
            except FloatingPointError as error:  # of a search for translations
                raise RunStopped(f"evaluation after step {done}: {error} {self._last_checkpoint()}") from error
            self.spread.train()
        if not all(math.isfinite(value) for value in found.values()):
            raise Diverged(
                f"evaluation: {_broken(found)} became NaN or infinite after step {done}. {self._last_checkpoint()}"
            )
        self._note(done, **found)

    def _save(self, done: int) -> None:
        """Write a checkpoint, unless the weights are broken, and then delete older ones."""
        self._checked()
        with self._clock_stopped():
            state = {"seconds": self.seconds, "last": self.last, "meter": self.meter.saved()}
            tensors = checkpoint.model_tensors(self.objective, wanted=self.processes.main)
            if self.snapshots is not None:
                evaluated = self.last["evaluation_loss"] if self._due(done, self.intervals.evaluate) else None
                state["best"] = self.snapshots.note_loss(done, evaluated)
            moments = checkpoint.optimizer_tensors(self.objective, self.optimizer, wanted=self.processes.main)

            def write() -> None:
                assert self.journal is not None  # the main process has one
                self.journal.sync()
                if self.snapshots is not None:
                    self.snapshots.save(done, tensors)
                checkpoint.save(self.folder.checkpoints, done, tensors, moments, state)
                checkpoint.prune(self.folder.checkpoints, self.intervals.keep)
                if self.snapshots is not None:
                    self.snapshots.prune(done)

            self.processes.on_main(write)

    def _note(self, done: int, **numbers: float) -> None:
        self.last |= numbers
        if self.journal is not None:
            self.journal.log({"step": done, **numbers})

    def _journal(self, show: bool, tensorboard: bool) -> AbstractContextManager[Journal | None]:
        if not self.processes.main:
            return nullcontext()
        return Journal(self.folder, steps=self.optimisation.steps, start=self.start, show=show, tensorboard=tensorboard)

    def _tick(self) -> None:
        now = time.perf_counter()
        self.seconds, self.clock = self.seconds + now - self.clock, now

    @contextmanager
    def _clock_stopped(self) -> Iterator[None]:
        self._tick()
        yield
        self.clock = time.perf_counter()


def _broken(found: dict[str, float]) -> str:
    """Name the numbers that are not finite."""
    return " and ".join(name for name, value in found.items() if not math.isfinite(value))


def seed_dropout(device: torch.device, seed: int) -> None:
    """Seed the generators of the CPU and of one device; torch.manual_seed records the call stack on every call."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def seed_of(*numbers: int) -> int:
    """Return a seed that differs if any of the numbers does."""
    text = "/".join(map(str, numbers))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


def prefetched(make: Callable[[int], T], steps: range, ahead: int = 2) -> Iterator[tuple[int, T]]:
    """Yield each step with what `make` returns for it; a thread works up to `ahead` steps in advance.

    An error of `make` is raised at its step.
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
