"""ABS-SCALAR and REL-SCALAR: Tables 1, 2, 4 to 6 and 8 to 12 of Chen et al. (2021a), the DIET paper's first version."""

from __future__ import annotations

from dataclasses import replace

from headway.bench.study.plan import Plan, Row, RowClaim
from headway.bench.study.plans.glue_tables import NAMES as GLUE
from headway.bench.study.plans.glue_tables import glue_plan
from headway.bench.study.plans.rows import CHOICES, DEVLIN, FASTER, KE, SHAW_ROW, published
from headway.bench.study.plans.translation_tables import (
    OURS,
    SHAW_SHARED,
    VASWANI,
    Line,
    WmtText,
    translation_plan,
)
from headway.bench.study.plans.xtreme_tables import NAMES as XTREME
from headway.bench.study.plans.xtreme_tables import xtreme_plan
from headway.bench.tasks.translate import TranslateConfig
from headway.bench.tasks.translate.recipes import diet_base
from headway.models.translation import Decoding

PAPER = "Chen et al. (2021a), “Demystifying the Better Performance of Position Encoding Variants for Transformer”"
SHORT = "Chen et al. (2021a)"


def abs_scalar(name: str, *, rank: int = 64, segments: str = "per-head") -> Row:
    """Make a row of ABS-SCALAR, Eq. (7)."""
    return Row(name=name, encoding=f"abs-scalar:rank={rank},sharing=none,segments={segments}")


def rel_scalar(name: str, *, sharing: str = "none", segments: str = "per-head") -> Row:
    """Make a row of REL-SCALAR, Eq. (8); with segments per head, Eq. (11)."""
    return Row(name=name, encoding=f"rel-scalar:sharing={sharing},segments={segments}")


ABS = abs_scalar("ABS-SCALAR")
ABS_INPUT = abs_scalar("ABS-SCALAR, segments at the input", segments="input")
ABS_128 = abs_scalar("ABS-SCALAR, rank 128", rank=128)
REL = rel_scalar("REL-SCALAR")
REL_INPUT = rel_scalar("REL-SCALAR, segments at the input", segments="input")
REL_HEADS = rel_scalar("REL-SCALAR, share heads", sharing="head")
REL_LAYERS = rel_scalar("REL-SCALAR, share layers", sharing="layer")
REL_HEADS_INPUT = rel_scalar("REL-SCALAR, share heads, segments at the input", sharing="head", segments="input")
REL_LAYERS_INPUT = rel_scalar("REL-SCALAR, share layers, segments at the input", sharing="layer", segments="input")

# Figures on GLUE: MNLI matched and mismatched, QQP, QNLI, SST-2, CoLA, STS-B, and their mean.
TABLE_4 = tuple(
    published(row, GLUE, figures)
    for row, figures in (
        (DEVLIN, (85.8, 85.9, 91.1, 89.9, 93.2, 58.7, 89.0, 84.8)),
        (SHAW_ROW, (86.3, 86.0, 91.2, 90.5, 93.2, 59.8, 89.3, 85.2)),
        (KE, (86.1, 86.2, 91.2, 90.3, 93.1, 58.5, 89.6, 85.0)),
        (REL, (86.3, 86.3, 91.0, 90.5, 92.9, 60.3, 89.3, 85.2)),
    )
)
TABLE_8 = tuple(
    published(row, GLUE, figures)
    for row, figures in (
        (REL_HEADS, (85.8, 85.7, 91.2, 90.2, 92.8, 59.8, 89.1, 84.9)),
        (REL_LAYERS, (86.5, 86.3, 91.1, 90.0, 93.0, 58.8, 89.6, 85.0)),
        (REL, (86.3, 86.3, 91.0, 90.5, 92.9, 60.3, 89.3, 85.2)),
    )
)
TABLE_10 = tuple(
    published(row, GLUE, figures)
    for row, figures in (
        (DEVLIN, (85.8, 85.9, 91.1, 89.9, 93.2, 58.7, 89.0, 84.8)),
        (ABS_INPUT, (86.1, 85.8, 91.2, 90.0, 93.0, 58.9, 89.9, 85.0)),
        (ABS, (86.1, 86.1, 91.2, 90.2, 93.0, 58.9, 89.8, 85.0)),
        (REL_INPUT, (86.0, 86.1, 91.0, 89.8, 92.8, 59.6, 89.0, 84.9)),
        (REL, (86.3, 86.3, 91.0, 90.5, 92.9, 60.3, 89.3, 85.2)),
    )
)
TABLE_1 = TABLE_10[:2]

# Figures on XTREME: XNLI; F1 and exact match of XQuAD, MLQA and TyDiQA; and the mean of these seven numbers.
TABLE_5 = tuple(
    published(row, XTREME, figures)
    for row, figures in (
        (DEVLIN, (67.0, 66.0, 49.9, 56.2, 41.0, 59.0, 47.9, 55.3)),
        (SHAW_ROW, (67.4, 69.3, 53.8, 58.1, 43.2, 64.3, 49.6, 58.0)),
        (KE, (67.4, 68.2, 51.5, 56.7, 42.7, 63.3, 48.2, 56.9)),
        (REL, (68.4, 69.2, 54.4, 58.8, 43.6, 62.9, 49.9, 58.2)),
    )
)
TABLE_9 = tuple(
    published(row, XTREME, figures)
    for row, figures in (
        (REL_HEADS_INPUT, (67.7, 66.2, 51.0, 56.0, 41.1, 60.1, 45.9, 55.4)),
        (REL_LAYERS_INPUT, (68.0, 68.6, 53.3, 58.1, 43.1, 61.3, 48.2, 57.2)),
        (REL_INPUT, (68.0, 68.1, 52.8, 57.7, 42.7, 63.3, 50.9, 57.6)),
        (REL_HEADS, (67.8, 66.0, 50.5, 55.5, 40.4, 59.2, 44.6, 54.7)),
        (REL_LAYERS, (68.1, 68.7, 53.8, 58.4, 43.2, 61.0, 48.4, 57.3)),
        (REL, (68.4, 69.2, 54.4, 58.8, 43.6, 62.9, 49.9, 58.2)),
    )
)
TABLE_11 = tuple(
    published(row, XTREME, figures)
    for row, figures in (
        (DEVLIN, (67.0, 66.0, 49.9, 56.2, 41.0, 59.0, 47.9, 55.3)),
        (ABS_INPUT, (67.9, 67.7, 52.1, 57.7, 42.7, 61.4, 47.9, 56.8)),
        (ABS, (67.9, 67.5, 52.4, 57.3, 42.3, 61.6, 46.8, 56.5)),
        (REL_INPUT, (68.0, 68.1, 52.8, 57.7, 42.7, 63.3, 50.9, 57.6)),
        (REL, (68.4, 69.2, 54.4, 58.8, 43.6, 62.9, 49.9, 58.2)),
    )
)
TABLE_2 = TABLE_11[:2]
TABLE_12 = (
    TABLE_11[0],
    TABLE_11[2],
    published(ABS_128, XTREME, (68.6, 68.1, 52.5, 57.5, 42.2, 61.3, 46.9, 56.7)),
    TABLE_11[4],
)

# Uncased BLEU on newstest2015, Sec. 4.3.
TEXTS = {
    "EN-DE": WmtText("wmt15", dev="newstest2014", test="newstest2015"),
    "DE-EN": WmtText("wmt15", dev="newstest2014", test="newstest2015"),
    "EN-CS": WmtText("wmt18", dev="newstest2014", test="newstest2015"),
}
TABLE_6: tuple[Line, ...] = (
    (VASWANI, (28.33, 31.82, 21.15)),
    (SHAW_SHARED, (29.23, 32.37, 21.47)),
    (Row(name="Raffel et al. (T5)", encoding="t5:sharing=layer,segments=none"), (29.17, 31.81, 21.31)),
    (Row(name="REL-SCALAR", encoding="rel-scalar:sharing=none,segments=none"), (29.22, 31.91, 21.71)),
)

ROW_CHOICES = (
    "Rows of Shaw et al. and Ke et al. are those of the DIET paper, which is a later version of this one and has the "
    "same figures on GLUE, but for CoLA of Ke et al.",
    *CHOICES[:3],
    "Tables 1 and 2 do not say which row of Tables 10 and 11 they show; it is the one with segments at the input, by "
    "its figures.",
    "The factor of ABS-SCALAR is not scaled (Eq. 7) and begins at normal numbers of deviation 0.02; the paper names no "
    "initialisation.",
    "“Rank 128” of REL-SCALAR in Table 12 is the number of positions, and no setting.",
)
TRANSLATION_CHOICES = (
    "The paper follows Vaswani et al. (2017) “closely” and says no more: six layers of widths 512 and 2048, 8 heads, "
    "dropout and label smoothing of 0.1, 25,000 source and target tokens a step, 4,000 warm-up steps, 100,000 "
    "steps, the average of the last five checkpoints, 1,500 steps apart, beam 4, length penalty 0.6.",
    "Training text is Europarl v7, Common Crawl and News Commentary v10 for German and v13 for Czech, without back "
    "translations; without --data it is all that the Hub has for WMT 2015 and 2018. The paper names the years alone.",
    "Uncased BLEU is SacreBLEU of lower-case text.",
    "Shaw et al. clip at 16, as in their own base model, and share over heads (Sec. 2.2.2); Raffel et al. share over "
    "layers (Sec. 2.2.2). Positions are in self-attention alone.",
    "The set to evaluate on in training is newstest2014; it chooses nothing.",
    *OURS,
)


def scalar_place_glue(size: str, data: str | None) -> Plan:
    """Plan Table 1: absolute positions at the input and per head, on GLUE."""
    claims = (_claim("absolute positions per head are above those at the input", ABS_INPUT, DEVLIN, "Sec. 2.4"),)
    return _glue("scalar-place-glue", "Absolute positions per head on GLUE, Table 1", TABLE_1, size, data, claims)


def scalar_place_xtreme(size: str, data: str | None) -> Plan:
    """Plan Table 2: absolute positions at the input and per head, on XTREME."""
    claims = (_claim("absolute positions per head are above those at the input", ABS_INPUT, DEVLIN, "Sec. 2.4"),)
    return _xtreme("scalar-place-xtreme", "Absolute positions per head on XTREME, Table 2", TABLE_2, size, data, claims)


def scalar_glue(size: str, data: str | None) -> Plan:
    """Plan Table 4: REL-SCALAR beside earlier encodings, on GLUE."""
    return _glue("scalar-glue", "GLUE, Table 4", TABLE_4, size, data, (_per_head("Sec. 4.1"),))


def scalar_xtreme(size: str, data: str | None) -> Plan:
    """Plan Table 5: REL-SCALAR beside earlier encodings, on XTREME."""
    claims = [_per_head("Sec. 4.2")]
    if size != "quick":  # size quick has no XNLI
        claims.append(
            RowClaim(
                says="segments per head are worth one point on XNLI",
                column="XNLI",
                better=(REL.name,),
                than=(SHAW_ROW.name, KE.name),
                margin=1.0,
                paper=f"{SHORT}, Sec. 4.2",
            )
        )
    return _xtreme("scalar-xtreme", "XTREME, Table 5", TABLE_5, size, data, tuple(claims))


def scalar_translation(size: str, data: str | None) -> Plan:
    """Plan Table 6: REL-SCALAR beside earlier encodings, in translation."""
    column = "verb-final" if size == "quick" else "EN-DE"
    names = [row.name for row, _ in TABLE_6]
    claims = (
        RowClaim(
            says="per-head encodings are above position at the input",
            column=column,
            better=tuple(names[1:]),
            than=(names[0],),
            paper=f"{SHORT}, Sec. 4.3",
        ),
        RowClaim(
            says="REL-SCALAR is above T5, which shares over layers",
            column=column,
            better=(names[3],),
            than=(names[2],),
            paper=f"{SHORT}, Sec. 4.3",
        ),
    )
    plan = translation_plan(
        name="scalar-translation",
        title="Translation, Table 6",
        lines=TABLE_6,
        texts=TEXTS,
        published=dict.fromkeys(TEXTS, scalar_base()),
        size=size,
        data=data,
        claims=claims,
        paper=PAPER,
        choices=TRANSLATION_CHOICES,
        digits=2,
    )
    if size != "gpu":
        return plan
    added = ("t5", "rel-scalar")
    rows = (replace(row, position_rate=FASTER) if row.choice.name in added else row for row in plan.rows)
    return replace(plan, rows=tuple(rows))


def scalar_base() -> TranslateConfig:
    """Return the recipe of Table 6.

    Paper:    Chen et al. (2021a), Sec. 4.3: six layers, uncased BLEU; else Vaswani et al. (2017), Secs. 5 and 6.1
    Departs:  as `diet_base`
    """
    config = diet_base()
    return replace(
        config,
        optimisation=replace(config.optimisation, steps=100_000),
        decoding=Decoding(beam=4, length_penalty=0.6),
        lowercase=True,
    )


def scalar_sharing_glue(size: str, data: str | None) -> Plan:
    """Plan Table 8: sharing of REL-SCALAR, on GLUE."""
    claims = _sharing(REL_HEADS, REL_LAYERS, REL)
    return _glue("scalar-sharing-glue", "Sharing of REL-SCALAR on GLUE, Table 8", TABLE_8, size, data, claims)


def scalar_sharing_xtreme(size: str, data: str | None) -> Plan:
    """Plan Table 9: sharing of REL-SCALAR, with segments at the input and per head, on XTREME."""
    claims = _sharing(REL_HEADS, REL_LAYERS, REL) + _sharing(REL_HEADS_INPUT, REL_LAYERS_INPUT, REL_INPUT)
    return _xtreme("scalar-sharing-xtreme", "Sharing of REL-SCALAR on XTREME, Table 9", TABLE_9, size, data, claims)


def scalar_segments_glue(size: str, data: str | None) -> Plan:
    """Plan Table 10: positions and segments at the input and per head, on GLUE."""
    return _glue(
        "scalar-segments-glue", "Positions and segments on GLUE, Table 10", TABLE_10, size, data, _relative_is_above()
    )


def scalar_segments_xtreme(size: str, data: str | None) -> Plan:
    """Plan Table 11: positions and segments at the input and per head, on XTREME."""
    title = "Positions and segments on XTREME, Table 11"
    return _xtreme("scalar-segments-xtreme", title, TABLE_11, size, data, _relative_is_above())


def scalar_rank(size: str, data: str | None) -> Plan:
    """Plan Table 12: the rank of ABS-SCALAR, on XTREME."""
    claims = (_claim("rank 128 is above rank 64", ABS_128, ABS, "Sec. 4.4.3"),)
    return _xtreme("scalar-rank", "Rank of ABS-SCALAR on XTREME, Table 12", TABLE_12, size, data, claims)


def _claim(says: str, better: Row, than: Row, where: str) -> RowClaim:
    return RowClaim(says=says, column="Avg", better=(better.name,), than=(than.name,), paper=f"{SHORT}, {where}")


def _per_head(where: str) -> RowClaim:
    better = (SHAW_ROW.name, KE.name, REL.name)
    says = "per-head encodings are above position at the input"
    return RowClaim(says=says, column="Avg", better=better, than=(DEVLIN.name,), paper=f"{SHORT}, {where}")


def _sharing(heads: Row, layers: Row, none: Row) -> tuple[RowClaim, ...]:
    segments = ", segments at the input" if none.choice.segments == "input" else ""
    return (
        _claim(f"sharing over layers is above sharing over heads{segments}", layers, heads, "Sec. 4.4.1"),
        _claim(f"sharing nothing is above sharing over layers{segments}", none, layers, "Sec. 4.4.1"),
    )


def _relative_is_above() -> tuple[RowClaim, ...]:
    return (
        _claim("absolute positions per head are above those at the input", ABS, DEVLIN, "Sec. 4.4.2"),
        _claim("relative positions are above absolute ones", REL, ABS, "Sec. 4.4.2"),
    )


def _glue(
    name: str, title: str, rows: tuple[Row, ...], size: str, data: str | None, claims: tuple[RowClaim, ...]
) -> Plan:
    return glue_plan(name, title, rows, size, data, claims, paper=PAPER, choices=ROW_CHOICES)


def _xtreme(
    name: str, title: str, rows: tuple[Row, ...], size: str, data: str | None, claims: tuple[RowClaim, ...]
) -> Plan:
    return xtreme_plan(name, title, rows, size, data, claims, paper=PAPER, choices=ROW_CHOICES)
