"""The main job: every family of encodings on the built-in language, in minutes on two cores."""

from __future__ import annotations

from headway.cost import CostConfig
from headway.study.plan import Claim, Column, Plan, Row
from headway.study.plans.glue_tables import builtin_column
from headway.study.plans.recipes import builtin_finetuning, builtin_pretraining
from headway.study.plans.translation_tables import BUILTIN_TASK, builtin_translation

ROWS = (
    Row(name="none", encoding="none"),
    Row(name="sinusoidal", encoding="sinusoidal", segments="input"),
    Row(name="learned", encoding="learned", segments="input"),
    Row(name="shaw", encoding="shaw"),
    Row(name="t5", encoding="t5"),
    Row(name="tupe-abs", encoding="tupe-abs"),
    Row(name="diet-abs", encoding="diet-abs", sharing="layer"),
    Row(name="diet-rel", encoding="diet-rel"),
    Row(name="tisa", encoding="tisa"),
    Row(name="rope", encoding="rope"),
)
INPUT = tuple(row.name for row in ROWS if row.place == "input")
PER_HEAD = tuple(row.name for row in ROWS if row.place == "per-head")
TASKS = {
    "builtin:acceptability": builtin_finetuning("builtin:acceptability", rate=1e-3, epochs=3, limit=2000),
    "builtin:questions": builtin_finetuning("builtin:questions", rate=2e-3, epochs=3, limit=1200),
}
COLUMNS = (
    Column(name="Masked words", source="pretrain", value="masked_accuracy", measure="accuracy, %"),
    *(builtin_column(task) for task in TASKS),
    Column(
        name="Translation",
        source="translate",
        task=BUILTIN_TASK,
        value="bleu",
        measure="SacreBLEU",
        scale=1.0,
        order=True,
    ),
)


def quick(size: str = "quick", data: str | None = None) -> Plan:
    """Where should position go? Ten encodings, one small encoder, tasks that are in the word order."""
    if size != "quick":
        raise ValueError(f"size: expected quick, the only one of this plan, got {size!r}. The papers' plans have all.")
    return Plan(
        name="quick",
        size=size,
        title="Where should position go?",
        rows=ROWS,
        columns=COLUMNS,
        baseline="learned",
        pretrain=builtin_pretraining(),
        finetune=TASKS,
        translate={BUILTIN_TASK: builtin_translation()},
        cost=CostConfig(models=("tiny",), lengths=(128,), rounds=5, modes=("training", "inference")),
        analyse=True,
        claims=claims(),
        paper="",
        notes=(
            "The built-in language: under every label of acceptability and questions the words are the same, or as "
            "likely, so that a bag of words can only guess.",
            "Questions are pairs with segments, and far from learned in this budget: in longer training, with three "
            "layers, diet-rel answers nearly all of them. Inference between sentences takes thousands of steps more, "
            "and is not here; see the plans glue and xtreme.",
        ),
    )


def claims() -> tuple[Claim, ...]:
    """What the papers say, of each column in which order matters."""
    ordered = [column for column in COLUMNS if column.order or column.source == "pretrain"]
    found = [
        Claim(
            says="without position, acceptability is a guess",
            column="Acceptability",
            better=("none",),
            margin=10.0,
            paper="by construction of the language",
        )
    ]
    for column in ordered:
        found += [
            Claim(
                says=f"{column.name}: position at the input is above none",
                column=column.name,
                better=INPUT,
                than=("none",),
                paper="Shaw et al. (2018), Table 3",
            ),
            Claim(
                says=f"{column.name}: per-head encodings are at or above those at the input",
                column=column.name,
                better=PER_HEAD,
                than=INPUT,
                paper="Chen et al. (2021b), Secs. 4.1 to 4.3",
            ),
        ]
    return tuple(found)
