"""What a fine-tuning sweep may be asked, and what it answers to nonsense."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.bench.data.transfer.tasks import TASKS
from headway.bench.tasks.finetune.config import Data, Grid, Protocol, Spans, Start
from headway.bench.tasks.finetune.recipes import full, quick, recipe
from headway.storage import plain_settings, restore, settings


def config(task="rte", **data):
    return full(task, Start(model="m"), Data(**{"train": ("glue",), **data}))


def test_the_full_grid_is_the_papers():
    """Chen et al. (2021b), Table 7 and Sec. 4."""
    asked = config("mnli")
    assert asked.grid.rates == (1e-5, 2e-5, 3e-5, 4e-5)
    assert len(asked.grid.seeds) == 5
    assert len(asked.grid.runs) == 20
    assert (asked.protocol.batch, asked.protocol.warmup, asked.protocol.length) == (32, 0.1, 128)
    assert asked.protocol.epochs == 5
    assert config("rte").protocol.epochs == 10
    many = config("squad")
    assert (many.protocol.epochs, many.protocol.length) == (3, 512)
    assert {config(task).protocol.evaluate for task in ("mnli", "cola", "squad", "xnli")} == {3500}  # "3.5k"


def test_cola_has_one_checkpoint_in_the_papers_recipe():
    """8,551 examples in batches of 32 (Warstadt et al. 2019; Chen et al. 2021b, Table 7)."""
    asked = config("cola")
    assert asked.protocol.epochs * -(-8551 // asked.protocol.batch) < asked.protocol.evaluate


def test_the_metric_that_chooses_is_one_of_the_task():
    assert (config("qqp").protocol.metric, config("stsb").protocol.metric) == ("accuracy", "spearman")
    assert quick("stsb", Start(model="m"), Data(train=("glue",))).protocol.metric is None
    asked = config("rte")
    with pytest.raises(ValueError, match="metric: expected one of accuracy, which rte has, got 'f1'"):
        replace(asked, protocol=replace(asked.protocol, metric="f1"))


def test_a_task_is_looked_up_once(monkeypatch):
    asked = config("mnli", transfer=("xnli=x",))
    monkeypatch.setattr("headway.bench.tasks.finetune.config.find_task", None)
    assert asked.task_spec.name == "mnli" and asked.training[0].task is asked.task_spec
    assert asked.transferring is asked.transferring


@pytest.mark.parametrize("task", [name for name, task in TASKS.items() if "train" in task.splits])
def test_recipes_know_every_task(task):
    for make, runs in ((full, (15, 20)), (quick, (3,))):
        asked = make(task, Start(model="m"), Data(train=("x",), dev=("x",)))
        assert len(asked.grid.runs) in runs
        room = asked.protocol.length - asked.spans.max_question - 3
        assert asked.task_spec.kind != "spans" or asked.spans.overlap < room


def test_references_are_filled_in():
    asked = config("mnli", train=("glue", "snli=s"), transfer=("xnli=x", "diagnostic=glue"), predict=("glue",))
    assert [(each.task.name, each.split, each.source) for each in asked.training] == [
        ("mnli", "train", "glue"),
        ("snli", "train", "s"),
    ]
    assert [(each.task.name, each.split, each.source) for each in asked.development] == [("mnli", "dev", "glue")]
    assert [(each.task.name, each.split) for each in asked.transferring] == [("xnli", "test"), ("diagnostic", "test")]
    assert [(each.task.name, each.split, each.source) for each in asked.predicting] == [("mnli", "test", "glue")]
    questions = config("squad", transfer=("tydiqa=t", "mlqa@dev=m"))
    assert [(each.task.name, each.split) for each in questions.transferring] == [("tydiqa", "dev"), ("mlqa", "dev")]


def test_a_rate_for_positions_is_described_only_where_there_is_one():
    """Sweeps and jobs from before there was one keep their names."""
    asked = config()
    faster = replace(asked, protocol=replace(asked.protocol, position_rate=10.0))
    assert "position_rate" not in settings(asked)["protocol"]
    assert settings(faster)["protocol"]["position_rate"] == 10.0
    assert asked.default_folder != faster.default_folder
    assert restore(type(asked), plain_settings(asked)) == asked
    assert restore(type(asked), plain_settings(faster)) == faster


def test_the_built_in_language_needs_no_data():
    asked = full("builtin:entailment", Start(model="m"), Data())
    assert [(each.task.name, each.split) for each in asked.training] == [("builtin:entailment", "train")]
    assert [(each.task.name, each.split) for each in asked.development] == [("builtin:entailment", "dev")]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: config("rtee"), "task: expected one of cola, .*got 'rtee'"),
        (lambda: config(train=()), "data: expected a folder with rte, or hub, got nothing"),
        (lambda: config(train="glue"), "train: expected a tuple of texts, got 'glue'"),
        (
            lambda: config("xnli", train=("mnli=g",)),
            r"dev: expected \[NAME\[@SPLIT\]=\]SOURCE to choose checkpoints on",
        ),
        (
            lambda: config(transfer=("mnli=g",)),
            r"expected data sets like rte \(classes entailment not_entailment\), got mnli",
        ),
        (
            lambda: config("squad", dev=("xquad=x",)),
            r"^dev: expected a split of xquad \(test\), got 'dev'\. Name one, as in xquad@test=SOURCE\.$",
        ),
        (
            lambda: config("squad", dev=("xquad@train=x",)),
            r"^dev: expected a split of xquad \(test\), got 'train'\. Name one, as in xquad@test=SOURCE\.$",
        ),
        (lambda: config(transfer=("mnli=g",)), r"^transfer: expected data sets like rte"),
        (lambda: config(dev=("rte@test_x=g",)), r"expected a split of rte \(train, dev, test\), got 'test_x'"),
        (
            lambda: config("xquad", train=("x",)),
            r"expected a split of xquad \(test\), got 'train'. Train on squad or tydiqa, .*: squad=SOURCE",
        ),
        (
            lambda: config("mnli", transfer=("xnli=x",), languages=("ko", "xx")),
            r"languages: expected some of .* \(xnli: en, ar, .*\), got ko, xx\. Leave them out",
        ),
        (lambda: config(languages=("de",)), r"languages: expected .*\(nothing is\), got de\. .* add --transfer"),
        (lambda: config("mnli", transfer=("xnli@test:fr=x", "mnli=g"), languages=("de",)), "nothing is.*, got de"),
        (lambda: config(on_error="ignore"), "on_error: expected raise or skip, got 'ignore'"),
        (lambda: config(limit=0), "limit: expected a whole number of at least 1, got 0"),
        (lambda: Grid(rates=(), seeds=(0,)), "rates: expected at least one, and each once"),
        (lambda: Grid(rates=(1e-5,), seeds=(1, 1)), "seeds: expected at least one, and each once"),
        (lambda: Grid(rates=(0.0,), seeds=(1,)), "rates: expected finite learning rates above 0"),
        (lambda: Grid(rates=(1e-5, float("nan")), seeds=(1,)), r"rates: expected finite .*, got \(1e-05, nan\)"),
        (lambda: Grid(rates=(float("inf"),), seeds=(1,)), r"rates: expected finite learning rates above 0, got \(inf"),
        (lambda: Protocol(epochs=0, length=128), "epochs: expected a whole number of at least 1, got 0"),
        (lambda: Protocol(epochs=1, length=128, warmup=1.0), "warmup: expected a share"),
        (lambda: Protocol(epochs=1, length=128, position_rate=0.0), "position_rate: expected a finite number above 0"),
        (lambda: Spans(max_answer=0), "max_answer: expected a whole number of at least 1"),
        (lambda: Start(model="m", segments="heads"), "segments: expected one of none, input, per-head, got 'heads'"),
        (lambda: recipe("fast"), "recipe: expected one of full, quick, got 'fast'"),
    ],
)
def test_nonsense_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_the_folder_tells_task_model_and_configuration():
    asked = config()
    assert asked.default_folder.startswith("runs/finetune-rte-m-")
    assert replace(asked, grid=Grid(rates=(1e-5,), seeds=(0,))).default_folder != asked.default_folder


def test_half_precision_follows_the_device_unless_asked():
    asked = config()
    assert asked.resolved("cuda").protocol.bf16 is True
    assert asked.resolved("cpu").protocol.bf16 is False
    fixed = replace(asked, protocol=replace(asked.protocol, bf16=False))
    assert fixed.resolved("cuda").protocol.bf16 is False
