"""Sweeps of fine-tuning: learning rates × seeds, the best weights of each run, the median over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from headway.bench.statistics import Summary
from headway.bench.tasks.finetune.config import FinetuneConfig
from headway.bench.tasks.finetune.data import fingerprints, prepare_data
from headway.bench.tasks.finetune.model import load_tokenizer
from headway.bench.tasks.finetune.predictions import write_predictions
from headway.bench.tasks.finetune.trial import RunResult
from headway.bench.tasks.finetune.workers import Sweep, train_all
from headway.bench.tasks.training.run_folder import RunFolder
from headway.storage import config_hash, read_json, settings, write_json


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a sweep; also in its result.json. The model of the run with the highest score is in model/.

    Args:
        score: median over seeds of the scores of the best rate on the first dev split.
        rates: a summary of each rate, the best first.
        runs: the result of each run.
        data: number of rows read, labelled, published and skipped, of each split.
        baselines: metrics of simple classifiers on the first dev split, if they were asked for.
        seconds: sum over all runs, of which several may have run at once.
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
    out: str | Path | None = None,
    *,
    resume: bool = False,
    progress: bool = True,
    jobs: int = 1,
    baselines: bool = False,
    cpu: bool = False,
    graphs: bool = True,
) -> Result:
    """Do all runs of the grid.

    Args:
        out: folder of the sweep; under runs/, named after its settings, unless given.
        resume: continue the sweep in that folder, or return its result if it is finished.
        progress: print a line when a run is finished, and show a bar on a terminal.
        jobs: number of processes that share the runs and the device; one small model does not fill a GPU. A script
            that sets more than one must guard its main part (`if __name__ == "__main__"`).
        baselines: also score the most frequent label and a bag of words; neither answers questions.
        cpu: do not use a GPU.
        graphs: on a GPU, replay the steps of our encoders as CUDA graphs.
    """
    (result,) = run_all(
        [config], [out], resume=resume, progress=progress, jobs=jobs, baselines=baselines, cpu=cpu, graphs=graphs
    )
    return result


def run_all(
    configs: Sequence[FinetuneConfig],
    outs: Sequence[str | Path | None],
    *,
    resume: bool = False,
    progress: bool = True,
    jobs: int = 1,
    baselines: bool = False,
    cpu: bool = False,
    graphs: bool = True,
) -> list[Result]:
    """Do several sweeps, each in its folder of `outs`. Their runs share the processes.

    All data are read before anything is trained. The other arguments are those of `run`.
    """
    if jobs < 1:
        raise ValueError(f"jobs: expected at least 1, got {jobs}.")
    if baselines and not any(config.has_baselines for config in configs):
        raise ValueError(
            f"baselines: expected a task of classes or numbers, got {', '.join(each.task for each in configs)}: simple "
            f"classifiers answer no questions. Leave --baselines out."
        )
    device = "cpu" if cpu or not torch.cuda.is_available() else "cuda"
    configs = [config.resolved(device) for config in configs]
    folders = [RunFolder(Path(out or config.default_folder)) for config, out in zip(configs, outs, strict=True)]
    if len({folder.path for folder in folders}) < len(folders):
        raise ValueError(
            f"outs: expected a folder for each sweep, got {', '.join(str(each.path) for each in folders)}."
        )
    with ExitStack() as locks:
        for config, folder in zip(configs, folders, strict=True):
            locks.enter_context(folder.locked())
            folder.open(settings(config), resume=resume)
        if baselines:
            _check_unfinished(configs, folders)
        sweeps = [_read(config, folder) for config, folder in zip(configs, folders, strict=True) if not folder.finished]

        def finish(sweep: Sweep) -> None:
            if not sweep.folder.finished:
                _finish(sweep, baselines=baselines, cpu=cpu)

        train_all(sweeps, jobs=jobs, cpu=cpu, graphs=graphs, progress=progress, done=finish)
        for sweep in sweeps:
            finish(sweep)
        return [Result(**{**read_json(folder.result_file), "folder": str(folder.path)}) for folder in folders]


def _check_unfinished(configs: Sequence[FinetuneConfig], folders: Sequence[RunFolder]) -> None:
    """Raise if baselines are wanted for a sweep that was finished without them."""
    for config, folder in zip(configs, folders, strict=True):
        if config.has_baselines and folder.finished and not read_json(folder.result_file)["baselines"]:
            raise ValueError(
                f"baselines: expected a sweep that is not finished, or was finished with them, got {folder.path}. "
                f"Leave --baselines out to read its result, or name another folder (--out)."
            )


def _read(config: FinetuneConfig, folder: RunFolder) -> Sweep:
    tokenizer = load_tokenizer(config.start)
    sweep = Sweep(config=config, folder=folder, tokenizer=tokenizer, data=prepare_data(config, tokenizer))
    data = config.data
    named = ", ".join((*data.train, *data.dev, *data.transfer, *data.predict)) or config.task
    folder.check_data(config_hash({"files": fingerprints(config)}), named)
    return sweep


def _finish(sweep: Sweep, *, baselines: bool, cpu: bool) -> None:
    """Summarise the runs, keep the best model, write predictions, and write the sweep's result.json."""
    config, folder = sweep.config, sweep.folder
    runs = list(sweep.finished().values())
    rates = summarise(runs)
    _keep_best(sweep)
    predictions = write_predictions(config, folder, cpu=cpu) if config.data.predict else []
    simple = {}
    if baselines:
        from headway.bench.tasks.finetune.baselines import baseline_scores

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
        data=sweep.data.described,
        baselines=simple,
        predictions=predictions,
        seconds=sum(each.seconds for each in runs),
    )
    write_json(folder.result_file, asdict(result))


def _keep_best(sweep: Sweep) -> None:
    """Move the model of the run with the highest score to the sweep's model/."""
    model = sweep.run_folder(*sweep.leader()).model
    if not sweep.folder.model.exists():  # else an attempt moved it, and was killed before it wrote the result
        model.rename(sweep.folder.model)


@dataclass(frozen=True, kw_only=True, slots=True)
class RateSummary:
    """All seeds of one learning rate.

    Args:
        score: summary of the runs' scores on the first dev split.
        scores: score of each run by seed.
        metrics: summaries by "SPLIT METRIC" of the dev splits.
        transfer: summaries by "DATA LANGUAGE METRIC", and of the mean over languages by "DATA average METRIC".
    """

    rate: float
    score: Summary
    scores: dict[str, float]
    metrics: dict[str, Summary]
    transfer: dict[str, Summary]


def summarise(runs: Sequence[RunResult]) -> list[RateSummary]:
    """Summarise each rate, the one with the best median first; of equal medians the lower rate.

    Paper:  Chen et al. (2021b), Table 2, "the median of the maximum accuracy over all checkpoints among five runs";
            Ke et al. (2021), Sec. 4.1, the best rate by the median over five seeds
    """
    summaries = [
        _summary(rate, [run for run in runs if run.rate == rate]) for rate in sorted({run.rate for run in runs})
    ]
    return sorted(summaries, key=lambda summary: -summary.score.median)


def _summary(rate: float, runs: list[RunResult]) -> RateSummary:
    dev = [
        {f"{split} {name}": value for split, metrics in run.metrics.items() for name, value in metrics.items()}
        for run in runs
    ]
    transfer = [_transfer(run) for run in runs]
    return RateSummary(
        rate=rate,
        score=Summary.of([run.score for run in runs]),
        scores={str(run.seed): run.score for run in runs},
        metrics={name: Summary.of([each[name] for each in dev]) for name in dev[0]},
        transfer={name: Summary.of([each[name] for each in transfer]) for name in transfer[0]},
    )


def _transfer(run: RunResult) -> dict[str, float]:
    flat = {}
    for name, languages in run.transfer.items():
        names = [metric for metric in next(iter(languages.values())) if metric != "score"]
        for metric in names:
            flat[f"{name} average {metric}"] = mean(metrics[metric] for metrics in languages.values())
            flat |= {f"{name} {language} {metric}": metrics[metric] for language, metrics in languages.items()}
    return flat
