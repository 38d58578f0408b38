"""Rows of the papers' tables, without figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from headway.bench.study.plan import Row

DIET = "Chen et al. (2021b), “A Simple and Effective Positional Encoding for Transformers”"
SHAW = "Shaw et al. (2018), “Self-Attention with Relative Position Representations”"
TISA = "Wennberg and Henter (2021), “The Case for Translation-Invariant Self-Attention”"

# Those of the papers' encodings whose parameters are added to scores.
ADDED = ("t5", "diet-abs", "diet-rel", "abs-scalar", "rel-scalar")
FASTER = 10.0  # factor of the learning rate, in short runs, of parameters that are added to scores
FASTER_NOTE = (
    f"Numbers that are added to scores are trained at {FASTER:.0f} times the rate: Adam moves each by at most the rate "
    "a step, and in so few steps they would stay too small."
)

# Sec. 4.4 says which rows share: Shaw et al. and Ke et al. over heads, Raffel et al. over layers. Tables of per-head
# segments are never shared (Chen et al. 2021a, Sec. 3).
CHOICES = (  # of ours, where the paper is silent
    "Shaw et al. share over heads (Sec. 4.4). The paper does not say at which distance K they clip. Table 6's 112.9M "
    "and 181.7M follow, with keys and values and without positions at the input, from K = 1021 to 1050 and from no "
    "other: more than texts of 512 positions reach, so that nothing is clipped. Rows of size paper have K = 1023, "
    "others 16, as in Shaw et al. (2018).",
    "Ke et al. share over heads (Sec. 4.4), although TUPE itself shares over layers, and Sec. 2.2.2 says that all do.",
    "Tables of per-head segments are not shared, whatever positions share (Chen et al. 2021a, Sec. 3).",
    "Linformer has one projection for the keys and values of all heads of a layer, with a column for each position of "
    "the texts in pretraining. Tables 2 and 3 print d_p = 32 and 256 for it, which is read as the number of projected "
    "keys: Sec. 4.1 speaks of a “projection dimension of 32”.",
    "DIET-ABS-LIN has rank 64, the width of heads and the default of Sec. 3.1; the factors of Eq. (4) have width d. "
    "Their product has no higher rank than there are projected keys: 32 on GLUE, where 64 is no limit, 256 on XTREME.",
    "The √d of Eqs. (1), (3) and (4) is the square root of the width of a head, as in BERT.",
)
TRAINING_CHOICES = (  # of ours, in pretraining and fine-tuning
    "AdamW with BERT's constants and weight decay of 0.01; rates fall linearly to zero after warm-up. The paper names "
    "neither optimiser nor schedule.",
    "A sequence of pretraining has whole sentences of one document (DOC-SENTENCES of Liu et al. 2019). The paper's "
    "“full sentences from documents, and packed up to the maximum sequence length” may also mean that a sequence goes "
    "on into the next document. Of the tokens 15 % are predicted, as in BERT.",
)
DEVLIN = Row(name="Devlin et al. (learned)", encoding="learned:segments=input")
SHAW_ROW = Row(name="Shaw et al.", encoding="shaw:clip=1023,sharing=head,segments=input")
SHAW_CLIPPED = replace(SHAW_ROW, encoding="shaw:sharing=head,segments=input")
RAFFEL = Row(name="Raffel et al. (T5)", encoding="t5:sharing=layer,segments=input")
KE = Row(name="Ke et al. (TUPE)", encoding="tupe-rel:sharing=head,segments=input")


def diet_rel(name: str, *, segments: str = "per-head", sharing: str = "none") -> Row:
    """Make a row of DIET-REL."""
    return Row(name=name, encoding=f"diet-rel:sharing={sharing},segments={segments}")


def diet_abs(name: str, rank: int, *, segments: str = "per-head", sharing: str = "layer") -> Row:
    """Make a row of DIET-ABS."""
    return Row(name=name, encoding=f"diet-abs:rank={rank},sharing={sharing},segments={segments}")


def linformer(projected: int) -> tuple[Row, Row]:
    """Make the rows of Wang et al. (2020), whose keys are projected to so many, and of the same with DIET-ABS."""
    changes = {"attention": "linformer", "projected_length": projected}
    return (
        Row(name="Wang et al. (Linformer)", encoding="learned:segments=input", changes=changes),
        # Its rank is the width of a head, 64 (CHOICES).
        Row(name="DIET-ABS-LIN", encoding="diet-abs:sharing=none,segments=input", changes=changes),
    )


def local(window: int) -> tuple[Row, Row]:
    """Make rows of local attention (Beltagy et al. 2020), with positions at the input and with DIET-REL."""
    changes = {"attention": "local", "window": window}
    return (
        Row(name="Local attention", encoding="learned:segments=input", changes=changes),
        Row(name="Local attention, DIET-REL", encoding="diet-rel", changes=changes),
    )


def performer(features: int) -> tuple[Row, Row]:
    """Make rows of Performer (Choromanski et al. 2021), with positions at the input and with DIET-REL by FFT."""
    changes = {"attention": "performer", "num_features": features, "attention_probs_dropout_prob": 0.0}
    return (
        Row(name="Performer", encoding="learned:segments=input", changes=changes),
        Row(name="Performer, DIET-REL", encoding="diet-rel:segments=input", changes=changes),
    )


def published(row: Row, columns: tuple[str, ...], figures: tuple[float, ...]) -> Row:
    """Return the row with the published figures of its line in a table, column by column."""
    return replace(row, published=dict(zip(columns, figures, strict=True)))


def of_size(rows: tuple[Row, ...], size: str, *, shorter: int = 1) -> tuple[Row, ...]:
    """Return a paper's rows for a size. Published figures are dropped unless it is paper, because models differ.

    Args:
        shorter: factor by which texts at size gpu are shorter than the paper's; projected lengths and windows are
            divided by it.
    """
    if size == "paper":
        return rows
    rows = tuple(SHAW_CLIPPED if row.name == SHAW_ROW.name else row for row in rows)
    if size == "quick":
        return tuple(
            replace(_divided(row, rank=8, projected_length=8, window=8, num_features=8), published={}) for row in rows
        )
    rows = tuple(replace(_divided(row, rank=1, projected_length=shorter, window=shorter), published={}) for row in rows)
    return tuple(replace(row, position_rate=FASTER) if row.choice.name in ADDED else row for row in rows)


def _divided(row: Row, **divisors: int) -> Row:
    def smaller(values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: max(1, value // divisors[name]) if name in divisors else value for name, value in values.items()}

    choice = replace(row.choice, options=smaller(row.choice.options))
    return replace(row, encoding=str(choice), changes=smaller(row.changes))
