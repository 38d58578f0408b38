"""The page of a study."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any

from headway.bench.report.page import write_page
from headway.bench.report.study.pictures import Bar, bars, head_curve, scatter
from headway.bench.report.study.position_tables import draw_versions, position_tables
from headway.bench.report.study.tables import (
    has_published,
    legend,
    verdict_mark,
    write_interval,
    write_median,
    write_spread,
    write_value,
)

Results = Mapping[str, Any]


def study_page(results: Results, path: Path, *, analyses: Mapping[str, str] | None = None) -> Path:
    """Write the page: one file, with everything in it.

    Args:
        analyses: paths of the pages of analyses, by row, to which the page links.
    """
    return write_page(
        path,
        "study.html.jinja",
        styles=["study.css"],
        scripts=["data.js", "chart.js", "study.js"],
        data={"loss-data": _losses(results)},
        study=results["study"],
        has_published=has_published(results),
        rows=[row for row in results["rows"] if not row.get("derived")],
        columns=results["columns"],
        table=_table(results),
        claims=results["claims"],
        legend=legend(results),
        simple=_simple(results),
        bars=draw_bars(results),
        quality=_quality(results),
        cost=_cost(results),
        tables=position_tables(results),
        versions=draw_versions(results),
        patterns=_patterns(results, analyses or {}),
        ranks=_ranks(results),
        models=_models(results),
        grids=_rate_grids(results),
        failed=[job for job in results["jobs"] if job["state"] in ("failed", "skipped")],
        waiting=[job for job in results["jobs"] if job["state"] not in ("done", "failed", "skipped")],
        jobs=results["jobs"],
        texts=results["data"],
        environment=results["environment"] or {},
        recipes={name: json.dumps(recipe, indent=2, ensure_ascii=False) for name, recipe in results["recipes"].items()},
    )


def _table(results: Results) -> list[dict[str, Any]]:
    return [
        {
            "row": row,
            "cells": [
                {
                    "median": write_median(cells[row["name"]], column),
                    "sort": None if cells[row["name"]]["summary"] is None else cells[row["name"]]["summary"]["median"],
                    "spread": write_spread(cells[row["name"]], column),
                    "mark": verdict_mark(cells[row["name"]]),
                    "interval": write_interval(cells[row["name"]], column),
                    "published": _published(cells[row["name"]], column),
                    "test": _tested(cells[row["name"]], column),
                    "best": not row.get("derived") and _is_best(row["name"], column, cells),
                }
                for column, cells in zip(results["columns"], results["cells"], strict=True)
            ],
        }
        for row in results["rows"]
    ]


def draw_bars(results: Results) -> list[Any]:
    """Draw the differences of all rows from the baseline, a picture for each column, as Chen et al. (2021b), Fig. 1.

    Times are in percent of the baseline's, as in their Table 1. Columns without differences are left out, and steps a
    second, because they are the same times.
    """
    pictures = []
    for column, cells in zip(results["columns"], results["cells"], strict=True):
        if column["source"] == "cost" and column["value"].endswith("/steps"):
            continue
        baseline = cells[results["study"]["baseline"]]
        others = [row["name"] for row in results["rows"] if row["name"] != results["study"]["baseline"]]
        rows = [_bar(name, column, cells[name], baseline) for name in others]
        known = [row for row in rows if row.ours is not None or row.paper is not None]
        if known:
            in_percent = column["source"] == "cost"
            unit = "% of its time" if in_percent else column["measure"]
            pictures.append(bars(column["name"], unit, known, 0 if in_percent else column["digits"]))
    return pictures


def _bar(name: str, column: Mapping[str, Any], cell: Mapping[str, Any], baseline: Mapping[str, Any]) -> Bar:
    """Return a row's differences from the baseline, by seed; those of times are in percent, round by round."""
    if column["source"] == "cost":
        differences = [100 * (ratio - 1) for ratio in cell["values"].values()]
        paper = None if cell["published"] is None else 100 * (cell["published"] - 1)
    else:
        differences = [value - baseline["values"][seed] for seed, value in cell["values"].items()
                       if seed in baseline["values"]]  # fmt: skip
        both = cell["published"] is not None and baseline["published"] is not None
        paper = cell["published"] - baseline["published"] if both else None
    ours = (median(differences), min(differences), max(differences)) if differences else None
    return Bar(name=name, ours=ours, paper=paper)


def _published(cell: Mapping[str, Any], column: Mapping[str, Any]) -> str | None:
    return None if cell["published"] is None else write_value(cell["published"], column)


def _tested(cell: Mapping[str, Any], column: Mapping[str, Any]) -> str:
    test = cell["test"]
    if test is None or test["difference"] is None:
        return ""
    return (
        f"{test['verdict']}: {test['difference']:+.{column['digits']}f} to the baseline over {test['pairs']} pairs, "
        f"p = {test['p']:.3g}, corrected {test['adjusted']:.3g}"
    )


def _is_best(row: str, column: Mapping[str, Any], cells: Mapping[str, Any]) -> bool:
    medians = {name: cell["summary"]["median"] for name, cell in cells.items() if cell["summary"]}
    return row in medians and medians[row] == (max if column["higher"] else min)(medians.values())


def _simple(results: Results) -> list[tuple[str, str, str, float]]:
    """List the scores of simple classifiers as (task, classifier, metric, value in per cent)."""
    return [
        (task, name, metric.replace("_", " "), 100 * value)
        for task, classifiers in results["baselines"].items()
        for name, metrics in classifiers.items()
        for metric, value in metrics.items()
    ]


def _losses(results: Results) -> list[dict[str, Any]]:
    curves = []
    for each in results["pretraining"]:
        for kind, points in each["curves"].items():
            steps, losses = [list(part) for part in zip(*points, strict=True)] if points else ([], [])
            curves.append({"name": each["row"], "seed": each["seed"], "kind": kind, "x": steps, "y": losses})
    return curves


def _quality(results: Results) -> Any:
    """Draw the mean of all columns of tasks against the time of a training step."""
    if results["cost"] is None:
        return None
    tasks = [
        cells
        for column, cells in zip(results["columns"], results["cells"], strict=True)
        if column["source"] in ("finetune", "translate") and column["higher"]
    ]
    times = {each["row"]: each["ratios"].get("training") for each in results["cost"]["rows"]}
    points = []
    for row in results["rows"]:
        ratio = times.get(row["contestant"])
        summaries = [cells[row["name"]]["summary"] for cells in tasks]
        if ratio is not None and summaries and all(summaries):
            points.append((row["name"], ratio["median"], fmean(each["median"] for each in summaries)))
    if len(points) < 2:
        return None
    return scatter(
        points,
        x_label=f"training step, time over {results['study']['baseline']}",
        y_label="mean of the tasks' medians",
    )


def _cost(results: Results) -> Any:
    if results["cost"] is None:
        return None
    names = {row["contestant"]: row["name"] for row in results["rows"]}
    rows = [{**each, "name": names.get(each["row"], each["row"])} for each in results["cost"]["rows"]]
    return {"rows": rows, "modes": results["cost"]["config"]["modes"], "environment": results["cost"]["environment"]}


def _patterns(results: Results, analyses: Mapping[str, str]) -> list[dict[str, Any]]:
    """Draw a small curve for each head of each row."""
    return [
        {
            "row": row,
            "page": analyses.get(row),
            "layers": [
                [
                    {
                        "picture": head_curve(analysis["offsets"], curve, f"{row}, layer {layer + 1}, head {head + 1}"),
                        "kind": analysis["kinds"][layer][head],
                        "r2": analysis["toeplitz_r2"][layer][head],
                    }
                    for head, curve in enumerate(heads)
                ]
                for layer, heads in enumerate(analysis["curves"])
            ],
        }
        for row, analysis in results["analysis"].items()
    ]


def _ranks(results: Results) -> list[dict[str, Any]]:
    """Return the effective rank of scores on held-out texts by layer, mean over heads."""
    return [
        {
            "row": row,
            "head_dim": analysis["head_dim"],
            "layers": [fmean(layer) for layer in analysis["ranks"]["whole"]["effective"]],
            "relative": [fmean(layer) for layer in analysis["ranks"]["whole"]["relative"]],
        }
        for row, analysis in results["analysis"].items()
        if analysis["ranks"] is not None
    ]


def _rate_grids(results: Results) -> list[dict[str, Any]]:
    """Return the held-out losses of each row's trials: a line for each learning rate, a cell for each position rate."""
    grids = []
    for row, found in results.get("rates", {}).items():
        losses = {(each["learning_rate"], each["position_rate"]): each["loss"] for each in found["tried"]}
        rates, position_rates = (sorted({pair[at] for pair in losses}) for at in (0, 1))
        grids.append(
            {
                "row": row,
                "position_rates": position_rates,
                "lines": [(rate, [losses[rate, times] for times in position_rates]) for rate in rates],
                "chosen": (found["learning_rate"], found["position_rate"]),
                "at_an_end": [name.replace("_", " ") for name in found["at_an_end"]],
            }
        )
    return grids


def _models(results: Results) -> dict[str, Any]:
    """Return the first seed's pretraining of each row."""
    models: dict[str, Any] = {}
    for each in results["pretraining"]:
        models.setdefault(each["row"], each)
    return models
