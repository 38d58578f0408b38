"""The page of a study."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from headway.bench.report.page import write_page
from headway.bench.report.study.pictures import head_curve, scatter
from headway.bench.report.study.tables import legend, verdict_mark, write_median, write_spread, write_value

Results = Mapping[str, Any]


def study_page(results: Results, path: Path, *, analyses: Mapping[str, str] | None = None) -> Path:
    """Write the page: one file, with everything in it.

    Args:
        analyses: pages of rows' analyses, to link to.
    """
    return write_page(
        path,
        "study.html.jinja",
        styles=["study.css"],
        scripts=["data.js", "chart.js", "study.js"],
        data={"loss-data": _losses(results)},
        study=results["study"],
        rows=results["rows"],
        columns=results["columns"],
        table=_table(results),
        claims=results["claims"],
        legend=legend(results),
        simple=_simple(results),
        quality=_quality(results),
        cost=_cost(results),
        patterns=_patterns(results, analyses or {}),
        ranks=_ranks(results),
        models=_models(results),
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
                    "published": _published(cells[row["name"]], column),
                    "test": _tested(cells[row["name"]], column),
                    "best": _is_best(row["name"], column, cells),
                }
                for column, cells in zip(results["columns"], results["cells"], strict=True)
            ],
        }
        for row in results["rows"]
    ]


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
    """List simple classifiers: task, which, metric, value in per cent."""
    return [
        (task, name, metric.replace("_", " "), 100 * value)
        for task, found in results["baselines"].items()
        for name, metrics in found.items()
        for metric, value in metrics.items()
    ]


def _losses(results: Results) -> list[dict[str, Any]]:
    found = []
    for each in results["pretraining"]:
        for kind, points in each["curves"].items():
            steps, losses = [list(part) for part in zip(*points, strict=True)] if points else ([], [])
            found.append({"name": each["row"], "seed": each["seed"], "kind": kind, "x": steps, "y": losses})
    return found


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
        found = [cells[row["name"]]["summary"] for cells in tasks]
        if ratio is not None and found and all(found):
            points.append((row["name"], ratio["median"], fmean(each["median"] for each in found)))
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
                        "picture": head_curve(found["offsets"], curve, f"{row}, layer {layer + 1}, head {head + 1}"),
                        "kind": found["kinds"][layer][head],
                        "r2": found["toeplitz_r2"][layer][head],
                    }
                    for head, curve in enumerate(heads)
                ]
                for layer, heads in enumerate(found["curves"])
            ],
        }
        for row, found in results["analysis"].items()
    ]


def _ranks(results: Results) -> list[dict[str, Any]]:
    """Return the effective rank of scores on held-out texts by layer, mean over heads."""
    return [
        {
            "row": row,
            "head_dim": found["head_dim"],
            "layers": [fmean(layer) for layer in found["ranks"]["whole"]["effective"]],
            "relative": [fmean(layer) for layer in found["ranks"]["whole"]["relative"]],
        }
        for row, found in results["analysis"].items()
        if found["ranks"] is not None
    ]


def _models(results: Results) -> dict[str, Any]:
    """Return the first seed's pretraining of each row."""
    found: dict[str, Any] = {}
    for each in results["pretraining"]:
        found.setdefault(each["row"], each)
    return found
