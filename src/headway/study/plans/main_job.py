"""The main job: every family of encodings on the built-in language, in minutes on two cores."""

from __future__ import annotations

from headway.cost import CostConfig
from headway.study.plan import Claim, Column, Plan, Row
from headway.study.plans.glue_tables import builtin_column, builtin_tasks
from headway.study.plans.recipes import builtin_pretraining
from headway.study.plans.rows import FASTER
from headway.study.plans.translation_tables import BUILTIN_TASK, builtin_translation

ROWS = (
    Row(name="none", encoding="none"),
    Row(name="sinusoidal", encoding="sinusoidal", segments="input"),
    Row(name="learned", encoding="learned", segments="input"),
    Row(name="shaw", encoding="shaw"),
    Row(name="t5", encoding="t5", position_rate=FASTER),
    Row(name="tupe-abs", encoding="tupe-abs"),
    Row(name="diet-abs", encoding="diet-abs", sharing="layer"),
    Row(name="diet-rel", encoding="diet-rel", position_rate=FASTER),
    Row(name="tisa", encoding="tisa"),
    Row(name="rope", encoding="rope"),
)
INPUT = tuple(row.name for row in ROWS if row.place == "input")
PER_HEAD = tuple(row.name for row in ROWS if row.place == "per-head")
TASKS = builtin_tasks(("builtin:acceptability", "builtin:questions"))
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
            "Questions are pairs with segments, and far from learned in this budget. So early, learned is ahead of "
            "diet-rel and t5 on every seed of fine-tuning, whichever form segments take; why has not been found.",
            "Inference between sentences is not here: even where nouns keep their places or exchange them, and nothing "
            "else, some seeds learn it within 800 steps and others stay at chance; see the plan glue.",
            f"t5 and diet-rel train the numbers that they add to scores at {FASTER:g} times the rate, in pretraining "
            "and translation: Adam moves a number by at most the rate a step, which would leave them too small in so "
            "few steps.",
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
