"""From runs to the numbers of a table: the median over seeds of the best checkpoints, at the best rate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median, stdev

from headway.bench.tasks.finetune.trial import RunResult


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """Several values of one number; `deviation` is None for a single one."""

    median: float
    mean: float
    deviation: float | None
    low: float
    high: float
    runs: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(
            median=median(values),
            mean=mean(values),
            deviation=stdev(values) if len(values) > 1 else None,
            low=min(values),
            high=max(values),
            runs=len(values),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RateSummary:
    """All seeds of one learning rate.

    Args:
        score: of the best checkpoints on the first dev split.
        scores: by seed.
        metrics: "SPLIT METRIC" of the dev splits.
        transfer: "DATA LANGUAGE METRIC", and the mean over languages as "DATA average METRIC".
    """

    rate: float
    score: Spread
    scores: dict[str, float]
    metrics: dict[str, Spread]
    transfer: dict[str, Spread]


def summarise(runs: Sequence[RunResult]) -> list[RateSummary]:
    """One summary a rate, the best median first; of equal ones the lower rate.

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
        score=Spread.of([run.score for run in runs]),
        scores={str(run.seed): run.score for run in runs},
        metrics={name: Spread.of([each[name] for each in dev]) for name in dev[0]},
        transfer={name: Spread.of([each[name] for each in transfer]) for name in transfer[0]},
    )


def _transfer(run: RunResult) -> dict[str, float]:
    flat = {}
    for name, languages in run.transfer.items():
        metrics = [metric for metric in next(iter(languages.values())) if metric != "score"]
        for metric in metrics:
            flat[f"{name} average {metric}"] = mean(found[metric] for found in languages.values())
            flat |= {f"{name} {language} {metric}": found[metric] for language, found in languages.items()}
    return flat
