"""XTREME: Tables 3 and 5 of the DIET paper, and the long-range rows of Tables 2 and 3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from headway.bench.data.transfer.spec import Question
from headway.bench.data.transfer.tasks import find_task, found_languages, load
from headway.bench.study.plan import Column, Plan, Row, RowClaim
from headway.bench.study.plans import recipes
from headway.bench.study.plans.glue_tables import builtin_column, builtin_tasks
from headway.bench.study.plans.rows import (
    CHOICES,
    DEVLIN,
    DIET,
    FASTER_NOTE,
    KE,
    RAFFEL,
    SHAW_ROW,
    TRAINING_CHOICES,
    diet_abs,
    diet_rel,
    linformer,
    local,
    of_size,
    performer,
    published,
)
from headway.bench.tasks.finetune import Data, FinetuneConfig

TYDIQA = find_task("tydiqa")
NAMES = ("XNLI", "XQuAD F1", "XQuAD EM", "MLQA F1", "MLQA EM", "TyDiQA F1", "TyDiQA EM", "Avg")
QUESTIONS = {"xquad": "XQuAD", "mlqa": "MLQA", "tydiqa": "TyDiQA"}
BUILTIN = ("builtin:role-questions", "builtin:roles")

TABLE_3: tuple[Row, ...] = tuple(
    published(row, NAMES, figures)
    for row, figures in (
        (DEVLIN, (67.0, 66.0, 49.9, 56.2, 41.0, 59.0, 47.9, 55.3)),
        (SHAW_ROW, (67.9, 69.5, 53.9, 58.2, 43.1, 64.8, 49.9, 58.2)),
        (RAFFEL, (68.5, 69.9, 53.5, 59.5, 44.3, 63.8, 50.6, 58.6)),
        (KE, (67.8, 68.6, 52.0, 58.6, 43.2, 63.9, 48.7, 57.5)),
        (
            diet_rel("DIET-REL, segments at the input", segments="input"),
            (68.0, 68.1, 52.8, 57.7, 42.7, 63.3, 50.9, 57.6),
        ),
        (diet_rel("DIET-REL"), (68.4, 69.4, 54.4, 58.6, 43.5, 62.4, 49.3, 58.0)),
        (diet_abs("DIET-ABS, rank 128, share", 128), (68.5, 70.0, 53.6, 59.8, 44.5, 64.6, 51.5, 58.9)),
        (linformer(256)[0], (63.6, 59.1, 43.7, 48.9, 34.0, 50.5, 37.9, 48.2)),
        (linformer(256)[1], (64.4, 61.6, 46.0, 52.2, 37.0, 53.6, 40.9, 50.8)),
    )
)
TABLE_5: tuple[Row, ...] = tuple(
    published(row, NAMES, figures)
    for row, figures in (
        (
            diet_rel("DIET-REL, segments at the input", segments="input"),
            (68.0, 68.1, 52.8, 57.7, 42.7, 63.3, 50.9, 57.6),
        ),
        (
            diet_rel("DIET-REL, share heads, segments at the input", segments="input", sharing="head"),
            (67.7, 66.2, 51.0, 56.0, 41.1, 60.1, 45.9, 55.4),
        ),
        (
            diet_rel("DIET-REL, share layers, segments at the input", segments="input", sharing="layer"),
            (68.0, 68.6, 53.3, 58.1, 43.1, 61.3, 48.2, 57.2),
        ),
        (diet_rel("DIET-REL"), (68.4, 69.4, 54.4, 58.6, 43.5, 62.4, 49.3, 58.0)),
        (diet_rel("DIET-REL, share heads", sharing="head"), (67.8, 66.0, 50.5, 55.5, 40.4, 59.2, 44.6, 54.7)),
        (diet_rel("DIET-REL, share layers", sharing="layer"), (68.1, 68.7, 53.8, 58.4, 43.2, 61.0, 48.4, 57.3)),
        (
            diet_abs("DIET-ABS, rank 64, segments at the input", 64, segments="input", sharing="none"),
            (68.0, 67.4, 50.5, 57.8, 42.3, 61.3, 46.8, 56.3),
        ),
        (diet_abs("DIET-ABS, rank 64", 64, sharing="none"), (67.9, 67.5, 52.4, 57.3, 42.3, 61.6, 46.8, 56.5)),
        (diet_abs("DIET-ABS, rank 128", 128, sharing="none"), (68.1, 68.2, 52.0, 57.9, 42.6, 61.5, 47.6, 56.8)),
        (diet_abs("DIET-ABS, rank 512", 512, sharing="none"), (68.5, 68.0, 52.0, 57.7, 42.4, 61.6, 48.4, 56.9)),
        (
            diet_abs("DIET-ABS, rank 64, share, segments at the input", 64, segments="input"),
            (68.0, 69.3, 53.1, 59.3, 43.9, 63.2, 48.6, 57.9),
        ),
        (diet_abs("DIET-ABS, rank 64, share", 64), (68.4, 69.3, 53.2, 59.4, 44.1, 63.3, 48.6, 58.0)),
        (diet_abs("DIET-ABS, rank 128, share", 128), (68.5, 70.0, 53.6, 59.8, 44.5, 64.6, 51.5, 58.9)),
        (diet_abs("DIET-ABS, rank 256, share", 256), (68.4, 69.9, 53.8, 59.6, 44.2, 62.8, 49.1, 58.3)),
        (diet_abs("DIET-ABS, rank 512, share", 512), (67.8, 69.0, 53.2, 58.4, 43.0, 62.5, 48.8, 57.5)),
    )
)


def xtreme(size: str, data: str | None) -> Plan:
    """Plan Table 3: encodings at the input against encodings per head, in many languages."""
    names = [row.name for row in TABLE_3]
    claims = (
        RowClaim(
            says="per-head encodings are above position at the input",
            column="Avg",
            better=(*names[1:4], *names[5:7]),
            than=(names[0],),
            paper="Chen et al. (2021b), Sec. 4.2",
        ),
        RowClaim(
            says="Linformer gains from DIET-ABS",
            column="Avg",
            better=(names[8],),
            than=(names[7],),
            paper="Chen et al. (2021b), Sec. 4.2",
        ),
    )
    return xtreme_plan("xtreme", "XTREME, Table 3", TABLE_3, size, data, claims)


def xtreme_ablation(size: str, data: str | None) -> Plan:
    """Plan Table 5: sharing, segments and rank."""
    claims = (
        RowClaim(
            says="sharing between heads is worse than between layers",
            column="Avg",
            better=("DIET-REL, share layers", "DIET-REL, share layers, segments at the input"),
            than=("DIET-REL, share heads", "DIET-REL, share heads, segments at the input"),
            paper="Chen et al. (2021b), Sec. 4.4",
        ),
        RowClaim(
            says="sharing between layers helps DIET-ABS",
            column="Avg",
            better=("DIET-ABS, rank 64, share", "DIET-ABS, rank 128, share"),
            than=("DIET-ABS, rank 64", "DIET-ABS, rank 128"),
            paper="Chen et al. (2021b), Sec. 4.4",
        ),
    )
    return xtreme_plan("xtreme-ablation", "Sharing, segments and rank on XTREME, Table 5", TABLE_5, size, data, claims)


def long_range(size: str, data: str | None) -> Plan:
    """Plan the Linformer rows of Table 3 and other attention at linear cost, beside BERT's full attention.

    Local attention sees as many keys as Linformer has, and Performer has as many features.
    """
    rows = (TABLE_3[0], TABLE_3[7], TABLE_3[8], *local(128), *performer(256))
    claims = (
        RowClaim(
            says="Linformer gains from DIET-ABS",
            column="Avg",
            better=(rows[2].name,),
            than=(rows[1].name,),
            paper="Chen et al. (2021b), Sec. 4.2",
        ),
        RowClaim(
            says="Performer gains from a Toeplitz bias",
            column="Avg",
            better=(rows[6].name,),
            than=(rows[5].name,),
            paper="Luo et al. (2021)",
        ),
        RowClaim(
            says="local attention gains from DIET-REL", column="Avg", better=(rows[4].name,), than=(rows[3].name,)
        ),
    )
    return xtreme_plan("long-range", "Long range: positions per head at linear cost", rows, size, data, claims)


def xtreme_plan(
    name: str,
    title: str,
    rows: tuple[Row, ...],
    size: str,
    data: str | None,
    claims: tuple[RowClaim, ...] = (),
    *,
    paper: str = DIET,
    choices: tuple[str, ...] = CHOICES,
) -> Plan:
    """Plan rows on XTREME: multilingual pretraining, then zero-shot transfer from English.

    Args:
        choices: those that concern the rows; those that concern XTREME are added.
    """
    own = [builtin_column(task) for task in BUILTIN]
    mean = Column(name="Avg", source="mean", task=",".join(column.name for column in own), measure="mean")
    return Plan(
        name=name,
        size=size,
        title=title,
        rows=of_size(rows, size, shorter=2),
        columns=(*own, mean) if size == "quick" else _columns(_questions(size, data), size),
        baseline=rows[0].name,
        finetune=_tasks(size, data),
        pretrain=recipes.multilingual_pretraining(size, data),
        split=size == "paper",
        analyse=size != "paper",
        claims=claims,
        paper=f"{paper}; its figures stand beside ours where the task is the same",
        notes=NOTES[size],
        choices=(*choices, *XTREME_CHOICES),
    )


XTREME_CHOICES = (  # of ours, where the papers are silent
    "XNLI is fine-tuned on MultiNLI (393k), XQuAD and MLQA on SQuAD v1.1 (88k), as Sec. 4.2 and the header of Table 3 "
    "say. TyDiQA-GoldP is fine-tuned on its English training questions, the header's 3.7k; Sec. 4.2 reads as if it "
    "were SQuAD, too.",
    "Scores are means over languages, English among them: 15 of XNLI, 11 of XQuAD, 7 of MLQA, 9 of TyDiQA. “Avg” is "
    "the mean of the seven numbers of each run, and of these means the median over runs. The published averages are, "
    "to rounding, means of the medians beside them.",
    "The learning rate is the one with the highest median score on English dev (XNLI's, SQuAD's, TyDiQA's), and each "
    "run counts by the checkpoint with the highest score there; checkpoints are 3,500 steps apart, and one after the "
    "last step. The paper names neither. No text in another language is used to choose.",
    "Languages are drawn with exponent 0.5, which is that of Lample and Conneau (2019), to whose corpus the paper's is "
    "“similar”; it does not say its own. SentencePiece is a unigram model.",
    "Five runs are five seeds of fine-tuning from one pretrained model.",
    "Windows of a question's text share 128 tokens, and answers have at most 30, as in BERT's code.",
    *TRAINING_CHOICES,
)
NOTES: Mapping[str, tuple[str, ...]] = {
    "quick": ("The built-in language is one language: pairs and questions, without transfer. Ranks are divided by 8.",),
    "gpu": (
        "BERT-small on the given corpora, in texts half as long as the paper's, at most 20,000 examples a task: "
        "compare rows, not papers. Scores are means over those languages of a data set that the encoder was pretrained "
        "in. MLQA is its test, or its dev where the folder has no test. English questions of TyDiQA are trained on, "
        "too; where its dev has no answers, its training questions in other languages stand in.",
        FASTER_NOTE,
    ),
    "paper": (),
}


def _tasks(size: str, data: str | None) -> dict[str, FinetuneConfig]:
    if size == "quick":
        return builtin_tasks(BUILTIN)
    questions = _questions(size, data)
    sets = ("xnli", "squad", *questions)
    recipes.folder(data, "corpus", "glue", *(f"xtreme/{name}" for name in sets))
    where = {name: recipes.source(data, f"xtreme/{name}") for name in sets}
    known = recipes.languages(data) if size == "gpu" and data is not None else ()
    xnli = Data(
        train=(f"mnli={recipes.source(data, 'glue')}",),
        dev=(f"xnli={where['xnli']}",),
        transfer=(f"xnli={where['xnli']}",),
        languages=known,
        on_error="skip",
    )
    with_tydiqa = size == "gpu" and "tydiqa" in questions
    learns_tydiqa = with_tydiqa and "en" in found_languages(TYDIQA, where["tydiqa"], "train")
    more = (f"tydiqa={where['tydiqa']}",) if learns_tydiqa else ()
    squad = Data(
        train=(where["squad"], *more),
        transfer=tuple(f"{_with_split(name, where[name], size, known)}={where[name]}" for name in questions),
        languages=known,
        on_error="skip",
    )
    found = {"xnli": xnli, "squad": squad}
    if size == "paper":  # Table 3's header: TyDiQA is fine-tuned on its own 3.7k questions
        found["squad"] = replace(squad, transfer=squad.transfer[:-1])
        found["tydiqa"] = Data(train=(where["tydiqa"],), transfer=(f"tydiqa={where['tydiqa']}",), on_error="skip")
    return {task: recipes.finetuning(task, data, size) for task, data in found.items()}


def _questions(size: str, data: str | None) -> tuple[str, ...]:
    """Return the names of the data sets of questions; at size gpu, TyDiQA only if the folder has it."""
    optional = size == "gpu" and data is not None and not (Path(data) / "xtreme" / "tydiqa").is_dir()
    return tuple(name for name in QUESTIONS if name != "tydiqa" or not optional)


def _with_split(name: str, where: str, size: str, languages: tuple[str, ...]) -> str:
    """Name a data set with the split to evaluate on, which at size paper is that of the papers.

    At size gpu it is MLQA's dev if a folder has no test. If TyDiQA's dev has no answers, as in XTREME's files, it is
    TyDiQA's training questions in the given languages, without English, which is trained on.
    """
    if size != "gpu":
        return name
    if name == "mlqa" and not (Path(where) / "test").is_dir():
        return f"{name}@dev"
    if name == "tydiqa" and not _has_answers(where):
        there = found_languages(TYDIQA, where, "train")
        others = [each for each in there if each in languages and each != "en"]
        if not others:
            raise ValueError(
                f"{where}: expected TyDiQA's dev with answers, or its training questions in another of "
                f"{', '.join(languages)} than English, got neither. Leave the folder out."
            )
        return f"{name}@train:{','.join(others)}"
    return name


def _has_answers(where: str) -> bool:
    """Return whether TyDiQA's dev has answers, in the first of its languages that is there."""
    there = found_languages(TYDIQA, where, "dev")
    return bool(there) and any(
        isinstance(each, Question) and each.answers
        for each in load(TYDIQA, where, "dev", language=there[0], on_error="skip").examples
    )


def _columns(questions: tuple[str, ...], size: str) -> tuple[Column, ...]:
    own = (
        Column(
            name="XNLI", source="finetune", task="xnli", value="transfer/xnli/accuracy", measure="accuracy, zero-shot"
        ),
        *(
            Column(
                name=f"{QUESTIONS[name]} {'F1' if metric == 'f1' else 'EM'}",
                source="finetune",
                task="tydiqa" if name == "tydiqa" and size == "paper" else "squad",
                value=f"transfer/{name}/{metric}",
                measure="zero-shot, mean over languages",
            )
            for name in questions
            for metric in ("f1", "exact_match")
        ),
    )
    names = ",".join(column.name for column in own)
    return (*own, Column(name="Avg", source="mean", task=names, measure=f"mean of the {len(own)} numbers"))
