"""The league across languages and in translation, for claims of the papers; docs/league.md is its design."""

from __future__ import annotations

from dataclasses import replace

from headway.bench.study.plan import Column, Plan, Row
from headway.bench.study.plans.league import loss_columns, rate_grid
from headway.bench.study.plans.rows import DEVLIN, RAFFEL, diet_abs, diet_rel
from headway.bench.study.plans.shaw_tables import CLIPS, SHAW_16_AND_SINUSOIDS
from headway.bench.study.plans.translation_tables import BUILTIN_TASK, VASWANI, builtin_translation, short_recipe
from headway.bench.study.plans.xtreme_tables import xtreme_plan
from headway.bench.tasks.pretrain import Intervals
from headway.bench.tasks.translate import TranslateConfig

LANGUAGES = (DEVLIN, RAFFEL, diet_rel("DIET-REL"), diet_abs("DIET-ABS, rank 128, share", 128))
TOKENS_A_STEP = 55_000  # of 256 rows of 256 places, as measured in results/studies/xtreme
PLATEAU = 5.0  # nats; runs that had not left it ended at 5.3 and 5.4, the others at 4.3 and lower
PARTS = ("keys=true,values=false", "keys=false,values=true")
CORPORA = {"Multi30k": "translation", "Europarl": "translation/europarl"}  # column, folder of the folder of data


def league_languages(size: str = "gpu", data: str | None = None) -> Plan:
    """Plan four encodings in many languages, each at rates of its own, with several pretrained models."""
    _check_size(size)
    plan = xtreme_plan("league-languages", "The league across languages", LANGUAGES, size, data, choices=())
    assert plan.pretrain is not None
    pretraining, grid, plateau = plan.pretrain, rate_grid(size), None
    if size == "gpu":
        steps, plateau = round(300e6 / TOKENS_A_STEP), PLATEAU
        pretraining = replace(
            pretraining,
            optimisation=replace(pretraining.optimisation, steps=steps),
            intervals=Intervals(log=50, evaluate=100, checkpoint=500, keep=1),
        )
        grid = replace(grid, steps=round(50e6 / TOKENS_A_STEP))
    losses = loss_columns(size, plateau)
    return replace(
        plan,
        rows=tuple(replace(row, position_rate=1.0) for row in plan.rows),
        columns=(*losses, *plan.columns),
        pretrain=pretraining,
        rates=grid,
        finetune={name: replace(task, grid=replace(task.grid, seeds=(0,))) for name, task in plan.finetune.items()},
        seeds=(0, 1) if size == "quick" else (0, 1, 2),
        analyse=False,
        pooled=True,
        plateau=float(losses[1].value.partition("/")[2]),
        paper="",
        notes=(
            "The design, with what would count against each claim, is docs/league.md.",
            "A verdict needs every model to have left the plateau; one that has not is counted.",
        ),
    )


def league_translation(size: str = "gpu", data: str | None = None) -> Plan:
    """Plan the ablations of Shaw et al. (2018), Tables 2 and 3, with eight seeds on two corpora."""
    _check_size(size)
    rows = [Row(name=f"k = {clip}", encoding=f"shaw:clip={clip},sharing=none,segments=none") for clip in CLIPS]
    rows += [
        Row(name=f"{kept} alone", encoding=f"shaw:clip=16,{parts},sharing=none,segments=none")
        for kept, parts in zip(("keys", "values"), PARTS, strict=True)
    ]
    rows += [Row(name="neither", encoding="none:segments=none"), VASWANI, SHAW_16_AND_SINUSOIDS]
    if size == "quick":
        rows = [row for row in rows if row.name in ("k = 2", "k = 16", "neither")]
    recipes = {BUILTIN_TASK: builtin_translation()} if size == "quick" else _recipes(data)
    value = "bleu" if size == "quick" else "test/bleu"
    return Plan(
        name="league-translation",
        size=size,
        title="Clipping, keys and values, with more seeds",
        rows=tuple(rows),
        columns=tuple(
            Column(name=name, source="translate", task=name, value=value, measure="SacreBLEU", scale=1.0)
            for name in recipes
        ),
        baseline="k = 16",
        translate=recipes,
        seeds=(0, 1) if size == "quick" else tuple(range(8)),
        pooled=True,
        notes=("The design, with what would count against each claim, is docs/league.md.",),
    )


def _recipes(data: str | None) -> dict[str, TranslateConfig]:
    """Return the recipes of both corpora, of which Europarl's is that of results/translation/europarl."""
    captions, europarl = (short_recipe(data, "EN-DE", scores_test=True, part=part) for part in CORPORA.values())
    europarl = replace(
        europarl,
        model=replace(europarl.model, changes={"hidden_dropout_prob": 0.1}),
        data=replace(europarl.data, vocab_size=16_000),
        optimisation=replace(europarl.optimisation, steps=4500, warmup=1000),
        intervals=Intervals(log=50, evaluate=1000, checkpoint=250, keep=1),
        save="average",
        average=5,
    )
    return dict(zip(CORPORA, (captions, europarl), strict=True))


def _check_size(size: str) -> None:
    if size not in ("quick", "gpu"):
        raise ValueError(f"size: expected quick or gpu, because no paper has this study, got {size!r}.")
