"""Plans that cannot be: wrong settings, unknown names, files of users that do not hold a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.bench.cost import CostConfig
from headway.bench.study.plan import Column, Plan, Row
from headway.bench.study.plans import find_plan
from headway.bench.study.plans.translation_tables import builtin_translation
from headway.bench.tasks.finetune import Data, Start
from headway.bench.tasks.finetune.recipes import quick
from headway.bench.tasks.translate import ParallelData

TUNED = {"t": quick("builtin:entailment", Start(model="m"), Data())}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"rows": (Row(name="a", encoding="none"), Row(name="a", encoding="none"))},
            "rows: expected at least one, and",
        ),
        ({"baseline": "b"}, "baseline: expected some of a, got b"),
        (
            {"columns": (Column(name="x", source="finetune", task="rte"),)},
            r"task of x: expected some of \(none\), got rte",
        ),
        (
            {"rows": (Row(name="a", encoding="none", published={"y": 1.0}),)},
            "published of a: expected some of x, got y",
        ),
        ({"pretrain": None}, "pretrain: column x needs a recipe, and the plan has none"),
        (
            {
                "columns": (Column(name="x", source="translate", task="t", value="bleu"),),
                "translate": {"t": replace(builtin_translation(), data=ParallelData())},
            },
            "translated: column x shows BLEU, and the recipe translates no sentences",
        ),
        (
            {"columns": (Column(name="x", source="pretrain", value="acuracy"),)},
            "value of x: expected some of parameters, steps, .*, got acuracy",
        ),
        (
            {"columns": (Column(name="x", source="cost", value="training/tiny/ms"),), "cost": CostConfig()},
            "value of x: expected some of steps, 128, got ms",
        ),
        (
            {"columns": (Column(name="x", source="part", task="GLUE", value="Avg"),)},
            r"task of x: expected some of \(none\), got GLUE",
        ),
        ({"columns": (Column(name="x", source="parameters", value="score"),)}, "value of x: expected some of English"),
        (
            {"columns": (Column(name="x", source="cost", value="trainin"),), "cost": CostConfig()},
            "value of x: expected some of training, inference, got trainin",
        ),
        *(
            ({"columns": (Column(name="x", source="finetune", task="t", value=value),), "finetune": TUNED}, message)
            for value, message in (
                ("dev/acc", "value of x: expected some of score, accuracy, got acc"),
                ("dev", "value of x: expected some of rate, .*, got dev"),
                (
                    "dev/en/accuracy",
                    "value of x: expected score, SPLIT/METRIC, highest/SPLIT/METRIC or transfer",
                ),
                ("transfer/xnli/f1", r"value of x: expected some of \(none\), got xnli"),
            )
        ),
    ],
)
def test_a_wrong_plan_is_named(change, message):
    made = find_plan("quick")
    right = Plan(
        name="p",
        size="quick",
        title="t",
        rows=(Row(name="a", encoding="none"),),
        columns=(Column(name="x", source="pretrain", value="loss"),),
        baseline="a",
        pretrain=made.pretrain,
    )
    with pytest.raises(ValueError, match=message):
        replace(right, **change)


def test_an_unknown_encoding_lists_all():
    with pytest.raises(ValueError, match=r"encoding: expected one of none, sinusoidal, .*got 'diet-real'\. Did"):
        Row(name="a", encoding="diet-real")


def test_plans_of_users_are_files(tmp_path):
    path = tmp_path / "mine.py"
    with pytest.raises(FileNotFoundError, match="expected a Python file, got"):
        find_plan(str(path))
    path.write_text("x = 1")
    with pytest.raises(ValueError, match=r"to define plan\(size, data\), got no such function"):
        find_plan(str(path))
    path.write_text("1 / 0")
    with pytest.raises(ValueError, match="to run, got ZeroDivisionError"):
        find_plan(str(path))
    path.write_text("def plan(size, data): return 3")
    with pytest.raises(ValueError, match=r"to return a headway.bench.study.plan.Plan, got int"):
        find_plan(str(path))
    path.write_text(
        "from headway.bench.study.plans import find_plan\ndef plan(size, data): return find_plan('cost', size)"
    )
    assert find_plan(str(path)).name == "cost"


def test_names_and_folders_are_checked(tmp_path):
    with pytest.raises(ValueError, match=r"plan: expected one of quick, encodings, glue, .*got 'glu'"):
        find_plan("glu")
    with pytest.raises(ValueError, match="size: expected one of quick, gpu, paper, got 'huge'"):
        find_plan("glue", "huge")
    with pytest.raises(FileNotFoundError, match="data: expected a folder"):
        find_plan("glue", "gpu", str(tmp_path / "none"))
    with pytest.raises(ValueError, match=r"data: expected a folder with corpus/.*Pass --data"):
        find_plan("glue", "gpu")
    (tmp_path / "glue").mkdir()
    with pytest.raises(FileNotFoundError, match=r"expected text in .*corpus"):
        find_plan("glue", "gpu", str(tmp_path))


@pytest.mark.parametrize(
    ("text", "got"), [("def plan():\n    pass", "TypeError"), ("def plan(size, data):\n    return {}['x']", "KeyError")]
)
def test_a_plan_file_whose_function_breaks_is_named(tmp_path, text, got):
    (tmp_path / "own.py").write_text(text)
    with pytest.raises(ValueError, match=rf"plan: expected plan\(size, data\) of .*own.py to run, got {got}"):
        find_plan(str(tmp_path / "own.py"))
