"""Who does the runs of one sweep or several: this process, or some that share the device and the data.

Not torch.func.vmap over seeds: the operators of attention have no batching rules, and encodings compare values.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from typing import Any

import torch
from transformers import PreTrainedModel

from headway.bench.recording import own_stream
from headway.bench.tasks.finetune.bench import Bench
from headway.bench.tasks.finetune.config import FinetuneConfig
from headway.bench.tasks.finetune.data import Material
from headway.bench.tasks.finetune.trial import RunResult, finetune_once, steps_of
from headway.bench.tasks.training.processes import Processes
from headway.bench.tasks.training.runs import RunFolder, RunStopped
from headway.storage import read_json

Pair = tuple[float, int]  # learning rate and seed


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A configuration, its folder, and its data, which are read and tokenised once for all runs."""

    config: FinetuneConfig
    folder: RunFolder
    tokenizer: Any
    data: Material

    def run_folder(self, rate: float, seed: int) -> RunFolder:
        return RunFolder(self.folder.runs / f"rate-{rate:g}-seed-{seed}")

    def finished(self) -> dict[Pair, RunResult]:
        """Results of the runs that are done, in the order of the grid."""
        folders = {pair: self.run_folder(*pair) for pair in self.config.grid.runs}
        return {pair: RunResult(**read_json(each.result_file)) for pair, each in folders.items() if each.finished}

    def leader(self) -> Pair:
        """The finished run with the highest score; of equal ones the first of the grid."""
        return _leader(self.finished())

    def leads(self, pair: Pair, score: float) -> bool:
        """Whether a run that ends with the score goes before all that are finished."""
        places = {each: place for place, each in enumerate(self.config.grid.runs)}
        mine = (-score, places[pair])
        return all(mine < (-result.score, places[other]) for other, result in self.finished().items())

    def drop_models(self) -> None:
        """Delete the models of finished runs, except the leader's."""
        done = self.finished()  # read once: a run that ends meanwhile may lead
        leader = _leader(done)
        for pair in done:
            if pair != leader and (model := self.run_folder(*pair).model).exists():
                shutil.rmtree(model)


def _leader(done: Mapping[Pair, RunResult]) -> Pair:
    return max(done, key=lambda pair: done[pair].score)


def train_all(
    sweeps: Sequence[Sweep], *, jobs: int, cpu: bool, graphs: bool, progress: bool, done: Callable[[Sweep], None]
) -> None:
    """Do all runs that are not finished; of each sweep's models the best one stays, in its run's folder.

    `done` is called with a sweep once its last run is finished, while others go on.
    """
    todo = [
        (number, pair)
        for number, sweep in enumerate(sweeps)
        for pair in sweep.config.grid.runs
        if not sweep.run_folder(*pair).finished
        or sweep.run_folder(*pair).checkpoints.exists()  # which a kill left there
    ]

    def note(sweep: Sweep, result: RunResult) -> None:
        _note(sweep, result, progress)
        if len(sweep.finished()) == len(sweep.config.grid.runs):
            done(sweep)

    if min(jobs, len(todo)) > 1:
        _together(sweeps, todo, jobs=min(jobs, len(todo)), cpu=cpu, graphs=graphs, note=note)
        return
    worker = Worker(sweeps, cpu=cpu, graphs=graphs, show=progress and sys.stderr.isatty())
    for number, pair in todo:
        note(sweeps[number], worker.do(number, pair))


class Worker:
    """A process that does runs one after the other, on one device."""

    def __init__(self, sweeps: Sequence[Sweep], *, cpu: bool, graphs: bool, show: bool) -> None:
        self.sweeps, self.graphs, self.show = sweeps, graphs, show
        self.processes = Processes(cpu=cpu)
        if self.processes.world > 1:
            raise ValueError(
                f"processes: expected one, got {self.processes.world}. Share the runs out with --jobs instead."
            )
        self._bench: tuple[int, Bench] | None = None  # and the number of its sweep

    def do(self, number: int, pair: Pair) -> RunResult:
        """One run of the sweep of that number."""
        sweep, (rate, seed) = self.sweeps[number], pair
        return finetune_once(
            sweep.config,
            sweep.data,
            sweep.tokenizer,
            rate=rate,
            seed=seed,
            folder=sweep.run_folder(rate, seed),
            bench_of=lambda model: self._bench_of(number, model),
            show=self.show,
            leads=lambda score: sweep.leads(pair, score),
        )

    def _bench_of(self, number: int, model: PreTrainedModel) -> Bench:
        """The bench of the run before, if it was of the same sweep, else a new one; the other's memory is then free."""
        if self._bench is not None and self._bench[0] == number:
            bench = self._bench[1]
            bench.begin(model)
            return bench
        self._bench = None
        sweep = self.sweeps[number]
        with own_stream(self.processes.device):
            bench = Bench(sweep.config, model, sweep.data, self.processes, graphs=self.graphs)
        self._bench = number, bench
        return bench


_worker: Worker | None = None  # of a process that was started for a share of the runs
_stop: Event | None = None  # set where no run is to be begun any more


def _begin(
    sweeps: Sequence[Sweep], numbers: Synchronized[int], stop: Event, workers: int, cpu: bool, graphs: bool
) -> None:
    """Take this process's part of the machine, a GPU in turn and some of the cores, and make its worker."""
    global _worker, _stop
    _stop = stop
    threading.Thread(target=_follow_parent, daemon=True, name="parent").start()
    with numbers.get_lock():
        number, numbers.value = numbers.value, numbers.value + 1
    if torch.cuda.is_available() and not cpu:
        torch.cuda.set_device(number % torch.cuda.device_count())
    torch.set_num_threads(max(1, torch.get_num_threads() // workers))
    _worker = Worker(sweeps, cpu=cpu, graphs=graphs, show=False)


def _follow_parent() -> None:
    """End with the process that shares the runs out, however it ends: another may begin where this one would write."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _do(number: int, pair: Pair) -> RunResult:
    assert _worker is not None and _stop is not None
    if _stop.is_set():  # a pool has more runs than processes in its queue, from where none can be called back
        raise RunStopped("jobs: expected all runs to end well, got one that did not. No other is begun.")
    try:
        return _worker.do(number, pair)
    except BaseException:
        _stop.set()
        raise


def _together(
    sweeps: Sequence[Sweep],
    todo: Sequence[tuple[int, Pair]],
    *,
    jobs: int,
    cpu: bool,
    graphs: bool,
    note: Callable[[Sweep, RunResult], None],
) -> None:
    """Every process takes the next run when it is done with one, the longest first.

    After a failure the runs under way are finished, and no other is begun; at Ctrl-C they end where they are.
    """
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    begun = (sweeps, context.Value("i", 0), stop, jobs, cpu, graphs)
    order = sorted(todo, key=lambda each: -steps_of(sweeps[each[0]].config, sweeps[each[0]].data))
    others = multiprocessing.active_children()
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin, initargs=begun) as pool:
        try:
            futures = {pool.submit(_do, number, pair): sweeps[number] for number, pair in order}
            for future in as_completed(futures):
                note(futures[future], future.result())
        except BrokenProcessPool as error:
            raise RunStopped(
                f"jobs: expected all {jobs} processes to finish, got one that died, perhaps for lack of memory. "
                f"Finished runs are kept: start again with --resume, and with fewer --jobs."
            ) from error
        except KeyboardInterrupt:
            for process in set(multiprocessing.active_children()).difference(others):
                process.terminate()
            raise
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)


def _note(sweep: Sweep, result: RunResult, progress: bool) -> None:
    """A run is finished: say so, and delete models that are not the best one."""
    sweep.drop_models()
    if not progress:
        return
    split, metrics = next(iter(result.metrics.items()))
    named = ", ".join(
        f"{name.replace('_', ' ')} {100 * value:.1f}" for name, value in metrics.items() if name != "score"
    )
    print(
        f"{sweep.config.task} run {len(sweep.finished())}/{len(sweep.config.grid.runs)}: rate {result.rate:g}, seed "
        f"{result.seed}: {split} {named} after {result.step} of {result.steps} steps, {result.seconds:.0f} s",
        file=sys.stderr,
        flush=True,
    )
