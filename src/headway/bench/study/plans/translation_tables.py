"""Translation: Table 4 of the DIET paper, and the plan that all tables of translation share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from headway.bench.data.translation.cleaning import Rules
from headway.bench.data.translation.wmt import wmt_text
from headway.bench.study.plan import Column, Plan, Row, RowClaim
from headway.bench.study.plans import recipes
from headway.bench.study.plans.rows import DIET, FASTER
from headway.bench.tasks.pretrain import Intervals
from headway.bench.tasks.translate import Optimisation, ParallelData, TranslateConfig, TranslatorChoice
from headway.bench.tasks.translate.recipes import diet_base, small

Line = tuple[Row, tuple[float, ...]]  # of a paper's table: a row, and its figure in each direction
BUILTIN_TASK = "verb-final"
TRANSLATED = 3000  # sentences of dev that sizes quick and gpu translate


@dataclass(frozen=True, slots=True)
class WmtText:
    """The text of one direction of a table: a year's training corpora, a set to choose by, and the set to score."""

    year: str
    dev: str
    test: str


# Chen et al. (2021b): Table 4, Sec. 4.3 and App. A.

DIRECTIONS = ("EN-DE", "DE-EN", "EN-CS", "CS-EN")
DIET_TEXT = dict.fromkeys(DIRECTIONS, WmtText("wmt18", dev="newstest2017", test="newstest2018"))
VASWANI = Row(name="Vaswani et al. (sinusoidal)", encoding="sinusoidal:segments=none")
SHAW_SHARED = Row(name="Shaw et al.", encoding="shaw:clip=16,sharing=head,segments=none")
DIET_REL = Row(name="DIET-REL", encoding="diet-rel:sharing=none,segments=none")
TABLE_4: tuple[Line, ...] = (
    (VASWANI, (39.00, 38.42, 18.55, 22.93)),
    (SHAW_SHARED, (40.10, 38.90, 18.74, 23.89)),
    (DIET_REL, (39.47, 38.49, 18.68, 23.93)),
)
TO_SOURCE_TOO: tuple[Line, ...] = tuple(  # the other reading of "all the attention layers", see DIET_CHOICES
    (replace(row, name=f"{row.name}, to the source too", changes={"cross": "same"}), figures)
    for row, figures in TABLE_4[1:]
)
MORE = (  # not in the papers' tables
    Row(name="T5", encoding="t5:sharing=none,segments=none", position_rate=FASTER),
    Row(name="DIET-ABS", encoding="diet-abs:rank=32,sharing=layer,segments=none", position_rate=FASTER),
)
OURS = (
    "Tokens are 32,768 byte pairs, shared by both languages. The papers' tensor2tensor has word pieces.",
    "Pairs with more than 256 tokens on a side, or with more than four times as many on one side as on the other, are "
    "left out of training; the paper does not say what it leaves out. Test sets are whole.",
    "A translation has at most 50 tokens more than its source (Vaswani et al. 2017, Sec. 6.1).",
    "One seed: the paper does not say how many runs its figures are of.",
)
DIET_CHOICES = (
    "Widths of 512 and 2048, 8 heads, dropout and label smoothing of 0.1, 25,000 source and target tokens a step, "
    "4,000 warm-up steps and the average of the last five checkpoints, ten minutes or 1,500 steps apart, are those of "
    "Vaswani et al. (2017), Table 3 and Secs. 5 and 6.1, whom the paper follows “closely” (Sec. 4.3).",
    "“All the attention layers both in the encoder and decoder” (App. A) may or may not mean the decoder's attention "
    "to the source. The rows of the paper's names have positions in self-attention, as tensor2tensor does for Shaw et "
    "al.; those with “to the source too” have them there as well. Both stand beside the same published figures.",
    "Shaw et al. clip at 16, as in their own base model, and share over heads, as Sec. 4.4 says that they do; the "
    "paper names no distance for translation.",
    "The set to evaluate on in training is newstest2017; the paper names none, and chooses no checkpoint by it here.",
    "Without --data the training text is all that the Hub has for WMT 2018, which is more than the paper's Europarl "
    "v7, Common Crawl and News Commentary v13.",
    *OURS,
)


def translation(size: str, data: str | None) -> Plan:
    """Plan Table 4 of the DIET paper."""
    lines = TABLE_4 if size == "quick" else (*TABLE_4, *TO_SOURCE_TOO)
    task = first_task(size)
    names = [row.name for row, _ in TABLE_4]
    claims = (
        RowClaim(
            says="per-head encodings are above position at the input",
            column=task,
            better=tuple(names[1:]),
            than=(names[0],),
            paper="Chen et al. (2021b), Sec. 4.3",
        ),
    )
    plan = translation_plan(
        name="translation",
        title="Translation, Table 4",
        lines=lines,
        texts=DIET_TEXT,
        published=dict.fromkeys(DIRECTIONS, diet_base()),
        size=size,
        data=data,
        claims=claims,
        paper=DIET,
        choices=DIET_CHOICES,
        digits=2,
    )
    if size != "gpu":
        return plan
    rows = tuple(replace(row, position_rate=FASTER) if row.choice.name == "diet-rel" else row for row in plan.rows)
    return replace(plan, rows=(*rows, *MORE))


def translation_plan(
    *,
    name: str,
    title: str,
    lines: tuple[Line, ...],
    texts: Mapping[str, WmtText],
    published: Mapping[str, TranslateConfig],
    size: str,
    data: str | None,
    claims: tuple[RowClaim, ...],
    paper: str,
    choices: tuple[str, ...],
    more: tuple[Row, ...] = (),
    baseline: str | None = None,
    digits: int = 1,
) -> Plan:
    """Plan a table of translation.

    Args:
        lines: the paper's rows with their figures in the directions of `texts`.
        texts: the text of each direction.
        published: the paper's recipes by DIRECTION or DIRECTION/RECIPE.
        data: folder with translation/. Size paper reads the files that `wmt_text` names, or the Hub without a folder;
            size gpu reads train, dev and test of the first direction, such as train.en and train.de.
        more: rows that the paper's table does not have.
        digits: number of decimals that the paper prints, and size paper with it.
    """
    if size == "paper":
        configs = {key: _paper_recipe(config, key.partition("/")[0], texts, data) for key, config in published.items()}
        rows = (*(replace(row, published=dict(zip(texts, figures, strict=True))) for row, figures in lines), *more)
        columns = tuple(
            replace(_column(task, f"{text.test}/bleu", f"SacreBLEU on {text.test}"), digits=digits)
            for task, text in texts.items()
        )
    else:
        task = first_task(size)
        rows = (*(row for row, _ in lines if not row.recipe), *more)
        on_dev = size == "quick" or all(text.test == text.dev for text in texts.values())
        config = builtin_translation() if size == "quick" else short_recipe(data, task, scores_test=not on_dev)
        configs = {task: config}
        columns = (_column(task, *(("bleu", "SacreBLEU of dev") if on_dev else ("test/bleu", "SacreBLEU of test"))),)
    builtin = "Translation of the built-in language into its verb-final counterpart: BLEU is not comparable."
    return Plan(
        name=name,
        size=size,
        title=title,
        rows=rows,
        columns=columns,
        baseline=baseline or rows[0].name,
        translate=configs,
        seeds=(0,) if size == "paper" else (0, 1, 2),
        claims=claims,
        paper=paper,
        notes=(builtin,) if size == "quick" else (),
        choices=choices if size == "paper" else (),
    )


def first_task(size: str) -> str:
    """Return the first translation of a table, on which claims are judged."""
    return BUILTIN_TASK if size == "quick" else "EN-DE"


def _column(task: str, value: str, measure: str) -> Column:
    return Column(name=task, source="translate", task=task, value=value, measure=measure, scale=1.0)


def _paper_recipe(
    published: TranslateConfig, direction: str, texts: Mapping[str, WmtText], data: str | None
) -> TranslateConfig:
    """Return the paper's recipe on the text of a direction; dev is scored as well as the test set."""
    text = texts[direction]
    folder = None if data is None else Path(recipes.folder(data, "translation")) / "translation"
    scored = dict.fromkeys((text.dev, text.test))
    found = wmt_text(text.year, direction, folder, dev=text.dev, test=tuple(scored))
    return replace(published, data=replace(published.data, **found))


def short_recipe(data: str | None, direction: str, *, scores_test: bool, part: str = "translation") -> TranslateConfig:
    """Return the small recipe, minutes on one GPU, on files of one's own with tens of thousands of pairs.

    Args:
        part: folder of the files in the folder of data.
    """
    folder = Path(recipes.folder(data, part)) / part
    source, target = direction.lower().split("-")
    splits = ("train", "dev", "test") if scores_test else ("train", "dev")
    files = {split: [str(folder / f"{split}.{side}") for side in (source, target)] for split in splits}
    missing = [name for names in files.values() for name in names if not Path(name).is_file()]
    if missing:
        raise FileNotFoundError(f"data: expected one sentence a line in {', '.join(missing)}; there is no such file.")
    sets = sorted({path.name.partition(".")[0] for path in folder.glob(f"newstest*.{source}")})
    tests = {name: [str(folder / f"{name}.{side}") for side in (source, target)] for name in sets}
    text = ParallelData(
        source=files["train"][0],
        target=files["train"][1],
        dev_source=files["dev"][0],
        dev_target=files["dev"][1],
        languages=f"{source}-{target}",
        on_error="skip",
        vocab_size=8000,
        rules=Rules(max_tokens=128),
        translated=TRANSLATED,
        test={name: ",".join(pair) for name, pair in ({"test": files["test"], **tests} if scores_test else {}).items()},
    )
    config = small()
    return replace(
        config,
        data=text,
        optimisation=replace(config.optimisation, steps=1500, warmup=400),
        intervals=Intervals(log=50, evaluate=500, checkpoint=500, keep=1),
    )


def builtin_translation(*, steps: int = 250) -> TranslateConfig:
    """Return a recipe for the built-in language and its verb-final counterpart, half a minute on one core."""
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
