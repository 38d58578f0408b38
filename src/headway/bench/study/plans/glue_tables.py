"""GLUE: Tables 2, 8 and 9 of the DIET paper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway.bench.study.plan import Column, Plan, Row, RowClaim
from headway.bench.study.plans import recipes
from headway.bench.study.plans.rows import (
    CHOICES,
    DEVLIN,
    DIET,
    FASTER_NOTE,
    KE,
    RAFFEL,
    SHAW_ROW,
    TRAINING_CHOICES,
    diet_abs,
    diet_rel,
    linformer,
    of_size,
    published,
)
from headway.bench.tasks.finetune import Data, FinetuneConfig

NAMES = ("MNLI-m", "MNLI-mm", "QQP", "QNLI", "SST-2", "CoLA", "STS-B", "Avg")
TASKS = ("mnli", "qqp", "qnli", "sst2", "cola", "stsb")
COLUMNS = (
    Column(name="MNLI-m", source="finetune", task="mnli", value="highest/dev_matched/accuracy", measure="accuracy"),
    Column(name="MNLI-mm", source="finetune", task="mnli", value="highest/dev_mismatched/accuracy", measure="accuracy"),
    Column(name="QQP", source="finetune", task="qqp", value="highest/dev/accuracy", measure="accuracy"),
    Column(name="QNLI", source="finetune", task="qnli", value="highest/dev/accuracy", measure="accuracy"),
    Column(name="SST-2", source="finetune", task="sst2", value="highest/dev/accuracy", measure="accuracy"),
    Column(name="CoLA", source="finetune", task="cola", value="highest/dev/matthews", measure="Matthews correlation"),
    Column(name="STS-B", source="finetune", task="stsb", value="highest/dev/spearman", measure="Spearman correlation"),
    Column(name="Avg", source="mean", task=",".join(NAMES[:-1]), measure="mean of the seven numbers"),
)
GLUE_CHOICES = (  # of ours, where the papers are silent
    "Five runs (Table 2) are five seeds of fine-tuning from one pretrained model; the paper does not say how many "
    "models are pretrained for a row.",
    "The learning rate of a cell is the one with the highest median over its five runs, of the number that the cell "
    "shows; each run counts by the highest value over its checkpoints, which are 3,500 steps apart and one after the "
    "last step (Table 7). Of the two columns of MNLI each takes its own highest value.",
    "“Avg” is the mean of the seven numbers of each run, and of these means the median over runs. The published "
    "averages are, to rounding, means of the medians beside them.",
    "Ten epochs for CoLA and STS-B, whose training sets are small, and five for the others: Table 7 says 5 or 10.",
    "QQP is scored by accuracy and STS-B by Spearman's correlation; the paper calls all its numbers accuracy.",
    "CoLA has one sentence. App. A names it among the tasks that get segments, but one segment adds the same number to "
    "all scores and changes nothing, so that its models have none.",
    "WordPiece has BERT's 30,522 words, as Table 6's counts have; Sec. 4.1 says 30,000. Books, which is not in public "
    "hands, has to be given as a corpus beside Wikipedia.",
    *TRAINING_CHOICES,
)
SMALL_TASKS = ("cola", "sst2", "stsb", "mrpc", "rte")  # of size gpu: those whose training sets are small
BUILTIN = ("builtin:acceptability", "builtin:role-questions", "builtin:roles")

TABLE_2: tuple[Row, ...] = tuple(
    published(row, NAMES, figures)
    for row, figures in (
        (DEVLIN, (85.8, 85.9, 91.1, 89.9, 93.2, 58.7, 89.0, 84.8)),
        (SHAW_ROW, (86.3, 86.0, 91.2, 90.5, 93.2, 59.8, 89.3, 85.2)),
        (RAFFEL, (86.4, 86.2, 91.2, 90.1, 93.0, 59.6, 90.1, 85.2)),
        (KE, (86.1, 86.2, 91.2, 90.3, 93.1, 59.6, 89.6, 85.2)),
        (
            diet_rel("DIET-REL, segments at the input", segments="input"),
            (86.0, 86.1, 91.0, 89.8, 92.8, 59.6, 89.0, 84.9),
        ),
        (diet_rel("DIET-REL"), (86.3, 86.3, 91.0, 90.5, 92.9, 60.3, 89.3, 85.2)),
        (diet_abs("DIET-ABS, rank 128, share", 128), (86.4, 86.4, 90.8, 89.5, 93.0, 59.8, 90.2, 85.2)),
        (linformer(32)[0], (82.3, 82.6, 90.2, 86.3, 91.4, 53.9, 87.6, 82.0)),
        (linformer(32)[1], (83.0, 83.1, 90.6, 86.7, 92.0, 55.7, 87.6, 82.7)),
    )
)
TABLE_8: tuple[Row, ...] = (
    TABLE_2[0],
    TABLE_2[4],
    TABLE_2[5],
    *(
        published(row, NAMES, figures)
        for row, figures in (
            (
                diet_abs("DIET-ABS, rank 64, segments at the input", 64, segments="input", sharing="none"),
                (86.1, 85.8, 91.2, 90.0, 93.0, 58.9, 89.9, 85.0),
            ),
            (diet_abs("DIET-ABS, rank 64", 64, sharing="none"), (86.1, 86.1, 91.2, 90.2, 93.0, 58.9, 89.8, 85.0)),
            (diet_abs("DIET-ABS, rank 64, share", 64), (86.0, 86.8, 91.1, 90.4, 92.9, 59.3, 89.8, 85.2)),
        )
    ),
    TABLE_2[6],
)
TABLE_9: tuple[Row, ...] = (
    TABLE_2[5],
    published(
        diet_rel("DIET-REL, share layers", sharing="layer"), NAMES, (86.5, 86.3, 91.1, 90.0, 93.0, 58.8, 89.6, 85.0)
    ),
    published(
        diet_rel("DIET-REL, share heads", sharing="head"), NAMES, (85.8, 85.7, 91.2, 90.2, 92.8, 59.8, 89.1, 84.9)
    ),
    TABLE_8[4],
    published(
        diet_abs("DIET-ABS, rank 128", 128, sharing="none"), NAMES, (86.7, 86.5, 91.2, 90.6, 92.8, 60.1, 89.4, 85.3)
    ),
    TABLE_8[5],
    TABLE_8[6],
)


def glue(size: str, data: str | None) -> Plan:
    """Plan Table 2: encodings at the input against encodings per head."""
    claims = (
        RowClaim(
            says="per-head encodings are above position at the input",
            column="Avg",
            better=tuple(row.name for row in (*TABLE_2[1:4], *TABLE_2[5:7])),
            than=(TABLE_2[0].name,),
            paper="Chen et al. (2021b), Sec. 4.1",
        ),
        RowClaim(
            says="DIET-REL gains from segments per head",
            column="Avg",
            better=(TABLE_2[5].name,),
            than=(TABLE_2[4].name,),
            paper="Chen et al. (2021b), Sec. 4.1",
        ),
        RowClaim(
            says="Linformer gains from DIET-ABS",
            column="Avg",
            better=(TABLE_2[8].name,),
            than=(TABLE_2[7].name,),
            paper="Chen et al. (2021b), Sec. 4.1",
        ),
    )
    return glue_plan("glue", "GLUE, Table 2", TABLE_2, size, data, claims)


def glue_segments(size: str, data: str | None) -> Plan:
    """Plan Table 8: positions and segments, at the input and per head."""
    return glue_plan("glue-segments", "Position and segments on GLUE, Table 8", TABLE_8, size, data)


def glue_sharing(size: str, data: str | None) -> Plan:
    """Plan Table 9: sharing between heads and between layers."""
    claims = (
        RowClaim(
            says="sharing between heads hurts DIET-REL",
            column="Avg",
            better=(TABLE_9[0].name,),
            than=(TABLE_9[2].name,),
            paper="Chen et al. (2021b), App. D",
        ),
    )
    return glue_plan("glue-sharing", "Sharing on GLUE, Table 9", TABLE_9, size, data, claims)


def glue_plan(
    name: str,
    title: str,
    rows: tuple[Row, ...],
    size: str,
    data: str | None,
    claims: tuple[RowClaim, ...] = (),
    *,
    paper: str = DIET,
    choices: tuple[str, ...] = CHOICES,
) -> Plan:
    """Plan rows on GLUE: pretraining in English, then fine-tuning on each task.

    Args:
        choices: those that concern the rows; those that concern GLUE are added.
    """
    return Plan(
        name=name,
        size=size,
        title=title,
        rows=of_size(rows, size),
        columns=glue_columns(size),
        baseline=rows[0].name,
        finetune=glue_tasks(size, data),
        pretrain=recipes.pretraining(size, data),
        split=size == "paper",
        analyse=size != "paper",
        claims=claims,
        paper=f"{paper}; its figures stand beside ours where the task is the same",
        notes=NOTES[size],
        choices=(*choices, *GLUE_CHOICES),
    )


NOTES: Mapping[str, tuple[str, ...]] = {
    "quick": (
        "The tasks are the built-in language's, in a budget of minutes.",
        "Ranks are divided by 8.",
    ),
    "gpu": (
        "BERT-small on the given corpus, at most 20,000 examples a task: compare rows, not papers.",
        FASTER_NOTE,
    ),
    "paper": (),
}


def glue_columns(size: str) -> tuple[Column, ...]:
    """Return the paper's columns, or those of the tasks of another size, and their mean."""
    if size == "paper":
        return COLUMNS
    if size == "gpu":
        own = [
            Column(name=task, source="finetune", task=task, measure="GLUE's score of the task") for task in SMALL_TASKS
        ]
    else:
        own = [builtin_column(task) for task in BUILTIN]
    return (*own, Column(name="Avg", source="mean", task=",".join(column.name for column in own), measure="mean"))


def builtin_column(task: str) -> Column:
    """Return the column of a task of the built-in language, whose answers depend on the order of words."""
    return {
        "builtin:acceptability": Column(
            name="Acceptability", source="finetune", task=task, measure="Matthews × 100", chance=0.0, order=True
        ),
        "builtin:roles": Column(
            name="Inference", source="finetune", task=task, measure="accuracy, %", chance=50.0, order=True
        ),
        "builtin:role-questions": Column(
            name="Questions", source="finetune", task=task, measure="F1 × 100", order=True
        ),
    }[task]


def builtin_tasks(names: tuple[str, ...]) -> dict[str, FinetuneConfig]:
    """Return recipes for tasks of the built-in language."""
    settings: dict[str, dict[str, Any]] = {
        "builtin:acceptability": {"rate": 5e-4, "limit": 3200},
        "builtin:questions": {"rate": 2e-3, "limit": 4000, "batch": 16},
        "builtin:role-questions": {"rate": 2e-3, "limit": 1600, "batch": 16},
        "builtin:roles": {"rate": 1e-3, "limit": 4800},
    }
    return {name: recipes.builtin_finetuning(name, **settings[name]) for name in names}


def glue_tasks(size: str, data: str | None) -> dict[str, FinetuneConfig]:
    """Return the recipe of each task."""
    if size == "quick":
        return builtin_tasks(BUILTIN)
    if size == "gpu" or data is not None:
        recipes.folder(data, "corpus", "glue")
    where = Data(train=(recipes.source(data, "glue"),), on_error="skip")
    return {task: recipes.finetuning(task, where, size) for task in (TASKS if size == "paper" else SMALL_TASKS)}
