"""Plans of size paper against the papers: rows, figures, columns, splits, runs, rates, steps and batches.

The numbers below are typed from the papers, apart from those in the plans, and each stands beside its place there. The
tables of Shaw et al. and Table 4 of the DIET paper are in test_translation_tables.py, Tables 1 and 6 of the DIET paper
in test_rows.py and test_plans.py.
"""

from __future__ import annotations

import json
import re

import pytest

from headway.bench.study.graph import jobs
from headway.bench.study.plans import find_plan
from headway.models import preset
from headway.models.parameters import pretraining_parameters

# Each line: encoding, its sharing, its rank, its segments, and the figures as the paper prints them.
LEARNED = ("learned", None, None, "input")
SHAW = ("shaw", "head", None, "input")  # Chen et al. (2021b), Sec. 4.4: head-wise
T5 = ("t5", "layer", None, "input")  # layer-wise
TUPE = ("tupe-rel", "head", None, "input")  # head-wise


def diet_rel(sharing, segments):
    return ("diet-rel", sharing, None, segments)


def diet_abs(rank, sharing, segments):
    return ("diet-abs", sharing, rank, segments)


def rel(sharing, segments):
    return ("rel-scalar", sharing, None, segments)


def absolute(rank, segments):
    return ("abs-scalar", "none", rank, segments)


GLUE = {
    # Chen et al. (2021b), Table 2
    "glue": [
        (LEARNED, "85.8 / 85.9 91.1 89.9 93.2 58.7 89.0 84.8"),
        (SHAW, "86.3 / 86.0 91.2 90.5 93.2 59.8 89.3 85.2"),
        (T5, "86.4 / 86.2 91.2 90.1 93.0 59.6 90.1 85.2"),
        (TUPE, "86.1 / 86.2 91.2 90.3 93.1 59.6 89.6 85.2"),
        (diet_rel("none", "input"), "86.0 / 86.1 91.0 89.8 92.8 59.6 89.0 84.9"),
        (diet_rel("none", "per-head"), "86.3 / 86.3 91.0 90.5 92.9 60.3 89.3 85.2"),
        (diet_abs(128, "layer", "per-head"), "86.4 / 86.4 90.8 89.5 93.0 59.8 90.2 85.2"),
        (LEARNED, "82.3 / 82.6 90.2 86.3 91.4 53.9 87.6 82.0"),  # Linformer, 32 keys
        (("diet-abs", "none", None, "input"), "83.0 / 83.1 90.6 86.7 92.0 55.7 87.6 82.7"),  # DIET-ABS-LIN, 32 keys
    ],
    # Table 8
    "glue-segments": [
        (LEARNED, "85.8 / 85.9 91.1 89.9 93.2 58.7 89.0 84.8"),
        (diet_rel("none", "input"), "86.0 / 86.1 91.0 89.8 92.8 59.6 89.0 84.9"),
        (diet_rel("none", "per-head"), "86.3 / 86.3 91.0 90.5 92.9 60.3 89.3 85.2"),
        (diet_abs(64, "none", "input"), "86.1 / 85.8 91.2 90.0 93.0 58.9 89.9 85.0"),
        (diet_abs(64, "none", "per-head"), "86.1 / 86.1 91.2 90.2 93.0 58.9 89.8 85.0"),
        (diet_abs(64, "layer", "per-head"), "86 / 86.8 91.1 90.4 92.9 59.3 89.8 85.2"),
        (diet_abs(128, "layer", "per-head"), "86.4 / 86.4 90.8 89.5 93.0 59.8 90.2 85.2"),
    ],
    # Table 9
    "glue-sharing": [
        (diet_rel("none", "per-head"), "86.3 / 86.3 91.0 90.5 92.9 60.3 89.3 85.2"),
        (diet_rel("layer", "per-head"), "86.5 / 86.3 91.1 90.0 93.0 58.8 89.6 85.0"),
        (diet_rel("head", "per-head"), "85.8 / 85.7 91.2 90.2 92.8 59.8 89.1 84.9"),
        (diet_abs(64, "none", "per-head"), "86.1 / 86.1 91.2 90.2 93.0 58.9 89.8 85.0"),
        (diet_abs(128, "none", "per-head"), "86.7 / 86.5 91.2 90.6 92.8 60.1 89.4 85.3"),
        (diet_abs(64, "layer", "per-head"), "86 / 86.8 91.1 90.4 92.9 59.3 89.8 85.2"),
        (diet_abs(128, "layer", "per-head"), "86.4 / 86.4 90.8 89.5 93.0 59.8 90.2 85.2"),
    ],
    # Chen et al. (2021a), Table 1; the line of ABS-SCALAR is that of Table 10 with its STS-B, 89.9
    "scalar-place-glue": [
        (LEARNED, "85.8 / 85.9 91.1 89.9 93.2 58.7 89.0 84.8"),
        (absolute(64, "input"), "86.1 / 85.8 91.2 90.0 93.0 58.9 89.9 85.0"),
    ],
    # Table 4
    "scalar-glue": [
        (LEARNED, "85.8 / 85.9 91.1 89.9 93.2 58.7 89.0 84.8"),
        (SHAW, "86.3 / 86.0 91.2 90.5 93.2 59.8 89.3 85.2"),
        (TUPE, "86.1 / 86.2 91.2 90.3 93.1 58.5 89.6 85.0"),
        (rel("none", "per-head"), "86.3 / 86.3 91.0 90.5 92.9 60.3 89.3 85.2"),
    ],
    # Table 8
    "scalar-sharing-glue": [
        (rel("head", "per-head"), "85.8 / 85.7 91.2 90.2 92.8 59.8 89.1 84.9"),
        (rel("layer", "per-head"), "86.5 / 86.3 91.1 90.0 93.0 58.8 89.6 85.0"),
        (rel("none", "per-head"), "86.3 / 86.3 91.0 90.5 92.9 60.3 89.3 85.2"),
    ],
    # Table 10
    "scalar-segments-glue": [
        (LEARNED, "85.8 / 85.9 91.1 89.9 93.2 58.7 89.0 84.8"),
        (absolute(64, "input"), "86.1 / 85.8 91.2 90.0 93.0 58.9 89.9 85.0"),
        (absolute(64, "per-head"), "86.1 / 86.1 91.2 90.2 93.0 58.9 89.8 85.0"),
        (rel("none", "input"), "86.0 / 86.1 91.0 89.8 92.8 59.6 89.0 84.9"),
        (rel("none", "per-head"), "86.3 / 86.3 91.0 90.5 92.9 60.3 89.3 85.2"),
    ],
}
XTREME = {
    # Chen et al. (2021b), Table 3
    "xtreme": [
        (LEARNED, "67.0 66.0 / 49.9 56.2 / 41.0 59.0 / 47.9 55.3"),
        (SHAW, "67.9 69.5 / 53.9 58.2 / 43.1 64.8 / 49.9 58.2"),
        (T5, "68.5 69.9 / 53.5 59.5 / 44.3 63.8 / 50.6 58.6"),
        (TUPE, "67.8 68.6 / 52.0 58.6 / 43.2 63.9 / 48.7 57.5"),
        (diet_rel("none", "input"), "68.0 68.1 / 52.8 57.7 / 42.7 63.3 / 50.9 57.6"),
        (diet_rel("none", "per-head"), "68.4 69.4 / 54.4 58.6 / 43.5 62.4 / 49.3 58.0"),
        (diet_abs(128, "layer", "per-head"), "68.5 70.0 / 53.6 59.8 / 44.5 64.6 / 51.5 58.9"),
        (LEARNED, "63.6 59.1 / 43.7 48.9 / 34.0 50.5 / 37.9 48.2"),  # Linformer, 256 keys
        (("diet-abs", "none", None, "input"), "64.4 61.6 / 46.0 52.2 / 37.0 53.6 / 40.9 50.8"),  # 256 keys
    ],
    # Table 5
    "xtreme-ablation": [
        (diet_rel("none", "input"), "68.0 68.1 / 52.8 57.7 / 42.7 63.3 / 50.9 57.6"),
        (diet_rel("head", "input"), "67.7 66.2 / 51.0 56.0 / 41.1 60.1 / 45.9 55.4"),
        (diet_rel("layer", "input"), "68.0 68.6 / 53.3 58.1 / 43.1 61.3 / 48.2 57.2"),
        (diet_rel("none", "per-head"), "68.4 69.4 / 54.4 58.6 / 43.5 62.4 / 49.3 58.0"),
        (diet_rel("head", "per-head"), "67.8 66.0 / 50.5 55.5 / 40.4 59.2 / 44.6 54.7"),
        (diet_rel("layer", "per-head"), "68.1 68.7 / 53.8 58.4 / 43.2 61.0 / 48.4 57.3"),
        (diet_abs(64, "none", "input"), "68.0 67.4 / 50.5 57.8 / 42.3 61.3 / 46.8 56.3"),
        (diet_abs(64, "none", "per-head"), "67.9 67.5 / 52.4 57.3 / 42.3 61.6 / 46.8 56.5"),
        (diet_abs(128, "none", "per-head"), "68.1 68.2 / 52.0 57.9 / 42.6 61.5 / 47.6 56.8"),
        (diet_abs(512, "none", "per-head"), "68.5 68.0 / 52.0 57.7 / 42.4 61.6 / 48.4 56.9"),
        (diet_abs(64, "layer", "input"), "68.0 69.3 / 53.1 59.3 / 43.9 63.2 / 48.6 57.9"),
        (diet_abs(64, "layer", "per-head"), "68.4 69.3 / 53.2 59.4 / 44.1 63.3 / 48.6 58.0"),
        (diet_abs(128, "layer", "per-head"), "68.5 70.0 / 53.6 59.8 / 44.5 64.6 / 51.5 58.9"),
        (diet_abs(256, "layer", "per-head"), "68.4 69.9 / 53.8 59.6 / 44.2 62.8 / 49.1 58.3"),
        (diet_abs(512, "layer", "per-head"), "67.8 69.0 / 53.2 58.4 / 43.0 62.5 / 48.8 57.5"),
    ],
    # Chen et al. (2021a), Table 2; the line of ABS-SCALAR is that of Table 11 with segments at the input
    "scalar-place-xtreme": [
        (LEARNED, "67.0 66.0 / 49.9 56.2 / 41.0 59.0 / 47.9 55.3"),
        (absolute(64, "input"), "67.9 67.7 / 52.1 57.7 / 42.7 61.4 / 47.9 56.8"),
    ],
    # Table 5
    "scalar-xtreme": [
        (LEARNED, "67.0 66.0 / 49.9 56.2 / 41.0 59.0 / 47.9 55.3"),
        (SHAW, "67.4 69.3 / 53.8 58.1 / 43.2 64.3 / 49.6 58.0"),
        (TUPE, "67.4 68.2 / 51.5 56.7 / 42.7 63.3 / 48.2 56.9"),
        (rel("none", "per-head"), "68.4 69.2 / 54.4 58.8 / 43.6 62.9 / 49.9 58.2"),
    ],
    # Table 9
    "scalar-sharing-xtreme": [
        (rel("head", "input"), "67.7 66.2 / 51.0 56.0 / 41.1 60.1 / 45.9 55.4"),
        (rel("layer", "input"), "68.0 68.6 / 53.3 58.1 / 43.1 61.3 / 48.2 57.2"),
        (rel("none", "input"), "68.0 68.1 / 52.8 57.7 / 42.7 63.3 / 50.9 57.6"),
        (rel("head", "per-head"), "67.8 66.0 / 50.5 55.5 / 40.4 59.2 / 44.6 54.7"),
        (rel("layer", "per-head"), "68.1 68.7 / 53.8 58.4 / 43.2 61.0 / 48.4 57.3"),
        (rel("none", "per-head"), "68.4 69.2 / 54.4 58.8 / 43.6 62.9 / 49.9 58.2"),
    ],
    # Table 11
    "scalar-segments-xtreme": [
        (LEARNED, "67.0 66.0 / 49.9 56.2 / 41.0 59.0 / 47.9 55.3"),
        (absolute(64, "input"), "67.9 67.7 / 52.1 57.7 / 42.7 61.4 / 47.9 56.8"),
        (absolute(64, "per-head"), "67.9 67.5 / 52.4 57.3 / 42.3 61.6 / 46.8 56.5"),
        (rel("none", "input"), "68.0 68.1 / 52.8 57.7 / 42.7 63.3 / 50.9 57.6"),
        (rel("none", "per-head"), "68.4 69.2 / 54.4 58.8 / 43.6 62.9 / 49.9 58.2"),
    ],
    # Table 12
    "scalar-rank": [
        (LEARNED, "67.0 66.0 / 49.9 56.2 / 41.0 59.0 / 47.9 55.3"),
        (absolute(64, "per-head"), "67.9 67.5 / 52.4 57.3 / 42.3 61.6 / 46.8 56.5"),
        (absolute(128, "per-head"), "68.6 68.1 / 52.5 57.5 / 42.2 61.3 / 46.9 56.7"),
        (rel("none", "per-head"), "68.4 69.2 / 54.4 58.8 / 43.6 62.9 / 49.9 58.2"),
    ],
}
PROJECTED = {"glue": 32, "xtreme": 256}  # Chen et al. (2021b), Tables 2 and 3: keys of the last two rows
# Headers of Table 2 (both papers): examples in thousands
GLUE_EXAMPLES = {"mnli": 393, "qqp": 364, "qnli": 105, "sst2": 67, "cola": 8.5, "stsb": 7}
# Header of Chen et al. (2021b), Table 3
XTREME_EXAMPLES = {"xnli": 393, "squad": 88, "tydiqa": 3.7}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Folders that plans of XTREME look for; no file is read."""
    root = tmp_path_factory.mktemp("data")
    for part in ("corpus", "glue", *(f"xtreme/{name}" for name in ("xnli", "squad", "xquad", "mlqa", "tydiqa"))):
        (root / part).mkdir(parents=True)
    for language in ("en", "de"):
        (root / "corpus" / f"{language}-wiki.txt").write_text("one two three\n")
    return str(root)


def numbers(line):
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", line)]


def check_lines(plan, lines):
    """Rows and figures, in the paper's order."""
    assert len(plan.rows) == len(lines)
    for row, ((encoding, sharing, rank, segments), figures) in zip(plan.rows, lines, strict=True):
        choice = row.choice
        assert (choice.name, choice.segments) == (encoding, segments), row.name
        assert (choice.sharing, choice.options.get("rank")) == (sharing, rank), row.name
        assert choice.segment_sharing in (None, "none"), row.name  # Chen et al. (2021a), Sec. 3
        assert [row.published[column.name] for column in plan.columns] == numbers(figures), row.name
        assert row.position_rate == 1.0


@pytest.mark.parametrize("name", GLUE)
def test_tables_of_glue(name):
    plan = find_plan(name, "paper")
    assert [column.name for column in plan.columns] == [
        *("MNLI-m", "MNLI-mm", "QQP", "QNLI", "SST-2", "CoLA", "STS-B", "Avg"),
    ]
    check_lines(plan, GLUE[name])
    check_linformer(plan)
    assert {task: config.task_spec.train_size() for task, config in plan.finetune.items()} == {
        task: pytest.approx(1000 * thousands, rel=0.18 if task == "stsb" else 0.01)  # STS-B has 5,749, not 7k
        for task, thousands in GLUE_EXAMPLES.items()
    }
    for config in plan.finetune.values():  # "on the GLUE dev set"
        assert [each.split for each in config.training] == ["train"]
        assert [(each.task, each.split) for each in config.development] == [(config.task_spec, "dev")]
        check_runs(config, length=128)
    epochs = {task: config.protocol.epochs for task, config in plan.finetune.items()}
    assert epochs == {"mnli": 5, "qqp": 5, "qnli": 5, "sst2": 5, "cola": 10, "stsb": 10}  # "5 or 10", Table 7
    # "the maximum accuracy over all checkpoints", Table 2; where that is no accuracy, GLUE's metric of the task
    assert {column.name: (column.task, column.value) for column in plan.columns[:-1]} == {
        "MNLI-m": ("mnli", "highest/dev_matched/accuracy"),
        "MNLI-mm": ("mnli", "highest/dev_mismatched/accuracy"),
        "QQP": ("qqp", "highest/dev/accuracy"),
        "QNLI": ("qnli", "highest/dev/accuracy"),
        "SST-2": ("sst2", "highest/dev/accuracy"),
        "CoLA": ("cola", "highest/dev/matthews"),
        "STS-B": ("stsb", "highest/dev/spearman"),
    }
    check_pretraining(plan, steps=500_000, length=128)
    assert plan.pretrain.text.kind == "wordpiece"  # Sec. 4.1
    assert plan.pretrain.text.vocab_size == 30_522  # by the counts of Table 6; Sec. 4.1 says 30,000


@pytest.mark.parametrize("name", XTREME)
def test_tables_of_xtreme(name, data):
    plan = find_plan(name, "paper", data)
    assert [column.name for column in plan.columns] == [
        *("XNLI", "XQuAD F1", "XQuAD EM", "MLQA F1", "MLQA EM", "TyDiQA F1", "TyDiQA EM", "Avg"),
    ]
    check_lines(plan, XTREME[name])
    check_linformer(plan)
    trained = {task: config.training[0] for task, config in plan.finetune.items()}
    assert {task: each.task.train_size() for task, each in trained.items()} == {
        task: pytest.approx(1000 * thousands, rel=0.01) for task, thousands in XTREME_EXAMPLES.items()
    }
    assert trained["xnli"].task.name == "mnli"  # "on the MultiNLI training data", Sec. 4.2
    assert all(each.split == "train" and not each.languages for each in trained.values())  # English, the default
    evaluated = {
        each.task.name: (each.split, len(each.task.languages))
        for config in plan.finetune.values()
        for each in config.transferring
    }
    # "XQuAD (11 languages), MLQA (7 languages) and TyDiQA-GoldP (9 languages)", Sec. 4.2; XNLI has 15
    assert evaluated == {"xnli": ("test", 15), "xquad": ("test", 11), "mlqa": ("test", 7), "tydiqa": ("dev", 9)}
    assert all(config.data.languages == () for config in plan.finetune.values())
    columns = {column.name: (column.task, column.value) for column in plan.columns}
    assert columns["XQuAD F1"] == ("squad", "transfer/xquad/f1")
    assert columns["MLQA EM"] == ("squad", "transfer/mlqa/exact_match")
    assert columns["TyDiQA EM"] == ("tydiqa", "transfer/tydiqa/exact_match")
    assert plan.columns[-1].task == ",".join(column.name for column in plan.columns[:-1])
    for config in plan.finetune.values():
        check_runs(config, length=512)
        assert config.protocol.epochs == 3
    check_pretraining(plan, steps=125_000, length=512)
    assert (plan.pretrain.text.kind, plan.pretrain.text.vocab_size) == ("unigram", 120_000)  # Sec. 4.2
    assert plan.pretrain.text.smoothing == 0.5  # Lample and Conneau (2019), Sec. 3.1, whose corpus Sec. 4.2 names


def check_linformer(plan):
    projected = [row.changes.get("projected_length") for row in plan.rows]
    wanted = PROJECTED.get(plan.name)
    assert projected == [None] * (len(plan.rows) - (2 if wanted else 0)) + [wanted] * (2 if wanted else 0)


def check_runs(config, *, length):
    """Table 7 of both papers, fine-tuning; "5 trials", Secs. 4.1 and 4.2."""
    assert config.grid.rates == (1e-5, 2e-5, 3e-5, 4e-5)
    assert len(config.grid.seeds) == 5
    protocol = config.protocol
    assert (protocol.length, protocol.batch, protocol.warmup, protocol.evaluate) == (length, 32, 0.1, 3500)
    assert config.data.limit is None


def check_pretraining(plan, *, steps, length):
    """Table 7 of both papers, pretraining; BERT-base, Sec. 4 and App. A."""
    config = plan.pretrain
    recipe = config.optimisation
    assert (recipe.steps, recipe.learning_rate, recipe.warmup, recipe.batch) == (steps, 0.0018, 0.025, 4096)
    assert (config.text.length, config.intervals.checkpoint) == (length, 20_000)
    assert not config.text.packed  # "full sentences from documents", App. A
    assert (config.text.mask_probability, recipe.weight_decay) == (0.15, 0.01)  # those of BERT
    model = config.model.config(length=length)
    assert (model.num_hidden_layers, model.hidden_size, model.num_attention_heads) == (12, 768, 12)
    assert model.build()[1] is None  # segments come with fine-tuning, App. A
    pairs = [each for each in jobs(plan) if each.job.kind == "finetune" and each.task in ("mnli", "xnli")]
    for each in pairs:
        assert each.job.config["start"]["segments"] == plan.row(each.row).choice.segments


@pytest.mark.parametrize("name", [*GLUE, "scalar-translation"])
def test_choices_of_ours_are_listed_once(name):
    choices = find_plan(name, "paper").choices
    assert len(choices) == len(set(choices)) >= 8
    json.dumps(choices)


# Chen et al. (2021a), Table 6: uncased BLEU on newstest2015
SCALAR_TRANSLATION = [
    (("sinusoidal", None), "28.33 31.82 21.15"),
    (("shaw", "head"), "29.23 32.37 21.47"),
    (("t5", "layer"), "29.17 31.81 21.31"),
    (("rel-scalar", "none"), "29.22 31.91 21.71"),
]


def test_the_first_papers_table_of_translation():
    plan = find_plan("scalar-translation", "paper")
    assert [column.name for column in plan.columns] == ["EN-DE", "DE-EN", "EN-CS"]
    assert {(column.value, column.digits) for column in plan.columns} == {("newstest2015/bleu", 2)}
    for row, ((encoding, sharing), figures) in zip(plan.rows, SCALAR_TRANSLATION, strict=True):
        assert (row.choice.name, row.choice.sharing) == (encoding, sharing)
        assert [row.published[column.name] for column in plan.columns] == numbers(figures)
    for direction, config in plan.translate.items():
        other = "cs" if "CS" in direction else "de"
        assert config.data.source == f"hub:{'wmt18' if other == 'cs' else 'wmt15'}:{other}-en"  # Sec. 4.3
        assert config.data.languages == direction.lower()
        assert config.data.test["newstest2015"] == f"hub:wmt15:{other}-en:test"
        assert config.lowercase  # "the uncased BLEU score"
        model = config.model.config()
        assert (model.encoder_layers, model.decoder_layers, model.num_attention_heads) == (6, 6, 8)
        # Vaswani et al. (2017), Table 3 (base), Secs. 5.1, 5.4 and 6.1, whom Sec. 4.3 follows "closely"
        assert (model.hidden_size, model.intermediate_size, model.head_dim) == (512, 2048, 64)
        assert (model.hidden_dropout_prob, model.label_smoothing) == (0.1, 0.1)
        steps = config.optimisation
        assert (steps.steps, steps.warmup, steps.step_tokens) == (100_000, 4000, 25_000)
        assert (config.decoding.beam, config.decoding.length_penalty) == (4, 0.6)
        assert (config.save, config.average) == ("average", 5)


def test_rows_of_both_papers_are_the_same_models():
    """REL-SCALAR is DIET-REL by its first name: as many parameters, and Sec. 2.4's factor is half of DIET-ABS's."""

    def count(encoding):
        return pretraining_parameters(preset("bert-base", encoding=encoding, vocab_size=30_522))

    for sharing in ("none", "head", "layer"):
        options = f"sharing={sharing},segments=per-head"
        assert count(f"rel-scalar:{options}") == count(f"diet-rel:{options}")
    none, scalar, diet = (
        count(encoding) for encoding in ("none", "abs-scalar:rank=64,sharing=none", "diet-abs:rank=64,sharing=none")
    )
    assert diet - none == 2 * (scalar - none)
