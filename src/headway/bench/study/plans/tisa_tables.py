"""Tables 3a and 3b of Wennberg and Henter: TISA with S kernels beside learned positions, and in their place."""

from __future__ import annotations

from headway.bench.study.plan import Column, Plan, Row, RowClaim
from headway.bench.study.plans import recipes
from headway.bench.study.plans.glue_tables import glue_columns, glue_tasks
from headway.bench.study.plans.rows import TISA
from headway.bench.tasks.finetune import Data, FinetuneConfig, Grid, Protocol

KERNELS = (0, 1, 3, 5)
ALBERT = "albert/albert-base-v2"
TASKS = {  # GLUE without WNLI, by the names of the columns
    "SST-2": "sst2",
    "MNLI": "mnli",
    "QQP": "qqp",
    "STS-B": "stsb",
    "CoLA": "cola",
    "MRPC": "mrpc",
    "QNLI": "qnli",
    "RTE": "rte",
}
RUNS = (0, 1, 2, 3, 4)
EVALUATE_AT_END = 10**9  # steps between evaluations: more than a run has, so that only its last step is evaluated
FINDINGS = {
    "tisa-beside": "The paper (Sec. 5): five kernels beside learned positions are above none on 7 of 8 tasks, by 0.4 "
    "points of the median on average; Δ% is between 0.4 and 6.5. For ALBERT without kernels it quotes Lan et al. "
    "(2020), SST-2 92.9 and MNLI 84.6, over which kernels remove 2.8 and 1.3 % of the error: 93.1 and 84.8.",
    "tisa-alone": "The paper (Sec. 5): kernels alone are not as strong as beside learned positions; on STS-B the bag "
    "of words (S = 0) is only 1.3 points behind ALBERT with its learned positions.",
}
CHOICES = (  # of ours, where the text that we have is silent
    "The text that we have of the paper has lost the cells of its tables, so that no figure stands beside a row.",
    "The eight tasks are GLUE's nine without WNLI: the text counts eight and names SST-2, MNLI and STS-B.",
    "Each number is GLUE's score of the task on its dev set, the mean of the task's metrics, in per cent: F1 and "
    "accuracy for MRPC and QQP, both correlations for STS-B. The paper speaks of F1 scores. MNLI is scored on the "
    "matched half.",
    "The paper names jiant and no settings: the rate 1e-5, 3 epochs, batches of 32, 256 tokens and the last "
    "checkpoint are the defaults of jiant's simple interface. There is one rate, so that none is chosen by its scores.",
    "Kernels begin with a least-squares fit to the profiles of F_P by Eq. (2) as it is written; how Appendix C "
    "regresses is not in our text. ALBERT's embeddings have width 128 and reach W_Q and W_K through its projection.",
    "In Table 3b the mean of the position embeddings stays in the input, where Eq. (4b) leaves them out: it says "
    "nothing of position, and words meet the LayerNorm that they know.",
)


def tisa_beside(size: str, data: str | None) -> Plan:
    """Plan Table 3a: learned positions at the input, and S kernels a head."""
    rows = tuple(
        Row(name="Baseline (S = 0)", encoding="learned:segments=input")
        if kernels == 0
        else Row(name=f"S = {kernels}", encoding=f"learned+tisa:kernels={kernels},segments=input")
        for kernels in KERNELS
    )
    return _plan("tisa-beside", "TISA beside learned positions, Table 3a", rows, size, data)


def tisa_alone(size: str, data: str | None) -> Plan:
    """Plan Table 3b: S kernels a head and nothing else; without kernels, a bag of words."""
    rows = tuple(
        Row(name="S = 0 (bag of words)", encoding="none:segments=input")
        if kernels == 0
        else Row(name=f"S = {kernels}", encoding=f"tisa:kernels={kernels},segments=input")
        for kernels in KERNELS
    )
    return _plan("tisa-alone", "TISA in place of learned positions, Table 3b", rows, size, data)


def _plan(name: str, title: str, rows: tuple[Row, ...], size: str, data: str | None) -> Plan:
    names = [row.name for row in rows]
    claims = (
        RowClaim(
            says="five kernels are above none",
            column="Avg",
            better=(names[-1],),
            than=(names[0],),
            paper="Wennberg and Henter (2021), Sec. 5",
        ),
    )
    published = size == "paper"
    return Plan(
        name=name,
        size=size,
        title=title,
        rows=rows,
        columns=tisa_columns() if published else glue_columns(size),
        baseline=names[0],
        finetune=tisa_tasks(data) if published else glue_tasks(size, data),
        pretrain=None if published else recipes.pretraining(size, data),
        original=ALBERT if published else None,
        start="equation",
        gains=True,
        split=published,
        analyse=not published,
        claims=claims,
        paper=TISA,
        notes=(FINDINGS[name],)
        if published
        else (
            FINDINGS[name],
            "Encoders are pretrained with their kernels; the paper adds kernels to a pretrained ALBERT (base, v2).",
        ),
        choices=CHOICES,
    )


def tisa_columns() -> tuple[Column, ...]:
    """Return a column for the score of each task, in per cent, and one for their mean."""
    own = tuple(
        Column(name=name, source="finetune", task=task, measure="GLUE's score of the task")
        for name, task in TASKS.items()
    )
    return (*own, Column(name="Avg", source="mean", task=",".join(TASKS), measure="mean of the eight scores"))


def tisa_tasks(data: str | None) -> dict[str, FinetuneConfig]:
    """Return five runs of each task, at one rate, scored after their last step."""
    if data is not None:
        recipes.folder(data, "glue")
    return {
        task: FinetuneConfig(
            task=task,
            start=recipes.ROW_MODEL,
            data=Data(train=(recipes.source(data, "glue"),), on_error="skip"),
            grid=Grid(rates=(1e-5,), seeds=RUNS),
            protocol=Protocol(epochs=3, length=256, batch=32, evaluate=EVALUATE_AT_END),
        )
        for task in TASKS.values()
    }
