"""Four rows of `encodings` pretrained with another seed, to see what STS-B takes off with: heads that attend to the
same token, or segments and positions that move thirty times as fast in fine-tuning.

    headway study results/studies/same-token/plan.py --size gpu --data DATA --out studies/same-token
"""

from __future__ import annotations

from dataclasses import replace

from headway.bench.study.plan import Column, Plan
from headway.bench.study.plans.encodings_on_text import encodings

ROWS = ("diet-rel", "tisa", "t5", "shaw")
FASTER = 30.0


def plan(size: str, data: str | None) -> Plan:
    if size == "quick":
        raise ValueError("size: expected gpu or paper, got quick. The built-in language has no STS-B.")
    whole = encodings(size, data)
    task = whole.finetune["stsb"]
    faster = replace(task, protocol=replace(task.protocol, position_rate=FASTER))
    column = next(column for column in whole.columns if column.task == "stsb")
    return Plan(
        name="same-token",
        size=size,
        title="STS-B and heads that attend to the same token",
        rows=tuple(row for row in whole.rows if row.name in ROWS),
        columns=(
            whole.columns[0],
            column,
            Column(name="STS-B, 30 x", source="finetune", task="stsb, 30 x", measure=column.measure),
        ),
        baseline=ROWS[0],
        pretrain=whole.pretrain,
        finetune={"stsb": task, "stsb, 30 x": faster},
        seeds=(2,),
        analyse=True,
        notes=("`30 x`: the rate of positions and of segments per head is 30 times that of all else in fine-tuning.",),
    )
