"""Figures 1, 2 and 4 of Wennberg and Henter (2021): pretrained models as rows, from folders, Hub and checkpoints."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import pairwise

import numpy as np
import pytest
import torch
import transformers

from headway.bench.data.text.tokenizers import train_tokenizer
from headway.bench.report.study.position_tables import draw_versions, position_tables, save_position_tables
from headway.bench.report.study.tables import as_markdown
from headway.bench.study import kinds
from headway.bench.study.cells import read_cell
from headway.bench.study.graph import jobs
from headway.bench.study.plans import find_plan
from headway.bench.study.plans.tisa_models import STEPS
from headway.bench.tasks.pretrain import EncoderChoice, Intervals, Optimisation, PretrainConfig, Text, load_checkpoint
from headway.bench.tasks.pretrain import run as pretrain
from headway.pretrained.analysis import toeplitz_r2


def test_the_models_of_the_figures_are_those_of_the_paper():
    """Fig. 1 (caption in App. A): BERT base uncased, RoBERTa base, ALBERT base v1 and xxlarge v2; Fig. 2: ALBERT, v1
    to v2."""
    plan = find_plan("tisa-models", "paper")
    names = [row.model for row in plan.rows]
    figure_1 = ["google-bert/bert-base-uncased", "FacebookAI/roberta-base", "albert/albert-base-v1"]
    assert [name for name in names if name in (*figure_1, "albert/albert-xxlarge-v2")] == [
        *figure_1,
        "albert/albert-xxlarge-v2",
    ]
    later = {row.model: row.version_of for row in plan.rows if row.version_of}
    assert later == {
        f"albert/albert-{size}-v2": f"albert/albert-{size}-v1" for size in ("base", "large", "xlarge", "xxlarge")
    }
    assert [column.name for column in plan.columns][:3] == ["Toeplitz R²", "R² without [CLS]", "R² off diagonal"]
    assert {claim.column for claim in plan.claims} == {"Toeplitz R²", "Avg"}  # Sec. 3.1: both rise
    kinds_of_jobs = {each.job.kind for each in jobs(plan)}
    assert kinds_of_jobs == {"convert", "finetune", "analyse", "simple"}


def test_versions_of_size_quick_are_checkpoints_that_pretraining_keeps():
    plan = find_plan("tisa-models")
    assert [row.step for row in plan.rows] == list(STEPS)
    assert [row.version_of for row in plan.rows[1:]] == [row.name for row in plan.rows[:-1]]
    planned = jobs(plan)
    assert len({each.job.key for each in planned if each.job.kind == "pretrain"}) == 1
    made = {each.job.key: each.job.config["step"] for each in planned if each.job.kind == "checkpoint"}
    assert sorted(made.values()) == list(STEPS)
    for each in planned:
        if each.job.kind in ("finetune", "analyse"):
            assert made[each.job.needs["pretrain"]] == plan.row(each.row).step


def test_models_are_asked_of_this_plan_alone():
    with pytest.raises(ValueError, match="models: only the plans tisa-models and league-conversion"):
        find_plan("glue", "paper", models=("bert-base-uncased",))
    with pytest.raises(ValueError, match="got an empty text"):
        find_plan("tisa-models", models=(" , ",))
    with pytest.raises(FileNotFoundError, match="got /nowhere/at-all, which is no folder"):
        find_plan("tisa-models", models=("/nowhere/at-all",))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A random BERT with a tokenizer, and a run of `headway pretrain` with its checkpoints."""
    root = tmp_path_factory.mktemp("models")
    tokenizer = train_tokenizer("builtin:200", kind="word")
    sizes = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48}
    torch.manual_seed(0)
    bert = transformers.BertForMaskedLM(
        transformers.BertConfig(vocab_size=len(tokenizer), max_position_embeddings=40, **sizes)
    )
    bert.save_pretrained(root / "bert")
    tokenizer.save_pretrained(root / "bert")
    pretrain(
        PretrainConfig(
            model=EncoderChoice(preset="tiny", encoding="learned", changes={**sizes, "max_position_embeddings": 32}),
            text=Text(corpus=("builtin:300",), length=32, validation=0.1, evaluation_rows=8),
            optimisation=Optimisation(steps=6, batch=8, learning_rate=1e-2, warmup=0.1),
            intervals=Intervals(log=2, evaluate=6, checkpoint=2, keep=3),
        ),
        root / "run",
        progress=False,
        cpu=True,
    )
    return root


def test_a_checkpoint_is_the_model_after_so_many_steps(folders):
    checkpoints = sorted((folders / "run" / "checkpoints").glob("step-*"))
    assert [path.name for path in checkpoints] == ["step-00000002", "step-00000004", "step-00000006"]
    models = [load_checkpoint(path)[0] for path in checkpoints]
    last = type(models[0]).from_pretrained(folders / "run" / "model")
    for name, tensor in last.state_dict().items():
        torch.testing.assert_close(models[-1].state_dict()[name], tensor)
    tables = [model.encoder.encoding.table for model in models]
    assert all(not torch.equal(*pair) for pair in pairwise(tables))
    with pytest.raises(FileNotFoundError, match=r"expected a checkpoint of a finished run, .*step-1"):
        load_checkpoint(folders / "run" / "checkpoints" / "step-1")


def test_folders_and_checkpoints_are_read_analysed_and_shown(folders, tmp_path):
    steps = [folders / "run" / "checkpoints" / f"step-{step:08d}" for step in (2, 6)]
    plan = find_plan("tisa-models", models=(str(folders / "bert"), f"{steps[0]},{steps[1]}"))
    assert [row.name for row in plan.rows] == [f"{folders.name}/bert", *(f"checkpoints/{step.name}" for step in steps)]
    assert plan.rows[2].version_of == plan.rows[1].name
    planned = jobs(plan)
    own = next(each.job for each in planned if each.job.kind == "convert")
    parameters = sum(
        p.numel() for p in transformers.AutoModelForMaskedLM.from_pretrained(folders / "bert").parameters()
    )
    assert own.weights == pytest.approx(parameters, rel=0.1)  # by which the time of fine-tuning is estimated
    assert all("weights" in each.job.config for each in planned if each.job.kind == "convert")
    results, finished = {}, []
    for each in planned:
        if each.job.kind in ("convert", "analyse"):
            folder = tmp_path / each.job.key
            folder.mkdir(exist_ok=True)
            inputs = {name: tmp_path / key for name, key in each.job.needs.items()}
            result = json.loads(json.dumps(kinds.KINDS[each.job.kind](each.job.config, inputs, folder)))
            finished.append((each, result))
            if each.job.kind == "analyse":
                results[each.row] = result
    bert = transformers.AutoModel.from_pretrained(folders / "bert")
    table = bert.embeddings.position_embeddings.weight.detach().double().numpy()
    want = float(toeplitz_r2(table @ table.T))
    found = results[plan.rows[0].name]["table"]
    assert found["r2"] == pytest.approx(want) and found["positions"] == 40
    np.testing.assert_allclose(found["picture"], table @ table.T, rtol=1e-4, atol=1e-5)
    own = [(each, result) for each, result in finished if each.row == plan.rows[0].name]
    assert read_cell(plan, plan.rows[0], plan.columns[0], own).values == {"measured": pytest.approx(want)}
    assert results[plan.rows[1].name]["table"]["r2"] != results[plan.rows[2].name]["table"]["r2"]

    shown = saved_results(plan, results, scores=(50.0, 60.0, 70.0))
    pictures = position_tables(shown)
    assert [each["row"] for each in pictures] == [row.name for row in plan.rows]
    assert all(each["image"].startswith("data:image/png;base64,iVBOR") for each in pictures)
    assert {path.suffix for path in save_position_tables(shown, tmp_path)} == {".png", ".svg"}
    drawn = str(draw_versions(shown))
    assert drawn.count("<circle") == 3 and drawn.count('class="arrow"') == 1
    assert draw_versions(saved_results(plan, results, scores=(50.0, None, None))) is None
    assert "1 model" not in as_markdown(shown)  # a single number has no spread


def saved_results(plan, analyses, *, scores):
    def made(value):
        summary = {"median": value, "low": value, "high": value, "deviation": None, "runs": 1}
        return {
            "values": {},
            "expected": 1,
            "rate": None,
            "summary": None if value is None else summary,
            "published": None,
            "test": None,
        }

    r2 = {name: made(found["table"]["r2"]) for name, found in analyses.items()}
    task = {row.name: made(score) for row, score in zip(plan.rows, scores, strict=True)}
    columns = [column for column in plan.columns if column.value == "table_r2" or column.source == "finetune"][:2]
    return {
        "study": {"baseline": plan.baseline, "paper": "", "notes": (), "choices": (), "level": 0.05},
        "rows": [{**asdict(row), "place": row.place} for row in plan.rows],
        "columns": [asdict(column) for column in columns],
        "cells": [r2, task],
        "analysis": analyses,
        "recipes": {},
    }


def test_models_without_a_table_of_positions_have_no_picture():
    results = {"analysis": {"t5": {"table": None}, "older": {}}, "columns": [], "cells": [], "rows": []}
    assert position_tables(results) == [] and draw_versions(results) is None
