"""What position costs: Table 1 of the DIET paper, and its parameters, Table 6."""

from __future__ import annotations

from dataclasses import replace

from headway.bench.cost import CostConfig, published_ratio
from headway.bench.study.plan import Column, Plan, Row
from headway.bench.study.plans.glue_tables import glue_plan
from headway.bench.study.plans.rows import CHOICES, DEVLIN, DIET, KE, SHAW_CLIPPED, SHAW_ROW, diet_abs, diet_rel
from headway.bench.study.plans.xtreme_tables import xtreme_plan

MODELS = {"quick": ("tiny",), "gpu": ("bert-base", "bert-small"), "paper": ("bert-base", "bert-small")}
COST_CHOICES = (  # of ours, where the paper is silent
    "The paper names neither length nor batch: here texts have 128 tokens, as in its pretraining in English, and a "
    "batch has 32,768 tokens on a GPU, 1,024 on a CPU. A training step predicts masked words and ends with the "
    "optimizer's step; inference is a forward pass (Sec. 3.3).",
    "All rows have segments at the input, so that positions alone differ.",
    "Shaw et al. clip at 16, as in their own base model, and share over heads (Sec. 4.4). The counts of Table 6 ask "
    "for tables so long that nothing is clipped.",
    "DIET-ABS has rank 64, the default of Sec. 3.1, and is shared over layers, as Sec. 4.4 recommends.",
)
ROWS = (DEVLIN, SHAW_CLIPPED, KE, diet_abs("DIET-ABS", 64), diet_rel("DIET-REL"))
# Table 6: English, millions of parameters, how many more than BERT in percent, and GLUE; multilingual, the same and
# XTREME. Segments are per head except in BERT itself and Shaw et al. The percentages are as printed: +0.0 stands for
# fewer parameters than BERT, and +1.7 and +10.0 are not what the counts beside them give.
TABLE_6: tuple[tuple[Row, tuple[float | None, ...]], ...] = (
    (DEVLIN, (110.1, None, 84.8, 178.9, None, 55.3)),
    (SHAW_ROW, (112.9, 2.5, 85.2, 181.7, 1.7, 57.9)),
    (diet_rel("DIET-REL"), (109.9, 0.0, 85.2, 178.7, 0.0, 58.0)),
    (diet_rel("DIET-REL, share", sharing="layer"), (109.7, 0.0, 85.0, 178.5, 0.0, 57.3)),
    (diet_abs("DIET-ABS, rank 128", 128, sharing="none"), (128.6, 16.8, 85.3, 197.4, 10.0, 56.8)),
    (diet_abs("DIET-ABS, rank 128, share", 128), (111.3, 1.1, 85.2, 180.1, 0.6, 58.9)),
)


def cost(size: str, data: str | None) -> Plan:
    """Plan Table 1: the time of a step over that of BERT with positions at the input."""
    columns = tuple(
        column
        for model in MODELS[size]
        for mode in ("training", "inference")
        for column in (
            Column(
                name=f"{model} {mode}",
                source="cost",
                value=f"{mode}/{model}",
                measure="time over the baseline",
                scale=1.0,
                digits=2,
                higher=False,
            ),
            Column(
                name=f"{model} {mode}, steps/s",
                source="cost",
                value=f"{mode}/{model}/steps",
                measure="steps a second",
                scale=1.0,
            ),
        )
    )
    rows = []
    for row in ROWS:
        figures = {column.name: figure for column in columns if (figure := _published(column, row)) is not None}
        rows.append(replace(row, published=figures))
    return Plan(
        name="cost",
        size=size,
        title="What position costs, Table 1",
        rows=tuple(rows),
        columns=columns,
        baseline=DEVLIN.name,
        cost=CostConfig(models=MODELS[size], segments="input", rounds=5 if size == "quick" else 15),
        paper=f"{DIET}, measured on TPU v2",
        choices=COST_CHOICES,
    )


def parameters(size: str, data: str | None) -> Plan:
    """Plan Table 6: parameters, counted from shapes, beside the GLUE and XTREME averages of the same rows.

    Size quick only counts; the others also pretrain and fine-tune, as the plans of Tables 2, 3, 5 and 9 do.
    """
    averages = size != "quick"
    names = ("English", "English, + Δ", "GLUE", "multilingual", "multilingual, + Δ", "XTREME")
    columns: list[Column] = []
    for language, difference, task in (names[:3], names[3:]):
        counted = Column(
            name=language, source="parameters", value=language, measure="millions", scale=1.0, higher=False
        )
        added = replace(counted, name=difference, measure="more than the baseline, %", relative=True)
        columns += [counted, added]
        if averages:
            columns.append(Column(name=task, source="part", task=task, value="Avg", measure="mean of the tasks"))
    own = set(names) if size == "paper" else set(names) - {"GLUE", "XTREME"}  # published scores are of size paper
    rows = tuple(
        replace(
            row,
            published={
                name: value for name, value in zip(names, figures, strict=True) if name in own and value is not None
            },
        )
        for row, figures in TABLE_6
    )
    plain = tuple(row for row, _ in TABLE_6)
    parts: dict[str, Plan] = {}
    if averages:
        parts["GLUE"] = glue_plan("parameters-glue", "GLUE, Table 6", plain, size, data)
        parts["XTREME"] = xtreme_plan("parameters-xtreme", "XTREME, Table 6", plain, size, data)
    return Plan(
        name="parameters",
        size=size,
        title="Parameters of BERT-base, Table 6",
        rows=rows,
        columns=tuple(columns),
        baseline=DEVLIN.name,
        parts=parts,
        paper=DIET,
        choices=tuple(dict.fromkeys((*CHOICES, *(each for part in parts.values() for each in part.choices)))),
    )


def _published(column: Column, row: Row) -> float | None:
    mode, model, *steps = column.value.split("/")
    return None if steps else published_ratio(model, mode, row.choice.name)
