"""The runs of one sweep or several: in this process, or in worker processes that share the device.

Seeds are not trained together with torch.func.vmap, because attention's operators have no batching rules and encodings
compare values.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from headway.bench.processes import Worker, WorkerDied, ending, share_out
from headway.bench.recording import own_stream
from headway.bench.tasks.finetune.config import FinetuneConfig
from headway.bench.tasks.finetune.data import SweepData
from headway.bench.tasks.finetune.training_step import SharedModel
from headway.bench.tasks.finetune.trial import RunResult, finetune_once, steps_of
from headway.bench.tasks.training.distributed import Processes
from headway.bench.tasks.training.run_folder import RunFolder, RunStopped
from headway.storage import read_json

Pair = tuple[float, int]  # learning rate and seed
PRELOAD = ("headway.bench.tasks.finetune", "headway.pretrained.conversion")


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A configuration, its folder, and its data, which are read and tokenised once for all runs."""

    config: FinetuneConfig
    folder: RunFolder
    tokenizer: Any
    data: SweepData

    def run_folder(self, rate: float, seed: int) -> RunFolder:
        return RunFolder(self.folder.runs / f"rate-{rate:g}-seed-{seed}")

    def finished(self) -> dict[Pair, RunResult]:
        """Read the results of finished runs, in the order of the grid."""
        folders = {pair: self.run_folder(*pair) for pair in self.config.grid.runs}
        return {pair: RunResult(**read_json(each.result_file)) for pair, each in folders.items() if each.finished}

    def leader(self) -> Pair:
        """Return the finished run with the highest score; of equal ones the first of the grid."""
        return _best(self.finished())

    def leads(self, pair: Pair, score: float) -> bool:
        """Return whether a run with this score would be the best of all finished runs."""
        places = {each: place for place, each in enumerate(self.config.grid.runs)}
        mine = (-score, places[pair])
        return all(mine < (-result.score, places[other]) for other, result in self.finished().items())

    def drop_models(self) -> None:
        """Delete the models of finished runs, except the leader's."""
        done = self.finished()  # read once, because another run may end meanwhile
        leader = _best(done)
        for pair in done:
            if pair != leader and (model := self.run_folder(*pair).model).exists():
                shutil.rmtree(model)


def _best(done: Mapping[Pair, RunResult]) -> Pair:
    return max(done, key=lambda pair: done[pair].score)


def train_all(
    sweeps: Sequence[Sweep], *, jobs: int, cpu: bool, graphs: bool, progress: bool, done: Callable[[Sweep], None]
) -> None:
    """Do all unfinished runs; keep the best model of each sweep, in its run's folder.

    Args:
        jobs: number of processes that share the runs; with one, they are done in this process.
        done: called with a sweep once its last run is finished, while runs of other sweeps continue.
    """
    todo = [
        (number, pair)
        for number, sweep in enumerate(sweeps)
        for pair in sweep.config.grid.runs
        if not sweep.run_folder(*pair).finished
        or sweep.run_folder(*pair).checkpoints.exists()  # left by a killed process
    ]
    jobs = min(jobs, len(todo))
    if jobs > 1:
        finished = run_in_workers(sweeps, todo, jobs=jobs, cpu=cpu, graphs=graphs)
    else:
        do_run = SweepRunner(sweeps, cpu=cpu, graphs=graphs, show=progress and sys.stderr.isatty())
        finished = ((sweeps[number], do_run(number, pair)) for number, pair in todo)
    for sweep, result in finished:
        sweep.drop_models()
        if progress:
            _print_result(sweep, result)
        if len(sweep.finished()) == len(sweep.config.grid.runs):
            done(sweep)


class SweepRunner:
    """Does runs of sweeps on one device, one after the other."""

    def __init__(self, sweeps: Sequence[Sweep], *, cpu: bool, graphs: bool, show: bool) -> None:
        self.sweeps, self.graphs, self.show = sweeps, graphs, show
        self.processes = Processes(cpu=cpu)
        if self.processes.world > 1:
            raise ValueError(
                f"Fine-tuning was started in {self.processes.world} connected processes (by torchrun or accelerate), "
                f"but each run is trained by one. Start it without them; --jobs shares the runs out."
            )
        self._shared: tuple[int, SharedModel] | None = None  # number of a sweep, and its model

    def __call__(self, number: int, pair: Pair) -> RunResult:
        """Do one run of the sweep with that number."""
        sweep, (rate, seed) = self.sweeps[number], pair
        return finetune_once(
            sweep.config,
            sweep.data,
            sweep.tokenizer,
            rate=rate,
            seed=seed,
            folder=sweep.run_folder(rate, seed),
            share=lambda model: self._share(number, model),
            show=self.show,
            leads=lambda score: sweep.leads(pair, score),
        )

    def _share(self, number: int, model: PreTrainedModel) -> SharedModel:
        """Copy the model's weights into the last run's model if that was of the same sweep; else replace that model."""
        if self._shared is not None and self._shared[0] == number:
            shared = self._shared[1]
            shared.begin(model)
            return shared
        self._shared = None
        sweep = self.sweeps[number]
        with own_stream(self.processes.device):
            shared = SharedModel(sweep.config, model, sweep.data, self.processes, graphs=self.graphs)
        self._shared = number, shared
        return shared


def run_in_workers(
    sweeps: Sequence[Sweep], todo: Sequence[tuple[int, Pair]], *, jobs: int, cpu: bool, graphs: bool
) -> Iterator[tuple[Sweep, RunResult]]:
    """Do runs in worker processes, the longest first, and yield each result as it comes.

    After a failure, runs that have begun are finished and no other is started; Ctrl-C ends them at once.
    """
    gpu = torch.cuda.is_available() and not cpu
    threads = max(1, torch.get_num_threads() // jobs)
    order = sorted(todo, key=lambda each: -steps_of(sweeps[each[0]].config, sweeps[each[0]].data))
    workers = [
        Worker(prepare_runner, sweeps, number, cpu, graphs, gpu=gpu, preload=PRELOAD, threads=threads)
        for number in range(jobs)
    ]
    with ending(workers):
        try:
            for (number, _), result in share_out(workers, order):
                yield sweeps[number], result
        except WorkerDied as death:
            number, (rate, seed) = death.request
            raise RunStopped(
                f"run '{sweeps[number].config.task}, rate {rate:g}, seed {seed}' stopped: {death}. No other run was "
                f"started; finished ones are kept. Start again with --resume, and with fewer --jobs if memory is short."
            ) from death


def prepare_runner(sweeps: Sequence[Sweep], number: int, cpu: bool, graphs: bool) -> SweepRunner:
    """Prepare a worker process, and give it one of the GPUs, in turn, if there are any."""
    if torch.cuda.is_available() and not cpu:
        torch.cuda.set_device(number % torch.cuda.device_count())
    return SweepRunner(sweeps, cpu=cpu, graphs=graphs, show=False)


def _print_result(sweep: Sweep, result: RunResult) -> None:
    """Print a line about a finished run."""
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
