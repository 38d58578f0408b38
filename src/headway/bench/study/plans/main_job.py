"""The main job: every family of encodings on the built-in language, in minutes on two cores."""

from __future__ import annotations

from dataclasses import replace

from headway.bench.cost import CostConfig
from headway.bench.study.plan import Column, Plan, Row, RowClaim
from headway.bench.study.plans.glue_tables import builtin_column, builtin_tasks
from headway.bench.study.plans.recipes import builtin_pretraining
from headway.bench.study.plans.rows import FASTER
from headway.bench.study.plans.translation_tables import BUILTIN_TASK, builtin_translation

ROWS = (
    Row(name="none", encoding="none"),
    Row(name="sinusoidal", encoding="sinusoidal:segments=input"),
    Row(name="learned", encoding="learned:segments=input"),
    Row(name="shaw", encoding="shaw"),
    Row(name="t5", encoding="t5", position_rate=FASTER),
    Row(name="tupe-abs", encoding="tupe-abs"),
    Row(name="diet-abs", encoding="diet-abs:sharing=layer"),
    Row(name="diet-rel", encoding="diet-rel", position_rate=FASTER),
    Row(name="tisa", encoding="tisa"),
    Row(name="rope", encoding="rope"),
)
INPUT = tuple(row.name for row in ROWS if row.place == "input")
PER_HEAD = tuple(row.name for row in ROWS if row.place == "per-head")
TASKS = builtin_tasks(("builtin:acceptability", "builtin:roles", "builtin:role-questions"))
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
    """Plan the main job: ten encodings in one small encoder, on tasks whose answers depend on word order."""
    _only_quick(size)
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
        cost=CostConfig(models=("tiny",), lengths=(128,), rounds=3, together=2, modes=("training", "inference")),
        analyse=True,
        claims=claims(),
        paper="",
        notes=(
            "The built-in language: under every label of acceptability and inference, and for every answer, the words "
            "are the same, or as likely, so that a bag of words can only guess.",
            "Inference and questions are pairs with segments. Of the two things that can be asked, one is asked three "
            "times in four, under either label, or encoders this small would stay at chance for hundreds of steps. The "
            "order of the first sentence alone is worth 75% of inference; the rest takes both.",
            "Questions on two facts (builtin:questions) are not here: in this budget no encoding learns to tell the "
            "facts apart, and scores below 50 are kinds of guessing; see the plan questions.",
            f"t5 and diet-rel train the numbers that they add to scores at {FASTER:g} times the rate, in pretraining "
            "and translation: Adam moves a number by at most the rate a step, which would leave them too small in so "
            "few steps.",
        ),
    )


def questions(size: str = "quick", data: str | None = None) -> Plan:
    """Plan questions on one fact and on two, which shows why the main job asks about one.

    With two facts, scores after short training depend on how an encoding guesses.
    """
    _only_quick(size)
    one, two = builtin_tasks(("builtin:role-questions", "builtin:questions")).values()
    steps = 250
    longer = replace(two, data=replace(two.data, limit=2 * steps * two.protocol.batch))
    tasks = {"builtin:role-questions": one, "builtin:questions": two, "builtin:questions, longer": longer}
    names = ("One fact", f"Two facts, {steps} steps", f"Two facts, {2 * steps} steps")
    measure = builtin_column("builtin:role-questions").measure
    return Plan(
        name="questions",
        size=size,
        title="Questions on one fact and on two",
        rows=tuple(row for row in ROWS if row.name in ("learned", "t5", "diet-rel")),
        columns=tuple(
            Column(name=name, source="finetune", task=task, measure=measure, order=True)
            for name, task in zip(names, tasks, strict=True)
        ),
        baseline="learned",
        pretrain=builtin_pretraining(),
        finetune=tasks,
        paper="",
        notes=(
            "Two facts have one verb, and the question names whom they share. Who knows the roles, and not which fact "
            "is meant, gets 50; who finds the facts alone gets 25.",
        ),
    )


def _only_quick(size: str) -> None:
    if size != "quick":
        raise ValueError(f"size: expected quick, the only one of this plan, got {size!r}. The papers' plans have all.")


def claims() -> tuple[RowClaim, ...]:
    """Return the papers' expectations for each column in which word order matters."""
    ordered = [column for column in COLUMNS if column.order or column.source == "pretrain"]
    found = [
        RowClaim(
            says=f"without position, {column.name.lower()} is a guess",
            column=column.name,
            better=("none",),
            margin=10.0,
            paper="by construction of the language",
        )
        for column in ordered
        if column.chance is not None
    ]
    for column in ordered:
        found += [
            RowClaim(
                says=f"{column.name}: position at the input is above none",
                column=column.name,
                better=INPUT,
                than=("none",),
                paper="Shaw et al. (2018), Table 3",
            ),
            RowClaim(
                says=f"{column.name}: per-head encodings are at or above those at the input",
                column=column.name,
                better=PER_HEAD,
                than=INPUT,
                paper="Chen et al. (2021b), Secs. 4.1 to 4.3",
            ),
        ]
    return tuple(found)
