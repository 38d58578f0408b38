"""Configurations to plain values and back, and what cells and claims make of results."""

from __future__ import annotations

import json

import pytest

from headway.bench.study.cells import Cell, mean_cell, read_cell
from headway.bench.study.collect import collect_results
from headway.bench.study.graph import jobs
from headway.bench.study.plans import find_plan
from headway.bench.study.runner import Progress
from headway.bench.tasks.finetune import FinetuneConfig
from headway.bench.tasks.pretrain import PretrainConfig
from headway.bench.tasks.translate import TranslateConfig
from headway.storage import plain_settings, restore


def test_configurations_come_back_the_same():
    plan = find_plan("quick")
    tune, translate = next(iter(plan.finetune.values())), next(iter(plan.translate.values()))
    for kind, config in ((PretrainConfig, plan.pretrain), (FinetuneConfig, tune), (TranslateConfig, translate)):
        through = json.loads(json.dumps(plain_settings(config)))
        assert "out" not in through
        assert restore(kind, through) == config


def run(rate, seed, score):
    return {
        "rate": rate,
        "seed": seed,
        "score": score,
        "metrics": {"dev": {"matthews": score / 2}},
        "transfer": {"xquad": {"de": {"f1": 0.2}, "en": {"f1": 0.4}}},
    }


@pytest.fixture
def plan():
    return find_plan("quick")


def finished(plan, row, runs):
    own = [each for each in jobs(plan) if each.row == row and each.task == "builtin:acceptability"]
    return [(own[0], {"runs": runs})]


def test_the_best_rate_is_that_of_the_best_median(plan):
    """The best single run belongs to the other rate."""
    from dataclasses import replace

    runs = [
        run(1e-3, 0, 0.9),
        run(1e-3, 1, 0.1),
        run(1e-3, 2, 0.2),
        run(2e-3, 0, 0.4),
        run(2e-3, 1, 0.5),
        run(2e-3, 2, 0.3),
    ]
    column = next(column for column in plan.columns if column.name == "Acceptability")
    row = plan.row("diet-rel")
    found = read_cell(plan, row, column, finished(plan, row.name, runs))
    assert found.rate == 2e-3 and found.expected == 3
    assert found.values == pytest.approx({"0": 40.0, "1": 50.0, "2": 30.0})
    metric = read_cell(plan, row, replace(column, value="dev/matthews"), finished(plan, row.name, runs))
    assert metric.values["1"] == pytest.approx(25.0)
    transfer = read_cell(plan, row, replace(column, value="transfer/xquad/f1"), finished(plan, row.name, runs))
    assert transfer.values["0"] == pytest.approx(30.0)


def test_means_are_over_the_seeds_that_all_have():
    parts = [Cell(values={"0": 1.0, "1": 2.0}, expected=3), Cell(values={"1": 4.0, "2": 9.0}, expected=3)]
    assert mean_cell(parts).values == {"1": 3.0}


def test_results_of_jobs_that_are_not_done_are_empty_and_json(plan):
    planned = jobs(plan)
    progress = {each.job.key: Progress(job=each.job) for each in planned}
    some = next(each for each in planned if each.row == "learned" and each.task == "builtin:acceptability")
    progress[some.job.key].state = "failed"
    progress[some.job.key].why = "its log"
    results = json.loads(
        json.dumps(collect_results(plan, planned, progress, command="c", places={"store": "jobs"}), allow_nan=False)
    )
    assert all(cell["summary"] is None for column in results["cells"] for cell in column.values())
    assert all(claim["verdict"] == "not tested" for claim in results["claims"])
    assert {job["state"] for job in results["jobs"]} == {"waiting", "failed"}


def test_claims_are_judged_by_the_rule_of_the_ledger(plan):
    planned = jobs(plan)
    progress = {each.job.key: Progress(job=each.job) for each in planned}
    for each in planned:
        if each.task == "builtin:acceptability" and each.job.kind == "finetune":
            place = plan.row(each.row).place
            score = {"nowhere": 0.02, "input": 0.3, "per-head": 0.5}[place]
            result = {"runs": [run(1e-3, seed, score + seed / 100) for seed in range(3)], "environment": {}}
            progress[each.job.key].record = {"result": result, "seconds": 1.0}
    claims = collect_results(plan, planned, progress, command="c", places={"store": "jobs"})["claims"]
    held = {claim["than"]: claim for claim in claims if claim["column"] == "Acceptability"}
    assert len(held) == 3 and {claim["verdict"] for claim in held.values()} == {"supported"}
    assert held[()]["difference"] == pytest.approx(3.0)  # to chance: 2, 3, 4
    assert held[("none",)]["difference"] == pytest.approx(28.0)


def test_runs_from_one_pretrained_model_are_one_pair(plan):
    """Their differences are nearly copies of one another: a test that took them as pairs would tell equals apart."""
    from dataclasses import replace

    for seeds, pairs in (((0,), 1), ((0, 1), 2)):
        several = replace(plan, seeds=seeds)
        planned = jobs(several)
        progress = {each.job.key: Progress(job=each.job) for each in planned}
        for each in planned:
            if each.task == "builtin:acceptability" and each.job.kind == "finetune":
                above = 0.1 * (each.row == "diet-rel") * (1 + each.seed)
                result = {"runs": [run(1e-3, seed, 0.5 + above + seed / 100) for seed in range(3)], "environment": {}}
                progress[each.job.key].record = {"result": result, "seconds": 1.0}
        results = collect_results(several, planned, progress, command="c", places={"store": "jobs"})
        column = [each["name"] for each in results["columns"]].index("Acceptability")
        found = results["cells"][column]["diet-rel"]
        assert len(found["values"]) == 3 * len(seeds)
        assert found["test"]["pairs"] == pairs
        assert found["test"]["difference"] == pytest.approx({1: 10.0, 2: 15.0}[pairs])


def test_the_cost_of_a_row_is_ratios_and_steps_a_second():
    plan = find_plan("cost")
    (planned,) = jobs(plan)
    seconds = {str(plan.row("DIET-REL").position): (0.5, 0.2), str(plan.row(plan.baseline).position): (0.25, 0.2)}
    result = {"measurements": [
        {"row": row, "model": "tiny", "length": 128, "training": {"seconds": each}, "inference": None}
        for row, each in seconds.items()
    ]}  # fmt: skip
    columns = {column.name: column for column in plan.columns}
    row = plan.row("DIET-REL")

    def values(name):
        return read_cell(plan, row, columns[name], [(planned, result)]).values

    assert values("tiny training") == pytest.approx({"round 1": 2.0, "round 2": 1.0})
    assert values("tiny training, steps/s") == pytest.approx({"round 1": 2.0, "round 2": 5.0})
    assert values("tiny inference") == values("tiny inference, steps/s") == {}


def test_a_part_fills_its_columns_and_nothing_else(plan):
    from dataclasses import replace

    from headway.bench.study.plan import Column, Plan

    whole = Plan(
        name="whole",
        size="quick",
        title="t",
        rows=plan.rows,
        columns=(
            Column(name="English", source="parameters", value="English", scale=1.0),
            Column(name="score", source="part", task="tasks", value="Acceptability"),
        ),
        baseline=plan.baseline,
        parts={"tasks": plan},
    )
    planned = jobs(whole)
    assert {each.part for each in planned} == {"", "tasks"}
    progress = {each.job.key: Progress(job=each.job) for each in planned}
    for each in planned:
        if each.job.kind == "parameters":
            progress[each.job.key].record = {"result": {"millions": {"English": 110.0}}, "seconds": 1.0}
        if each.task == "builtin:acceptability" and each.job.kind == "finetune":
            runs = [run(1e-3, seed, 0.5 + 0.1 * (each.row == "diet-rel")) for seed in range(3)]
            progress[each.job.key].record = {"result": {"runs": runs, "environment": {}}, "seconds": 1.0}
    results = collect_results(whole, planned, progress, command="c", places={"store": "jobs"})
    counted, scores = results["cells"]
    assert counted["diet-rel"]["values"] == {"counted": 110.0}
    assert scores["diet-rel"]["values"] == pytest.approx({"0": 60.0, "1": 60.0, "2": 60.0})
    assert scores["diet-rel"]["test"]["pairs"] == 1  # of one pretrained model
    assert "tasks: pretraining" in results["recipes"]
    with pytest.raises(ValueError, match=r"rows of part tasks: expected some of .*, got a row that it lacks"):
        replace(whole, rows=(*plan.rows, replace(plan.rows[0], name="a row that it lacks")))
