"""Claims of Chen et al. (2021a), "Demystifying the Better Performance of Position Encoding Variants for Transformer".

REL-SCALAR is the earlier name of DIET-REL: results of either count.
"""

from __future__ import annotations

from headway.bench.claims.claim import SCALAR, Claim, Contrast, against
from headway.bench.claims.diet import (
    BLEU,
    BOTH,
    EVEN_LOSS,
    EVEN_XTREME,
    LEARNED,
    MULTILINGUAL,
    SHAW,
    T5,
    TUPE,
    XTREME,
    loss_margin,
    on_both,
)

ABS = "abs-scalar:sharing=none"
REL, REL_LAYER, REL_HEAD = (f"rel-scalar:sharing={sharing}" for sharing in ("none", "layer", "head"))

CLAIMS = (
    Claim(
        key="abs-scalar",
        says="Even absolute position is better per head than at the input",
        paper=SCALAR,
        where="Secs. 2.4, 4.4.2, Tables 1, 2, 10, 11",
        numbers="GLUE: ABS-SCALAR 85.0, input 84.8; XTREME: 56.8 (segments at the input), 56.5 (per head), input 55.3",
        scale=BOTH,
        contrasts=on_both(ABS, LEARNED),
        stand_in=(Contrast(better=ABS, than=LEARNED, measure="loss", margin=loss_margin(85.0, 84.8)),),
    ),
    Claim(
        key="rel-scalar-shaw",
        says="Scalars per offset do as well as Shaw's vectors",
        paper=SCALAR,
        where="Secs. 4.1, 4.2, Tables 4, 5",
        numbers="GLUE: REL-SCALAR 85.2, Shaw 85.2; XTREME: 58.2, 58.0",
        scale=BOTH,
        contrasts=on_both(REL, SHAW, "at least"),
        stand_in=(Contrast(better=REL, than=SHAW, measure="loss", kind="at least", margin=EVEN_LOSS),),
    ),
    Claim(
        key="scalar-sharing",
        says="Not sharing is best for relative scalars, and sharing between heads is worse than between layers",
        paper=SCALAR,
        where="Sec. 4.4.1, Tables 8, 9",
        numbers="GLUE: none 85.2, layer-wise 85.0, head-wise 84.9; XTREME: 58.2, 57.3, 54.7 (segments per head), 57.6, "
        "57.2, 55.4 (input)",
        scale=BOTH,
        contrasts=(*on_both(REL, REL_LAYER), *on_both(REL_LAYER, REL_HEAD)),
        stand_in=tuple(
            Contrast(better=better, than=than, measure="loss", margin=loss_margin(*scores))
            for better, than, scores in ((REL, REL_LAYER, (85.2, 85.0)), (REL_LAYER, REL_HEAD, (85.0, 84.9)))
        ),
    ),
    Claim(
        key="rel-over-abs",
        says="Per head, relative position is better than absolute position",
        paper=SCALAR,
        where="Sec. 4.4.2, Tables 10, 11",
        numbers="GLUE: REL-SCALAR 85.2, ABS-SCALAR 85.0; XTREME: 58.2, 56.5 (segments per head), 57.6, 56.8 (input)",
        scale=BOTH,
        contrasts=on_both(REL, ABS),
        stand_in=(Contrast(better=REL, than=ABS, measure="loss", margin=loss_margin(85.2, 85.0)),),
    ),
    Claim(
        key="scalar-rank",
        says="ABS-SCALAR of rank 128 is better than of rank 64, and comparable to REL-SCALAR",
        paper=SCALAR,
        where="Sec. 4.4.3, Table 12",
        numbers="XTREME: ABS-SCALAR rank 64 56.5, rank 128 56.7, REL-SCALAR 58.2; XNLI: 67.9, 68.6, 68.4",
        scale=MULTILINGUAL,
        contrasts=(
            Contrast(better=f"{ABS},rank=128", than=f"{ABS},rank=64", measure="xtreme"),
            Contrast(better=f"{ABS},rank=128", than=REL, measure="xnli", kind="alike", margin=EVEN_XTREME),
        ),
        note="The paper's figures are comparable to REL-SCALAR's on XNLI alone, which decides the second part; on "
        "average they are 1.5 lower.",
    ),
    Claim(
        key="segments-xnli",
        says="With segments per head, REL-SCALAR is 1.0 better on XNLI than other encodings",
        paper=SCALAR,
        where="Sec. 4.2, Tables 5, 11",
        numbers="XNLI: REL-SCALAR 68.4 with segments per head, 68.0 at the input; Shaw 67.4, TUPE 67.4, input 67.0",
        scale=MULTILINGUAL,
        contrasts=tuple(
            Contrast(better=f"{REL},segments=per-head", than=f"{other}segments=input", measure="xnli", margin=margin)
            for other, margin in (
                (f"{SHAW}:", XTREME),
                (f"{TUPE}:", XTREME),
                (f"{LEARNED}:", XTREME),
                (f"{REL},", 0.0),
            )
        ),
        note="The last comparison is of segments alone, for which the paper has 0.4.",
    ),
    Claim(
        key="scalar-bleu",
        says="In translation, too, every encoding per head beats the input; REL-SCALAR, not shared, beats T5",
        paper=SCALAR,
        where="Sec. 4.3, Table 6",
        numbers="uncased BLEU EN-DE, DE-EN, EN-CS: input 28.33, 31.82, 21.15; Shaw 29.23, 32.37, 21.47; T5 29.17, "
        "31.81, 21.31; REL-SCALAR 29.22, 31.91, 21.71",
        scale="6 layers, WMT 2015 EN-DE and WMT 2018 EN-CS, newstest 2015",
        contrasts=(
            *against((SHAW, T5, REL), "sinusoidal", "bleu", margin=BLEU),
            Contrast(better=REL, than=T5, measure="bleu"),
        ),
    ),
)
