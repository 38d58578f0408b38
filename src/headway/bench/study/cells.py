"""Cells of a study's table: one number for each seed, from the results of a row's jobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Any

from headway.bench.study.graph import Planned
from headway.bench.study.plan import ANALYSED, Column, Plan, Row

MOST_RATIO = 1.3  # of times of a step, beyond which no loss at equal time is given
Result = Mapping[str, Any]
Finished = Sequence[tuple[Planned, Result]]  # jobs of a row that are done, and their results


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """The numbers of a row and a column by seed, in the column's units.

    Args:
        expected: number of values when all jobs are done.
        rate: the best learning rate, for fine-tuning.
    """

    values: Mapping[str, float] = field(default_factory=dict)
    expected: int
    rate: float | None = None


def read_cell(plan: Plan, row: Row, column: Column, finished: Finished) -> Cell:
    """Read a cell from the results of its row's jobs; `mean_cell` makes those that are means of others."""
    return READERS[column.source](plan, row, column, finished)


def mean_cell(parts: Sequence[Cell]) -> Cell:
    """Average other cells over the seeds that all of them have."""
    seeds = [seed for seed in parts[0].values if all(seed in part.values for part in parts)]
    values = {seed: fmean(part.values[seed] for part in parts) for seed in seeds}
    return Cell(values=values, expected=min(part.expected for part in parts))


def _read_finetuning(plan: Plan, row: Row, column: Column, finished: Finished) -> Cell:
    """Read the runs of the best learning rate, which is the one with the highest median over seeds.

    The median is that of the number which the column shows or, for transfer, of the score on dev.

    Paper:  Chen et al. (2021b), Table 2, "the median of the maximum accuracy over all checkpoints among five runs";
            Ke et al. (2021), Sec. 4.1
    """
    runs = [
        (f"{planned.seed}.{run['seed']}" if len(plan.seeds) > 1 else str(run["seed"]), run)
        for planned, result in finished
        if planned.job.kind == "finetune" and planned.task == column.task
        for run in result["runs"]
    ]
    expected = len(plan.seeds) * len(plan.finetune[column.task].grid.seeds)
    if not runs:
        return Cell(expected=expected)
    scores: dict[float, list[float]] = {}
    for _, run in runs:
        decisive = "score" if column.value.startswith("transfer/") else column.value
        scores.setdefault(run["rate"], []).append(_number(run, decisive))
    best = max(sorted(scores), key=lambda rate: median(scores[rate]))
    chosen = {seed: column.scale * _number(run, column.value) for seed, run in runs if run["rate"] == best}
    return Cell(values=chosen, expected=expected, rate=best)


def _number(run: Result, where: str) -> float:
    """Read score, SPLIT/METRIC, highest/SPLIT/METRIC, or transfer/DATA/METRIC, which is the mean over languages."""
    first, *rest = where.split("/")
    if not rest:
        return float(run[first])
    if first == "highest":
        return float(run["highest"][rest[0]][rest[1]])
    if first == "transfer":
        return fmean(metrics[rest[1]] for metrics in run["transfer"][rest[0]].values())
    return float(run["metrics"][first][rest[0]])


def _reader_by_seed(kind: str) -> Callable[[Plan, Row, Column, Finished], Cell]:
    def read(plan: Plan, row: Row, column: Column, finished: Finished) -> Cell:
        test, _, metric = column.value.rpartition("/")  # translations have scores of each test set
        values = {
            str(planned.seed): column.scale * float(result["scores"][test][metric] if test else result[metric])
            for planned, result in finished
            if planned.job.kind == kind and (not column.task or planned.task == column.task)
        }
        return Cell(values=values, expected=len(plan.pretraining_seeds(row) if kind == "pretrain" else plan.seeds))

    return read


def _read_pretraining(plan: Plan, row: Row, column: Column, finished: Finished) -> Cell:
    """Read a number of pretraining, or the tokens until the held-out loss is below that of `value`, below/LOSS.

    A run whose loss never gets there has no number.
    """
    where, _, loss = column.value.partition("/")
    if where != "below":
        return _reader_by_seed("pretrain")(plan, row, column, finished)
    values = {}
    for planned, result in finished:
        if planned.job.kind == "pretrain":
            steps = [step for step, value in result["curves"]["evaluation_loss"] if value < float(loss)]
            if steps:
                values[str(planned.seed)] = column.scale * steps[0] * result["tokens"] / result["steps"]
    return Cell(values=values, expected=len(plan.pretraining_seeds(row)))


def _read_equal_time(plan: Plan, row: Row, column: Column, finished: Finished) -> Cell:
    """Read the held-out loss that a row would have after the time that the baseline takes.

    Formula:  L + (L - l) / ln(T / t) ln(1 / r); nothing where |ln r| is above that of `MOST_RATIO`
    Symbols:  L, T -> loss and tokens of the pretraining; l, t -> those of the trial whose rates were chosen;
              r -> time of a training step over the baseline's, median over rounds
    """
    assert plan.cost is not None and plan.pretrain is not None
    timing = replace(column, value=f"training/{plan.pretrain.model.preset}/{plan.pretrain.text.length}", scale=1.0)
    rounds = _read_cost(plan, row, timing, finished).values
    trial = next((result for planned, result in finished if planned.job.kind == "rates"), None)
    expected = len(plan.seeds)
    if not rounds or trial is None:
        return Cell(expected=expected)
    shift = -math.log(median(rounds.values()))
    if abs(shift) > math.log(MOST_RATIO):
        return Cell(expected=0)
    values = {}
    for planned, result in finished:
        if planned.job.kind == "pretrain":
            loss = result[column.value]
            slope = (loss - trial["loss"]) / math.log(result["tokens"] / trial["tokens"])
            values[str(planned.seed)] = column.scale * (loss + slope * shift)
    return Cell(values=values, expected=expected)


def _read_minimal_pairs(plan: Plan, row: Row, column: Column, finished: Finished) -> Cell:
    """Read the share of minimal pairs that are right: of all, or of a phenomenon."""
    values = {
        str(planned.seed): column.scale
        * (result["all"] if column.value == "all" else result["phenomena"][column.value])["accuracy"]
        for planned, result in finished
        if planned.job.kind == "minimal-pairs"
    }
    return Cell(values=values, expected=len(plan.seeds))


def _read_length(plan: Plan, row: Row, column: Column, finished: Finished) -> Cell:
    """Read the loss at one length; the cell is empty if the encoding has no positions for it.

    Columns with task="longer" show the loss after a further training on longer texts.
    """
    measured = [
        (each, result["losses"]) for each, result in finished if each.job.kind == "lengths" and each.task == column.task
    ]
    missing = any(losses[column.value] is None for _, losses in measured)
    values = {
        str(each.seed): column.scale * losses[column.value]
        for each, losses in measured
        if losses[column.value] is not None
    }
    return Cell(values=values, expected=0 if missing else len(plan.seeds))


def _read_further(plan: Plan, row: Row, column: Column, finished: Finished) -> Cell:
    """Read a number of the held-out text after a training that starts from the row's model, or before it."""
    values = {
        str(each.seed): column.scale * result[column.value]
        for each, result in finished
        if each.job.kind == ("further" if column.task else "held-out") and each.task == column.task
    }
    return Cell(values=values, expected=len(plan.seeds))


def _read_cost(plan: Plan, row: Row, column: Column, finished: Finished) -> Cell:
    """Read the time over the baseline's, or steps a second, round by round; `value` is MODE[/MODEL[/steps|LENGTH]]."""
    mode, model, last = (*column.value.split("/"), "", "")[:3]
    steps, length = last == "steps", int(last) if last.isdecimal() else None
    baseline = str(plan.row(plan.baseline).position)
    values: dict[str, float] = {}
    expected = 1 if plan.cost is None else plan.cost.rounds
    for planned, result in finished:
        if planned.job.kind != "cost":
            continue
        timed = {
            each["row"]: each[mode]
            for each in result["measurements"]
            if (not model or each["model"] == model) and length in (None, each["length"])
        }
        own, other = timed.get(str(row.position)), timed.get(baseline)
        if own is not None and steps:
            rates = (1 / seconds for seconds in own["seconds"])
            values = {f"round {number}": column.scale * rate for number, rate in enumerate(rates, 1)}
        elif own is not None and other is not None:
            ratios = (a / b for a, b in zip(own["seconds"], other["seconds"], strict=False))
            values = {f"round {number}": column.scale * ratio for number, ratio in enumerate(ratios, 1)}
    return Cell(values=values, expected=expected)


def _read_parameters(plan: Plan, row: Row, column: Column, finished: Finished) -> Cell:
    for planned, result in finished:
        if planned.job.kind == "parameters":
            return Cell(values={"counted": column.scale * result["millions"][column.value]}, expected=1)
    return Cell(expected=1)


def _read_analysis(plan: Plan, row: Row, column: Column, finished: Finished) -> Cell:
    """Read a number of the row's analysis; the cell is empty for a model without a table of positions."""
    part, name = ANALYSED[column.value]
    for planned, result in finished:
        if planned.job.kind == "analyse":
            numbers = result.get(part)
            return Cell(values={} if numbers is None else {"measured": column.scale * numbers[name]}, expected=1)
    return Cell(expected=1)


READERS: dict[str, Callable[[Plan, Row, Column, Finished], Cell]] = {
    "finetune": _read_finetuning,
    "pretrain": _read_pretraining,
    "equal-time": _read_equal_time,
    "minimal-pairs": _read_minimal_pairs,
    "lengths": _read_length,
    "further": _read_further,
    "translate": _reader_by_seed("translate"),
    "analyse": _read_analysis,
    "cost": _read_cost,
    "parameters": _read_parameters,
}
