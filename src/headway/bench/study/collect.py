"""Collect the results of jobs into results.json, from which reports are made."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from statistics import fmean, median
from typing import Any

from headway.bench.judge import judge_rows
from headway.bench.statistics import LEVEL, Summary, compare, pooled_deviation, simultaneous_intervals
from headway.bench.study.cells import Cell, mean_cell, read_cell
from headway.bench.study.gains import gain_cells, gain_rows
from headway.bench.study.graph import Planned
from headway.bench.study.plan import Column, Plan, RowClaim
from headway.bench.study.runner import Progress
from headway.storage import plain_settings

Cells = Mapping[tuple[str, str], Cell]  # by the names of row and column


def collect_results(
    plan: Plan,
    planned: Sequence[Planned],
    progress: Mapping[str, Progress],
    *,
    command: str,
    places: Mapping[str, str | None],
) -> dict[str, Any]:
    """Collect the results of the jobs that are done, as results.json has them; cells of other jobs have no values.

    Args:
        places: paths of the jobs' folders (store) and of kept results (kept), relative to the folder of results.json.
    """
    finished = [(each, result) for each in planned if (result := progress[each.job.key].result) is not None]
    cells = _cells(plan, finished)
    last = 0 if plan.pretrain is None else plan.pretrain.optimisation.steps
    checkpoints = {row.name for row in plan.rows if row.step is not None and row.step < last}
    own = [(each, result) for each, result in finished if not each.part]
    stuck = _stuck_runs(plan, own)
    return {
        "study": {
            **{
                name: getattr(plan, name) for name in ("name", "size", "title", "paper", "choices", "baseline", "seeds")
            },
            "notes": (*plan.notes, *_signature_notes(plan, finished)),
            **({"pooled": True, "plateau": plan.plateau, "stuck": stuck} if plan.pooled else {}),
            "command": command,
            **places,
            "collected": time.strftime("%Y-%m-%d %H:%M:%S"),
            "level": LEVEL,
        },
        "rows": [
            *({**asdict(row), "place": row.place, "contestant": str(row.position)} for row in plan.rows),
            *(gain_rows() if plan.gains else []),
        ],
        "columns": [asdict(column) for column in plan.columns],
        "cells": [_describe_cells(plan, column, cells, stuck) for column in plan.columns],
        "claims": [_judge_claim(claim, plan, cells) for claim in plan.claims],
        "recipes": _recipes(plan),
        "pretraining": [
            _summarise_pretraining(each, result)
            for each, result in own
            if each.job.kind == "pretrain" and each.row not in checkpoints
        ],
        "analysis": {
            each.row: {**result, "folder": each.job.key} for each, result in own if each.job.kind == "analyse"
        },
        **({"rates": {each.row: result for each, result in own if each.job.kind == "rates"}} if plan.rates else {}),
        "cost": next((_summarise_cost(result) for each, result in own if each.job.kind == "cost"), None),
        "baselines": _baselines(finished),
        "data": [result for each, result in finished if each.job.kind == "text"],
        "environment": next((r["environment"] for _, r in finished if "environment" in r), None),
        "jobs": [_describe_job(each, progress[each.job.key]) for each in planned],
    }


def _signature_notes(plan: Plan, finished: Sequence[tuple[Planned, Mapping[str, Any]]]) -> list[str]:
    """Name the columns of BLEU that were scored alike, with SacreBLEU's signature of how."""
    columns: dict[str, list[str]] = {}
    for column in plan.columns:
        test, _, metric = column.value.rpartition("/")
        if column.source != "translate" or metric != "bleu":
            continue
        own = (result for each, result in finished if each.job.kind == "translate" and each.task == column.task)
        for signature in dict.fromkeys(
            result["scores"][test or "dev"]["bleu_signature"] for result in own if result.get("scores")
        ):
            columns.setdefault(signature, []).append(column.name)
    return [f"SacreBLEU of {', '.join(names)}: {signature}." for signature, names in columns.items()]


def _cells(plan: Plan, finished: Sequence[tuple[Planned, Mapping[str, Any]]]) -> Cells:
    """Fill the cells of a plan from its own jobs and, for columns of a part, from the part's."""
    parts = {
        name: _cells(part, [(replace(each, part=""), result) for each, result in finished if each.part == name])
        for name, part in plan.parts.items()
    }
    cells: dict[tuple[str, str], Cell] = {}
    for row in plan.rows:
        own = [(each, result) for each, result in finished if not each.part and each.row in (row.name, None)]
        for column in plan.columns:
            if column.source == "mean":
                cells[row.name, column.name] = mean_cell([cells[row.name, name] for name in column.task.split(",")])
            elif column.source == "part":
                cells[row.name, column.name] = parts[column.task][row.name, column.value]
            else:
                cells[row.name, column.name] = read_cell(plan, row, column, own)
    for column in plan.columns:
        if column.relative:
            cells |= relative_cells(plan, column, cells)
    return cells


def relative_cells(plan: Plan, column: Column, cells: Cells) -> Cells:
    """Return a column's cells as differences in percent from the first row of the same recipe, seed by seed."""
    first = {row.recipe: cells[row.name, column.name].values for row in reversed(plan.rows)}
    return {
        (row.name, column.name): replace(
            own := cells[row.name, column.name],
            values={
                seed: 100.0 * (value / first[row.recipe][seed] - 1.0)
                for seed, value in own.values.items()
                if seed in first[row.recipe]
            },
        )
        for row in plan.rows
    }


def _describe_cells(plan: Plan, column: Column, cells: Cells, stuck: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """Return a column's cells by row, each with its summary and its test against the baseline."""
    own = {row.name: cells[row.name, column.name] for row in plan.rows}
    units = {name: _average_dependent(plan, column, each.values) for name, each in own.items() if each.values}
    baseline = units.pop(plan.baseline, {})
    repeated = column.source in ("finetune", "pretrain", "translate", "mean", "part")
    tests = compare(units, baseline) if repeated and not plan.pooled else {}
    of_models = repeated or column.source in ("equal-time", "minimal-pairs", "lengths", "further")
    intervals = _pooled_intervals(plan, {plan.baseline: baseline, **units}, stuck) if plan.pooled and of_models else {}
    gains = gain_cells(plan, {name: each.values for name, each in own.items()}) if plan.gains else {}
    described = {
        row.name: {
            "values": own[row.name].values,
            "expected": own[row.name].expected,
            "rate": own[row.name].rate,
            "summary": asdict(Summary.of(list(own[row.name].values.values()))) if own[row.name].values else None,
            "published": row.published.get(column.name),
            "test": asdict(tests[row.name]) if row.name in tests else None,
            **({"interval": intervals.get(row.name)} if plan.pooled else {}),
        }
        for row in plan.rows
    }
    return {**described, **gains}


def _stuck_runs(plan: Plan, own: Sequence[tuple[Planned, Mapping[str, Any]]]) -> dict[str, int]:
    """Count the pretrainings of each row whose last held-out loss is above the plateau's; rows without any are left
    out."""
    stuck: dict[str, int] = {}
    for planned, result in own:
        if plan.plateau is not None and planned.job.kind == "pretrain" and result["evaluation_loss"] > plan.plateau:
            assert planned.row is not None
            stuck[planned.row] = stuck.get(planned.row, 0) + 1
    return stuck


def _pooled_intervals(
    plan: Plan, units: Mapping[str, Mapping[str, float]], stuck: Mapping[str, int]
) -> dict[str, dict[str, float]]:
    """Return the interval of each row's difference from the baseline, for as many comparisons as the plan has rows.

    Rows that are stuck on the plateau do not count in the deviation of seeds. Without two seeds there is no interval.
    """
    values = {name: list(each.values()) for name, each in units.items() if each}
    groups = [each for name, each in values.items() if name not in stuck]
    if plan.baseline not in values or sum(len(each) - 1 for each in groups) < 1:
        return {}
    baseline = values.pop(plan.baseline)
    found = simultaneous_intervals(values, baseline, pooled=pooled_deviation(groups), comparisons=len(plan.rows) - 1)
    return {name: asdict(each) for name, each in found.items()}


def _average_dependent(plan: Plan, column: Column, values: Mapping[str, float]) -> Mapping[str, float]:
    """Average the runs that were fine-tuned from one pretrained model, for tests that need independent numbers.

    These runs share one pretraining, so they say nothing about how much results vary with pretraining.
    """
    if column.source == "part":
        part = plan.parts[column.task]
        return _average_dependent(part, next(each for each in part.columns if each.name == column.value), values)
    if plan.pretrain is None or column.source not in ("finetune", "mean"):
        return values
    groups: dict[str, list[float]] = {}
    for seed, value in values.items():
        groups.setdefault(seed.split(".")[0] if len(plan.seeds) > 1 else str(plan.seeds[0]), []).append(value)
    return {seed: fmean(each) for seed, each in groups.items()}


def _judge_claim(claim: RowClaim, plan: Plan, cells: Cells) -> dict[str, Any]:
    """Judge a claim by the rule of `headway claims`."""
    column = asdict(next(column for column in plan.columns if column.name == claim.column))
    values = {row.name: cells[row.name, claim.column].values for row in plan.rows}
    return {**asdict(claim), **judge_rows(asdict(claim), column, values)}


def _recipes(plan: Plan) -> dict[str, Any]:
    recipes = {f"fine-tuning, {task}": plain_settings(config) for task, config in plan.finetune.items()}
    recipes |= {f"translation, {task}": plain_settings(config) for task, config in plan.translate.items()}
    if plan.pretrain is not None:
        recipes = {"pretraining": plain_settings(plan.pretrain), **recipes}
    for name, part in plan.parts.items():
        recipes |= {f"{name}: {kind}": recipe for kind, recipe in _recipes(part).items()}
    return recipes


def _summarise_pretraining(planned: Planned, result: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("parameters", "evaluation_loss", "masked_accuracy", "seconds", "tokens", "tokens_per_second", "curves")
    chosen = ("learning_rate", "position_rate")  # where the plan has a grid of them
    return {
        "row": planned.row,
        "seed": planned.seed,
        **{name: result[name] for name in (*kept, *chosen) if name in kept or name in result},
    }


def _summarise_cost(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cost table with medians in place of the times of each round."""
    kept = ("row", "model", "length", "batch", "parameters", "problem", "ratios")
    rows = []
    for each in table["measurements"]:
        row = {name: each[name] for name in kept}
        for mode in table["config"]["modes"]:
            timing = each[mode]
            row[mode] = None if timing is None else {
                "seconds": median(timing["seconds"]), "flops": timing["flops"], "peak_bytes": timing["peak_bytes"],
            }  # fmt: skip
        rows.append(row)
    return {"rows": rows, "config": table["config"], "environment": table["environment"]}


def _baselines(finished: Sequence[tuple[Planned, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return what simple classifiers reach on each task, which is the same for all rows."""
    return {each.task: result["baselines"] for each, result in finished if result.get("baselines")}


def _describe_job(planned: Planned, progress: Progress) -> dict[str, Any]:
    record = progress.record or {}
    return {
        "key": planned.job.key,
        "kind": planned.job.kind,
        "label": planned.job.label,
        "row": planned.row,
        "state": progress.state,
        "earlier": progress.earlier,
        "seconds": record.get("seconds"),
        "cpu_seconds": record.get("cpu_seconds"),
        "bytes": record.get("bytes"),
        "why": progress.why,
    }
