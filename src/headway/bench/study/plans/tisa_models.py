"""Figures 1, 2 and 4 of Wennberg and Henter: position tables of pretrained models, and how they change in training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headway.bench.study.plan import Column, Plan, Row, RowClaim
from headway.bench.study.plans import recipes
from headway.bench.study.plans.glue_tables import builtin_column, builtin_tasks, glue_columns, glue_tasks
from headway.bench.study.plans.rows import TISA
from headway.bench.study.plans.tisa_tables import tisa_columns, tisa_tasks
from headway.bench.tasks.finetune import FinetuneConfig
from headway.bench.tasks.pretrain import Intervals

FIGURE_1 = ("google-bert/bert-base-uncased", "FacebookAI/roberta-base")  # its ALBERTs, base v1 and xxlarge v2: below
FIGURE_2 = tuple(f"albert/albert-{size}-v1,albert/albert-{size}-v2" for size in ("base", "large", "xlarge", "xxlarge"))
FIGURE_4 = (  # our choice: the paper says "additional" models and names none
    "google-bert/bert-large-uncased",
    "FacebookAI/roberta-large",
    "google/electra-base-discriminator",
    "distilbert/distilbert-base-uncased",
    "FacebookAI/xlm-roberta-base",
)
MODELS = {"gpu": (FIGURE_1[0], FIGURE_2[0]), "paper": (*FIGURE_1, *FIGURE_2, *FIGURE_4)}
STEPS = (100, 200, 400, 800)  # at size quick, versions of a model are its checkpoints after so many steps
BUILTIN = ("builtin:acceptability", "builtin:roles")
PAPER = "Wennberg and Henter (2021), Sec. 3.1, Fig. 2"
ENCODING = "learned:segments=input"
CHOICES = (  # of ours, where the text that we have is silent
    "Dev-set scores come from fine-tuning by the recipe of tisa-beside; the paper does not say whence it has its own.",
    "Fig. 4 shows models beyond Fig. 1, which the text does not name.",
    "Colours span the middle 98 % of the inner products of each table by itself.",
)


def tisa_models(size: str, data: str | None, models: tuple[str, ...] = ()) -> Plan:
    """Plan Figs. 1 and 4, inner products of position embeddings, and Fig. 2, their Toeplitz R² against dev scores.

    Args:
        models: folders or names on the Hub; later versions of a model follow it after commas. By default, models of
            the paper, or at size quick checkpoints of one small model.
    """
    models = models or MODELS.get(size, ())
    rows = tuple(row for versions in models for row in _versions(versions)) if models else _checkpoints()
    columns, finetune = _tasks(size, data)
    rows = _with_short_names(rows)
    pretraining = recipes.builtin_pretraining()
    kept = Intervals(log=50, evaluate=400, checkpoint=STEPS[0], keep=pretraining.optimisation.steps // STEPS[0])
    return Plan(
        name="tisa-models",
        size=size,
        title="Position tables of pretrained models, Figures 1, 2 and 4",
        rows=rows,
        columns=(
            _r2("Toeplitz R²", "table_r2", "share of the variance of E_P E_Pᵀ that the offset explains"),
            _r2("R² without [CLS]", "table_r2_without_first", "the same without position 0"),
            _r2("R² off diagonal", "table_r2_off_diagonal", "the same without products of vectors with themselves"),
            *columns,
        ),
        baseline=rows[0].name,
        finetune=finetune,
        pretrain=None if models else replace(pretraining, intervals=kept),
        analyse=True,
        split=size == "paper",
        claims=_claims(rows),
        paper=TISA,
        notes=(
            "The paper (Sec. 3.1): from BERT to RoBERTa and ALBERT a Toeplitz structure emerges; from version 1 of "
            "ALBERT to version 2, which trained longer, R² rises, and with it the mean score on dev sets.",
        ),
        choices=CHOICES,
    )


def _claims(rows: tuple[Row, ...]) -> tuple[RowClaim, ...]:
    """Return the claims that a model's last version has a higher R², and a higher score, than its first."""
    followed = {row.version_of for row in rows if row.version_of}
    first = tuple(row.name for row in rows if row.name in followed and not row.version_of)
    last = tuple(row.name for row in rows if row.version_of and row.name not in followed)
    if not first:
        return ()
    return tuple(
        RowClaim(says=f"{what} rises with longer training", column=column, better=last, than=first, paper=PAPER)
        for what, column in (("Toeplitz R²", "Toeplitz R²"), ("the mean dev score", "Avg"))
    )


def _tasks(size: str, data: str | None) -> tuple[tuple[Column, ...], dict[str, FinetuneConfig]]:
    if size == "paper":
        return tisa_columns(), tisa_tasks(data)
    if size == "gpu":
        return glue_columns(size), glue_tasks(size, data)
    own = tuple(builtin_column(task) for task in BUILTIN)
    mean = Column(name="Avg", source="mean", task=",".join(column.name for column in own), measure="mean")
    return (*own, mean), builtin_tasks(BUILTIN)


def _r2(name: str, value: str, measure: str) -> Column:
    return Column(name=name, source="analyse", value=value, measure=measure, scale=1.0, digits=3)


def _versions(models: str) -> list[Row]:
    """Return a row for each version of a model, each the successor of the one before."""
    names = [name.strip() for name in models.split(",") if name.strip()]
    if not names:
        raise ValueError("models: expected folders or names on the Hub, got an empty text.")
    for name in names:
        if name.startswith(("/", ".", "~")) and not Path(name).expanduser().is_dir():
            raise FileNotFoundError(f"models: expected a folder or a name on the Hub, got {name}, which is no folder.")
    return [
        Row(name=name, encoding=ENCODING, model=_expand(name), version_of=names[at - 1] if at else "")
        for at, name in enumerate(names)
    ]


def _expand(name: str) -> str:
    """Return the path of a folder with ~ written out; other names as they are."""
    return str(Path(name).expanduser()) if Path(name).expanduser().is_dir() else name


def _checkpoints() -> tuple[Row, ...]:
    return tuple(
        Row(
            name=f"{step} steps",
            encoding=ENCODING,
            step=step,
            version_of=f"{STEPS[at - 1]} steps" if at else "",
        )
        for at, step in enumerate(STEPS)
    )


def _with_short_names(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """Name rows by the last two parts of their models' paths, unless two rows would have the same name."""
    short = {
        row.name: "/".join(part for part in Path(row.name).parts[-2:] if part != "/") if row.model else row.name
        for row in rows
    }
    if len(set(short.values())) < len(short):
        short = {name: name for name in short}
    return tuple(
        replace(row, name=short[row.name], version_of=short[row.version_of] if row.version_of else "") for row in rows
    )
