"""What position costs: Table 1 of the DIET paper, and its parameters, Table 6."""

from __future__ import annotations

from dataclasses import replace

from headway.bench.cost import CostConfig, published_ratio
from headway.bench.study.plan import Column, Plan, Row
from headway.bench.study.plans.rows import CHOICES, DEVLIN, DIET, KE, SHAW_CLIPPED, SHAW_ROW, diet_abs, diet_rel

MODELS = {"quick": ("tiny",), "gpu": ("bert-base", "bert-small"), "paper": ("bert-base", "bert-small")}
ROWS = (DEVLIN, SHAW_CLIPPED, KE, diet_abs("DIET-ABS", 64), diet_rel("DIET-REL"))
# Table 6: millions of parameters, English and multilingual. Segments are per head except in BERT itself.
TABLE_6: tuple[tuple[Row, float, float], ...] = (
    (DEVLIN, 110.1, 178.9),
    (SHAW_ROW, 112.9, 181.7),
    (diet_rel("DIET-REL"), 109.9, 178.7),
    (diet_rel("DIET-REL, share", sharing="layer"), 109.7, 178.5),
    (diet_abs("DIET-ABS, rank 128", 128, sharing="none"), 128.6, 197.4),
    (diet_abs("DIET-ABS, rank 128, share", 128), 111.3, 180.1),
)


def cost(size: str, data: str | None) -> Plan:
    """Table 1: time of a step over BERT with positions at the input."""
    columns = tuple(
        Column(
            name=f"{model} {mode}",
            source="cost",
            value=f"{mode}/{model}",
            measure="time over the baseline",
            scale=1.0,
            digits=2,
            higher=False,
        )
        for model in MODELS[size]
        for mode in ("training", "inference")
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
    )


def parameters(size: str, data: str | None) -> Plan:
    """Table 6, worked out from shapes: the same at every size."""
    columns = tuple(
        Column(
            name=name,
            source="parameters",
            value=name,
            measure="parameters, millions",
            scale=1.0,
            higher=False,
        )
        for name in ("English", "multilingual")
    )
    rows = tuple(replace(row, published={"English": english, "multilingual": many}) for row, english, many in TABLE_6)
    return Plan(
        name="parameters",
        size=size,
        title="Parameters of BERT-base, Table 6",
        rows=rows,
        columns=columns,
        baseline=DEVLIN.name,
        paper=DIET,
        notes=CHOICES,
    )


def _published(column: Column, row: Row) -> float | None:
    mode, model = column.value.split("/")
    return published_ratio(model, mode, row.choice.name)
