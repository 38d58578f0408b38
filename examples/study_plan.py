"""A study of your own in one file: does DIET-REL gain from T5's buckets, or from sharing between layers?

    headway study examples/study_plan.py --out studies/mine

`plan(size, data)` gets what was given as --size and --data, and returns rows (encodings), columns (measures) and the
recipes that fill the cells. Jobs that another study has done, in the same --store, are not done again.
"""

from __future__ import annotations

from headway.bench.study.plan import Column, Plan, Row, RowClaim
from headway.bench.study.plans.recipes import builtin_finetuning
from headway.bench.tasks.pretrain import EncoderChoice, Intervals, Optimisation, PretrainConfig, Text

TASK = "builtin:acceptability"


def plan(size: str, data: str | None) -> Plan:
    steps = {"quick": 300, "gpu": 3000, "paper": 30_000}[size]
    return Plan(
        name="mine",
        size=size,
        title="Offsets one by one, in buckets, or shared",
        rows=(
            Row(name="diet-rel", encoding="diet-rel"),
            Row(name="diet-rel, shared", encoding="diet-rel:sharing=layer"),
            Row(name="t5", encoding="t5:buckets=16"),
        ),
        columns=(
            Column(name="Masked words", source="pretrain", value="masked_accuracy", measure="accuracy, %"),
            Column(name="Acceptability", source="finetune", task=TASK, measure="Matthews × 100", chance=0.0),
        ),
        baseline="diet-rel",
        pretrain=PretrainConfig(
            model=EncoderChoice(preset="tiny", changes={"hidden_size": 64, "intermediate_size": 128}),
            text=Text(corpus=("builtin:10000",), length=64, validation=0.05),
            optimisation=Optimisation(steps=steps, batch=32, learning_rate=3e-3, warmup=0.1),
            intervals=Intervals(log=25, evaluate=steps, checkpoint=200),
        ),
        finetune={TASK: builtin_finetuning(TASK, rate=1e-3, epochs=2, limit=2000)},
        analyse=True,
        claims=(
            RowClaim(says="sharing hurts", column="Acceptability", better=("diet-rel",), than=("diet-rel, shared",)),
        ),
    )
