"""Translation: Table 4 of the DIET paper, Tables 1, 2 and 3 of Shaw et al."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headway.bench.data.translation.cleaning import Rules
from headway.bench.study.plan import Claim, Column, Plan, Row
from headway.bench.study.plans import recipes
from headway.bench.study.plans.rows import DIET, FASTER, SHAW
from headway.bench.tasks.pretrain import Intervals
from headway.bench.tasks.translate import Optimisation, ParallelData, TranslateConfig, TranslatorChoice
from headway.bench.tasks.translate.recipes import diet_base, shaw_base, small

VASWANI = Row(name="Vaswani et al. (sinusoidal)", encoding="sinusoidal:segments=none")
SHAW_16 = Row(name="Shaw et al.", encoding="shaw:clip=16,sharing=none,segments=none")
SHAW_16_AND_SINUSOIDS = Row(  # Shaw et al. (2018), Sec. 4.2, says in words that it gains nothing
    name="sinusoidal + Shaw et al.", encoding="sinusoidal+shaw:clip=16,sharing=none,segments=none"
)
DIRECTIONS = ("EN-DE", "DE-EN", "EN-CS", "CS-EN")
MORE = (  # not in the papers' tables
    Row(name="T5", encoding="t5:sharing=none,segments=none", position_rate=FASTER),
    Row(name="DIET-ABS", encoding="diet-abs:rank=32,sharing=layer,segments=none", position_rate=FASTER),
)
# Chen et al. (2021b), Table 4: SacreBLEU on newstest 2018
TABLE_4: tuple[tuple[Row, tuple[float, ...]], ...] = (
    (VASWANI, (39.00, 38.42, 18.55, 22.93)),
    (SHAW_16, (40.10, 38.90, 18.74, 23.89)),
    (Row(name="DIET-REL", encoding="diet-rel:sharing=none,segments=none"), (39.47, 38.49, 18.68, 23.93)),
)
# Shaw et al. (2018), Table 1, base: newstest 2014
SHAW_1: tuple[tuple[Row, tuple[float, ...]], ...] = ((VASWANI, (26.5, 38.2)), (SHAW_16, (26.8, 38.7)))
CLIPS = {0: 12.5, 1: 25.5, 2: 25.8, 4: 25.9, 16: 25.8, 64: 25.9, 256: 25.8}  # Table 2, newstest 2013
PARTS = {(True, True): 25.8, (True, False): 25.8, (False, True): 25.3, (False, False): 12.5}  # Table 3: keys, values
BUILTIN_TASK = "verb-final"
TRANSLATED = 3000  # sentences of dev that a model is scored on


def translation(size: str, data: str | None) -> Plan:
    """Table 4 of the DIET paper."""
    tasks = DIRECTIONS if size == "paper" else (_one_task(size),)
    rows = _rows(TABLE_4, DIRECTIONS, size)
    if size == "gpu":
        rows = (*rows[:2], replace(rows[2], position_rate=FASTER), *MORE)
    names = [row.name for row in rows]
    claims = (
        Claim(
            says="per-head encodings are above position at the input",
            column=tasks[0],
            better=tuple(names[1:]),
            than=(names[0],),
            paper="Chen et al. (2021b), Sec. 4.3",
        ),
    )
    configs = {task: _recipe(size, data, task, diet_base()) for task in tasks}
    return _plan("translation", "Translation, Table 4", rows, configs, size, claims, DIET)


def shaw_translation(size: str, data: str | None) -> Plan:
    """Table 1 of Shaw et al., base models."""
    directions = ("EN-DE", "EN-FR")
    tasks = directions if size == "paper" else (_one_task(size),)
    rows = (*_rows(SHAW_1, directions, size), SHAW_16_AND_SINUSOIDS)
    claims = (
        Claim(
            says="relative positions are above sinusoids at the input",
            column=tasks[0],
            better=(rows[1].name,),
            than=(rows[0].name,),
            paper="Shaw et al. (2018), Sec. 4.2",
        ),
        Claim(
            says="sinusoids beside them bring nothing, within half a point",
            column=tasks[0],
            better=(rows[1].name,),
            than=(rows[2].name,),
            margin=-0.5,
            paper="Shaw et al. (2018), Sec. 4.2",
        ),
    )
    configs = {task: _recipe(size, data, task, shaw_base()) for task in tasks}
    return _plan("shaw-translation", "Relative positions, Table 1", rows, configs, size, claims, SHAW)


def shaw_clip(size: str, data: str | None) -> Plan:
    """Table 2 of Shaw et al.: the distance at which offsets are clipped."""
    task = "EN-DE" if size == "paper" else _one_task(size)
    rows = tuple(
        Row(
            name=f"k = {clip}",
            encoding=f"shaw:clip={clip},sharing=none,segments=none",
            published={task: figure} if size == "paper" else {},
        )
        for clip, figure in CLIPS.items()
    )
    claims = (
        Claim(
            says="without offsets, k = 0, translation fails",
            column=task,
            better=("k = 2",),
            than=("k = 0",),
            margin=5.0,
            paper="Shaw et al. (2018), Table 2",
        ),
    )
    config = {task: _recipe(size, data, task, shaw_base())}
    return _plan("shaw-clip", "Clipping distance, Table 2", rows, config, size, claims, SHAW, baseline="k = 16")


def shaw_parts(size: str, data: str | None) -> Plan:
    """Table 3 of Shaw et al.: relative representations in keys, in values, in both, in neither."""
    task = "EN-DE" if size == "paper" else _one_task(size)
    rows = tuple(
        Row(
            name={(True, True): "keys and values", (True, False): "keys", (False, True): "values"}.get(
                (keys, values), "neither"
            ),
            encoding=_shaw(keys, values),
            published={task: figure} if size == "paper" else {},
        )
        for (keys, values), figure in PARTS.items()
    )
    claims = (
        Claim(
            says="keys alone do what keys and values do, within one point",
            column=task,
            better=("keys",),
            than=("keys and values",),
            margin=-1.0,
            paper="Shaw et al. (2018), Table 3",
        ),
        Claim(
            says="without position translation fails",
            column=task,
            better=("keys",),
            than=("neither",),
            margin=5.0,
            paper="Shaw et al. (2018), Table 3",
        ),
    )
    config = {task: _recipe(size, data, task, shaw_base())}
    return _plan("shaw-parts", "Keys and values, Table 3", rows, config, size, claims, SHAW, baseline="keys and values")


def _shaw(keys: bool, values: bool) -> str:
    if not keys and not values:
        return "none:segments=none"
    parts = f"keys={str(keys).lower()},values={str(values).lower()}"
    return f"shaw:clip=16,{parts},sharing=none,segments=none"


def builtin_translation(*, steps: int = 250) -> TranslateConfig:
    """The built-in language and its verb-final counterpart, half a minute on one core."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "hidden_dropout_prob": 0.0, "label_smoothing": 0.0}
    return TranslateConfig(
        model=TranslatorChoice(preset="tiny", changes=sizes),
        data=ParallelData(
            source="builtin:12000:0:max_depth=1:nouns=12:verbs=6:max_words=12",
            rules=Rules(max_tokens=64),
            translated=100,
        ),
        optimisation=Optimisation(steps=steps, tokens=1024, step_tokens=1000, warmup=60, learning_rate=4e-3),
        intervals=Intervals(log=25, evaluate=steps, checkpoint=steps, keep=1),
        save="last",
    )


def _recipe(size: str, data: str | None, task: str, published: TranslateConfig) -> TranslateConfig:
    if size == "quick":
        return builtin_translation()
    source, target = task.lower().split("-")
    if size == "paper" and data is None:
        found = replace(
            published.data,
            languages=f"{source}-{target}",
            source=_hub(published.data.source, source, target),
            translated=TRANSLATED,
        )
        return replace(published, data=found)
    folder = Path(recipes.folder(data, "translation")) / "translation"
    files = {split: [str(folder / f"{split}.{side}") for side in (source, target)] for split in ("train", "dev")}
    missing = [name for names in files.values() for name in names if not Path(name).is_file()]
    if missing:
        raise FileNotFoundError(f"data: expected one sentence a line in {missing[0]}, got no such file.")
    text = ParallelData(
        source=files["train"][0],
        target=files["train"][1],
        dev_source=files["dev"][0],
        dev_target=files["dev"][1],
        on_error="skip",
        vocab_size=published.data.vocab_size if size == "paper" else 8000,
        rules=published.data.rules if size == "paper" else Rules(max_tokens=128),
        translated=TRANSLATED,
    )
    return replace(published if size == "paper" else _short(), data=text)


def _short() -> TranslateConfig:
    """The small recipe for tens of thousands of pairs, minutes on one GPU."""
    config = small()
    return replace(
        config,
        optimisation=replace(config.optimisation, steps=1500, warmup=400),
        intervals=Intervals(log=50, evaluate=500, checkpoint=500, keep=1),
    )


def _hub(source: str, *languages: str) -> str:
    """hub:wmt18:de-en for other languages: the Hub names pairs with English last."""
    other = next(language for language in languages if language != "en")
    return ":".join([*source.split(":")[:2], f"{other}-en"])


def _one_task(size: str) -> str:
    return BUILTIN_TASK if size == "quick" else "EN-DE"


def _rows(lines: tuple[tuple[Row, tuple[float, ...]], ...], tasks: tuple[str, ...], size: str) -> tuple[Row, ...]:
    if size != "paper":
        return tuple(row for row, _ in lines)
    return tuple(replace(row, published=dict(zip(tasks, figures, strict=True))) for row, figures in lines)


def _plan(
    name: str,
    title: str,
    rows: tuple[Row, ...],
    configs: dict[str, TranslateConfig],
    size: str,
    claims: tuple[Claim, ...],
    paper: str,
    baseline: str | None = None,
) -> Plan:
    columns = tuple(
        Column(name=task, source="translate", task=task, value="bleu", measure="SacreBLEU of dev", scale=1.0)
        for task in configs
    )
    return Plan(
        name=name,
        size=size,
        title=title,
        rows=rows,
        columns=columns,
        baseline=baseline or rows[0].name,
        translate=configs,
        seeds=(0, 1, 2) if size != "paper" else (0,),
        claims=claims,
        paper=paper,
        notes=("Translation of the built-in language into its verb-final counterpart: BLEU is not comparable.",)
        if size == "quick"
        else (),
    )
