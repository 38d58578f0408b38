"""TISA with S kernels beside learned positions and in their place: Tables 3a and 3b of Wennberg and Henter."""

from __future__ import annotations

from headway.bench.study.plan import Claim, Plan, Row
from headway.bench.study.plans import recipes
from headway.bench.study.plans.glue_tables import glue_columns, glue_tasks
from headway.bench.study.plans.rows import TISA

KERNELS = (0, 1, 3, 5)
ALBERT = "albert/albert-base-v2"
# Sec. 5 in words; the cells of its tables are not at hand, so that no figure stands beside a row.
SAID = {
    "tisa-beside": "The paper (Sec. 5, on GLUE): five kernels beside learned positions are above none on 7 of 8 tasks, "
    "by 0.4 points of the median on average; errors fall by 0.4 to 6.5 %. For ALBERT without kernels it quotes Lan et "
    "al. (2020): SST-2 92.9, MNLI 84.6.",
    "tisa-alone": "The paper (Sec. 5, on GLUE): kernels alone are not as strong as beside learned positions; on STS-B "
    "the bag of words (S = 0) is only 1.3 points behind ALBERT with its learned positions.",
}


def tisa_beside(size: str, data: str | None) -> Plan:
    """Table 3a: learned positions at the input, and S kernels a head."""
    rows = tuple(
        Row(name="S = 0 (learned alone)", encoding="learned:segments=input")
        if kernels == 0
        else Row(name=f"S = {kernels}", encoding=f"learned+tisa:kernels={kernels},segments=input")
        for kernels in KERNELS
    )
    return _plan("tisa-beside", "TISA beside learned positions, Table 3a", rows, size, data)


def tisa_alone(size: str, data: str | None) -> Plan:
    """Table 3b: S kernels a head and nothing else; without kernels a bag of words."""
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
        Claim(
            says="five kernels are above none",
            column="Avg",
            better=(names[-1],),
            than=(names[0],),
            paper="Wennberg and Henter (2021), Sec. 5",
        ),
    )
    return Plan(
        name=name,
        size=size,
        title=title,
        rows=rows,
        columns=glue_columns(size),
        baseline=names[0],
        finetune=glue_tasks(size, data),
        pretrain=None if size == "paper" else recipes.pretraining(size, data),
        original=ALBERT if size == "paper" else None,
        split=size == "paper",
        analyse=size != "paper",
        claims=claims,
        paper=TISA,
        notes=(SAID[name],)
        if size == "paper"
        else (
            SAID[name],
            "Encoders are pretrained with their kernels; the paper adds kernels to a pretrained ALBERT (base, v2).",
        ),
    )
