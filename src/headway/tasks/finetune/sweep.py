"""Fine-tuning as the papers do it: learning rates × seeds, the best checkpoint of each run, the median over seeds."""

from __future__ import annotations

import multiprocessing
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from headway.storage import read_json, write_json
from headway.tasks.finetune.config import FinetuneConfig
from headway.tasks.finetune.data import material
from headway.tasks.finetune.model import load_tokenizer
from headway.tasks.finetune.predictions import write_predictions
from headway.tasks.finetune.summary import summarise
from headway.tasks.finetune.trial import RunResult, finetune_once
from headway.tasks.training.processes import Processes
from headway.tasks.training.runs import RunFolder, RunStopped


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came out of a sweep; also in its result.json. The model of the run with the highest score is in model/.

    Args:
        score: the best rate's median over seeds of the best checkpoints' scores on the first dev split.
        rates: a summary of each rate, the best first.
        runs: every run.
        data: rows read, labelled, published and skipped, of each split.
        baselines: metrics of simple classifiers on the first dev split, where they were asked for.
        seconds: of all runs together, though several may have gone on at once.
    """

    folder: str
    task: str
    model: str
    parameters: int
    score: float
    rate: float
    rates: list[dict[str, Any]]
    runs: list[dict[str, Any]]
    data: list[dict[str, Any]]
    baselines: dict[str, dict[str, float]]
    predictions: list[str]
    seconds: float


def run(
    config: FinetuneConfig,
    *,
    resume: bool = False,
    progress: bool = True,
    jobs: int = 1,
    baselines: bool = False,
    cpu: bool = False,
) -> Result:
    """Do all runs of the grid.

    Args:
        resume: go on with the sweep in the configuration's folder, or return its result if it is finished.
        progress: say when a run is finished, and show a bar on a terminal.
        jobs: processes that share the runs, and the device or the GPUs, which one small model leaves idle. A script
            that asks for several must guard its main part (`if __name__ == "__main__"`), as all that starts processes.
        baselines: also score the most frequent label and a bag of words.
        cpu: leave a GPU alone.
    """
    if jobs < 1:
        raise ValueError(f"jobs: expected at least 1, got {jobs}.")
    config = config.resolved("cpu" if cpu or not torch.cuda.is_available() else "cuda")
    folder = RunFolder(Path(config.folder))
    with folder.held():
        folder.open(config.described(), resume=resume)
        if folder.finished:
            return Result(**{**read_json(folder.result_file), "folder": str(folder.path)})
        shares = [share for share in (config.grid.runs[i::jobs] for i in range(jobs)) if share]
        if len(shares) == 1:
            data = work(config, shares[0], cpu=cpu, progress=progress)
        else:
            data = _together(config, shares, cpu=cpu, progress=progress)
        return _finish(config, folder, data, baselines=baselines, cpu=cpu)


def work(
    config: FinetuneConfig,
    share: Sequence[tuple[float, int]],
    *,
    cpu: bool,
    progress: bool,
    number: int = 0,
    workers: int = 1,
) -> list[dict[str, Any]]:
    """Do some runs one after the other; of their models the best one stays. Returns what was read."""
    _claim(number, workers, cpu=cpu)
    processes = Processes(cpu=cpu)
    if processes.world > 1:
        raise ValueError(f"processes: expected one, got {processes.world}. Share the runs out with --jobs instead.")
    tokenizer = load_tokenizer(config.start)
    data = material(config, tokenizer)
    best: tuple[float, RunFolder] | None = None
    for rate, seed in share:
        folder = run_folder(config, rate, seed)
        was_finished = folder.finished
        result = finetune_once(
            config,
            data,
            tokenizer,
            rate=rate,
            seed=seed,
            folder=folder,
            processes=processes,
            show=progress and workers == 1 and sys.stderr.isatty(),
            beaten=None if best is None else best[0],
        )
        if progress and not was_finished:
            _say(config, result)
        worse: RunFolder | None = folder
        if best is None or result.score > best[0]:
            worse, best = None if best is None else best[1], (result.score, folder)
        if worse is not None and worse.model.exists():
            shutil.rmtree(worse.model)
    return data.described


def run_folder(config: FinetuneConfig, rate: float, seed: int) -> RunFolder:
    return RunFolder(Path(config.folder) / "runs" / f"rate-{rate:g}-seed-{seed}")


def _together(
    config: FinetuneConfig, shares: list[list[tuple[float, int]]], *, cpu: bool, progress: bool
) -> list[dict[str, Any]]:
    """Each share in a process of its own: they fill a device that one small model leaves waiting for launches.

    Not torch.func.vmap over seeds: the operators of attention have no batching rules, and encodings compare values.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(len(shares), mp_context=context) as pool:
        futures = [
            pool.submit(work, config, share, cpu=cpu, progress=progress, number=number, workers=len(shares))
            for number, share in enumerate(shares)
        ]
        try:
            read = [future.result() for future in futures]
        except BrokenProcessPool as error:
            raise RunStopped(
                f"jobs: expected all {len(shares)} processes to finish, got one that died, perhaps for lack of memory. "
                f"Finished runs are kept: start again with --resume, and with fewer --jobs."
            ) from error
    return read[0]


def _claim(number: int, workers: int, *, cpu: bool) -> None:
    """This process's part of the machine: a GPU in turn, and some of the cores."""
    if workers == 1:
        return
    if torch.cuda.is_available() and not cpu:
        torch.cuda.set_device(number % torch.cuda.device_count())
    torch.set_num_threads(max(1, torch.get_num_threads() // workers))


def _finish(
    config: FinetuneConfig,
    folder: RunFolder,
    data: list[dict[str, Any]],
    *,
    baselines: bool,
    cpu: bool,
) -> Result:
    runs = [RunResult(**read_json(run_folder(config, *pair).result_file)) for pair in config.grid.runs]
    rates = summarise(runs)
    _keep_best(config, folder, runs)
    predictions = write_predictions(config, folder, cpu=cpu) if config.data.predict else []
    simple = {}
    if baselines:
        from headway.tasks.finetune.baselines import baseline_scores

        simple = baseline_scores(config)
    result = Result(
        folder=str(folder.path),
        task=config.task,
        model=config.start.model,
        parameters=runs[0].parameters,
        score=rates[0].score.median,
        rate=rates[0].rate,
        rates=[asdict(rate) for rate in rates],
        runs=[asdict(each) for each in runs],
        data=data,
        baselines=simple,
        predictions=predictions,
        seconds=sum(each.seconds for each in runs),
    )
    write_json(folder.result_file, asdict(result))
    return result


def _keep_best(config: FinetuneConfig, folder: RunFolder, runs: list[RunResult]) -> None:
    """Move the model of the run with the highest score to the sweep's model/; the others go."""
    for each in sorted(runs, key=lambda run: -run.score):
        model = run_folder(config, each.rate, each.seed).model
        if not folder.model.exists() and model.exists():
            model.rename(folder.model)
        elif model.exists():
            shutil.rmtree(model)


def _say(config: FinetuneConfig, result: RunResult) -> None:
    done = sum(run_folder(config, *pair).finished for pair in config.grid.runs)
    split, metrics = next(iter(result.metrics.items()))
    named = ", ".join(
        f"{name.replace('_', ' ')} {100 * value:.1f}" for name, value in metrics.items() if name != "score"
    )
    print(
        f"run {done}/{len(config.grid.runs)}: rate {result.rate:g}, seed {result.seed}: {split} {named} "
        f"after {result.step} of {result.steps} steps, {result.seconds:.0f} s",
        file=sys.stderr,
        flush=True,
    )
