"""Training: steps, reports, evaluations and checkpoints, in one process or many; killed at any moment, it goes on.

A step is a pure function of the weights and of (seed, step): batches, masks and dropout are drawn anew from these two,
never from a stream. So a run that goes on from a checkpoint ends with the same weights, bit for bit on a CPU, and
however many processes there are, they see the same batches.

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
from headway.bench.tasks.training.run_folder import RunFolder, RunStopped
from headway.bench.tasks.training.settings import Intervals, Steps


class Training:
    """A run in progress: put back to its last checkpoint when it is made, and taken on from there by `run`.

    Args:
        parts: (step, rank, world) -> the batches that a process computes in a step. Those of all processes together
            depend on the step alone; each process has as many.
        evaluate: numbers by name, from the objective; called in all processes, with dropout off.
        tokens: of a step, for the speed that is reported.
        dynamic: whether shapes differ from batch to batch, for the compiler.
        graphs: on a GPU that one process has for itself, replay steps as CUDA graphs.
        snapshots: weights to keep beside the checkpoints.
    """

    def __init__(
        self,
        objective: Objective,
        *,
        parts: Callable[[int, int, int], list[Batch]],
        evaluate: Callable[[Callable[[Batch, Tensor], Tensor]], dict[str, float]],
        plan: Steps,
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
        self.plan, self.intervals, self.seed = plan, intervals, seed
        self.folder, self.processes = folder, processes
        self.objective = objective
        self.spread = distribute(objective, processes, fsdp=fsdp)
        self.forward = torch.compile(self.spread, dynamic=dynamic) if plan.compile else self.spread
        self.optimizer = plan.optimizer(objective)
        saved = checkpoint.load(folder.checkpoints, objective, self.optimizer) or {"step": 0}
        self.start: int = saved["step"]
        self.seconds: float = saved.get("seconds", 0.0)  # spent on steps, over all attempts
        self.last: dict[str, float] = saved.get("last", {})  # what was logged last, by name
        self.meter = Meter(processes, **saved.get("meter", {}))
        self.snapshots = snapshots
        if snapshots is not None:
            snapshots.best = saved.get("best")
        device = processes.device
        self.count, self.loss, self.norm = (torch.zeros((), device=device) for _ in range(3))  # of the step
        self.recordings = Recordings(
            on=graphs and device.type == "cuda" and processes.world == 1, optimizer=self.optimizer
        )
        self.places: dict[Hashable, Batch] = {}  # where batches lie that recorded steps read, by their shapes
        if self.recordings.on:
            rates_as_tensors(self.optimizer, device)

    def run(self, *, show: bool = True, tensorboard: bool = False) -> dict[str, float]:
        """Take the remaining steps; return what was logged last, by name."""
        self.clock, self.logged = time.perf_counter(), (self.start, self.seconds)
        with self._journal(show, tensorboard) as self.journal, own_stream(self.processes.device):
            self.spread.train()
            for step, (parts, count) in prefetched(self._batch, range(self.start, self.plan.steps)):
                with self._explaining():
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
        return done % every == 0 or done == self.plan.steps

    def _batch(self, step: int) -> tuple[list[Batch], Tensor]:
        """This process's parts of a step's batch, and how many items there are in them. Runs on a thread."""
        parts = self.parts(step, self.processes.rank, self.processes.world)
        count = torch.stack([self.objective.count(part) for part in parts]).sum()
        if self.processes.device.type == "cuda":  # pinned memory is copied while the device computes
            return [{name: value.pin_memory() for name, value in part.items()} for part in parts], count.pin_memory()
        return parts, count

    def _step(self, step: int, parts: list[Batch], count: Tensor) -> None:
        """One update of the weights. Nothing here waits for the device, but for recordings."""
        everywhere = self.processes.sum(self.processes.to_device(count).float())
        self.count.copy_(everywhere.clamp(min=1) / self.processes.world)  # gradients are averaged over processes
        self.loss.zero_()
        set_rate(self.optimizer, self.plan.rate(step))
        for index, part in enumerate(parts):
            seed_dropout(self.processes.device, seed_of(self.seed, step, self.processes.rank, index))
            shapes, batch = self._placed(part)
            with gradient_sync(self.spread, last=index == len(parts) - 1):
                self.recordings(shapes, partial(self._whole if len(parts) == 1 else self._part, batch))
        if len(parts) > 1:
            self.recordings("update", partial(self._update, keep=self.recordings.on))
        self.meter.add(step, self.loss, self.norm)

    def _placed(self, part: Batch) -> tuple[Hashable, Batch]:
        """A part's shapes, and its tensors on the device: for recordings in the same place for the same shapes."""
        if not self.recordings.on:
            return None, {name: self.processes.to_device(value) for name, value in part.items()}
        shapes = tuple((name, value.shape, value.dtype) for name, value in part.items())
        if shapes not in self.places:
            self.places[shapes] = {
                name: torch.empty_like(value, device=self.processes.device) for name, value in part.items()
            }
        places = self.places[shapes]
        for name, value in part.items():
            places[name].copy_(value, non_blocking=True)
        return shapes, places

    def _whole(self, batch: Batch) -> None:
        """A step of one part."""
        self._part(batch)
        self._update(keep=False)

    def _part(self, batch: Batch) -> None:
        """Add a part's loss to the step's, and its gradients."""
        with self.precision():
            share = self.forward(batch, self.count)
        share.backward()
        self.loss += share.detach()

    def _update(self, *, keep: bool) -> None:
        """Take the step. `keep` leaves gradients of zero where they lie: recorded parts add to them there."""
        gradients = [each.grad for each in self.objective.parameters() if each.grad is not None]
        norm = nn.utils.get_total_norm(gradients)
        if self.plan.clip is not None:
            nn.utils.clip_grads_with_norm_(self.objective.parameters(), self.plan.clip, norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=not keep)
        self.norm.copy_(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        """Say what stands behind an error in a step: full memory, or weights that are broken since an earlier step."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise RunStopped(
                f"memory: expected a step to fit, got: {str(error).splitlines()[0]} {self.plan.less_memory_hint()} "
                f"{self._left()}"
            ) from error
        except NotRecorded as error:
            raise RunStopped(
                f"graphs: expected a step that can be recorded, got: {error} {self._left()} "
                f"Start again with --resume and --no-graphs."
            ) from error
        except ValueError as error:  # on a CPU, attention refuses a bias that is not finite
            if self.meter.broken_step() is not None:
                raise self._diverged() from error
            raise

    def precision(self) -> torch.autocast:
        """In which forward passes run."""
        return torch.autocast(self.processes.device.type, torch.bfloat16, enabled=bool(self.plan.bf16))

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
            learning_rate=self.plan.rate(done - 1),
            tokens_per_second=steps * self.tokens / seconds,
            seconds=self.seconds,
        )

    def _checked(self) -> Reading:
        """The meter's reading, if loss and gradients were finite up to now. The host waits for the device here."""
        reading = self.meter.read()
        if reading.broken_step is not None:
            raise self._diverged()
        return reading

    def _diverged(self) -> RunStopped:
        step = self.meter.broken_step()
        assert step is not None
        return RunStopped(
            f"loss: it became NaN or infinite at step {step + 1} (learning rate {self.plan.rate(step):.3g}). "
            f"{self._left()} A lower learning rate, a longer warm-up or --set optimisation.bf16=false may help; each "
            f"is a new run."
        )

    def _left(self) -> str:
        return checkpoint.last_checkpoint_hint(self.folder.checkpoints)

    @torch.no_grad()
    def _evaluate(self, done: int) -> None:
        self._checked()
        with self._off_the_clock(), self.precision():
            self.spread.eval()
            try:
                found = self.evaluate_with(self.forward)
            except FloatingPointError as error:  # of a search for translations
                raise RunStopped(f"evaluation: after step {done}, {error} {self._left()}") from error
            self.spread.train()
        if not all(math.isfinite(value) for value in found.values()):
            raise RunStopped(f"evaluation: expected finite numbers, got {found} after step {done}. {self._left()}")
        self._note(done, **found)

    def _save(self, done: int) -> None:
        """A checkpoint, unless the weights are broken. Older ones go when it is whole."""
        self._checked()
        with self._off_the_clock():
            state = {"seconds": self.seconds, "last": self.last, "meter": self.meter.saved()}
            tensors = checkpoint.model_tensors(self.objective, wanted=self.processes.main)
            if self.snapshots is not None:
                evaluated = self.last["evaluation_loss"] if self._due(done, self.intervals.evaluate) else None
                state["best"] = self.snapshots.judge(done, evaluated)
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
        return Journal(self.folder, steps=self.plan.steps, start=self.start, show=show, tensorboard=tensorboard)

    def _tick(self) -> None:
        now = time.perf_counter()
        self.seconds, self.clock = self.seconds + now - self.clock, now

    @contextmanager
    def _off_the_clock(self) -> Iterator[None]:
        self._tick()
        yield
        self.clock = time.perf_counter()


def seed_dropout(device: torch.device, seed: int) -> None:
    """As torch.manual_seed for one device; that writes down the call stack each time it is called without a GPU."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def seed_of(*numbers: int) -> int:
    """A seed that differs wherever any of the numbers does."""
    text = "/".join(map(str, numbers))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")


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
