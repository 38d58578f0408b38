"""Claims of Shaw, Uszkoreit and Vaswani (2018), "Self-Attention with Relative Position Representations"."""

from __future__ import annotations

from headway.bench.claims.claim import SHAW, Claim, Contrast
from headway.bench.claims.diet import BLEU

BASE = "6 layers, base, WMT 2014, 100,000 steps of about 25,000 tokens, newstest 2014"
DEV = "6 layers, base, WMT 2014 EN-DE, 100,000 steps of about 25,000 tokens, newstest 2013"
EVEN = 0.5  # BLEU up to which one is as good as the other
COLLAPSE = 5.0  # BLEU that a collapse costs at least

SINUSOIDAL, BOTH, KEYS, VALUES = "sinusoidal", "shaw", "shaw:values=false", "shaw:keys=false"

CLAIMS = (
    Claim(
        key="shaw-bleu",
        says="Relative positions beat sinusoids in translation",
        paper=SHAW,
        where="Sec. 4.2, Table 1",
        numbers="EN-DE, EN-FR: base 26.8, 38.7 relative, 26.5, 38.2 absolute; big 29.2, 41.5, 27.9, 41.2",
        scale=BASE,
        contrasts=(Contrast(better=BOTH, than=SINUSOIDAL, measure="bleu", margin=BLEU),),
    ),
    Claim(
        key="absolute-adds-nothing",
        says="Sinusoids beside relative positions bring no benefit",
        paper=SHAW,
        where="Sec. 4.2",
        numbers="no figure printed",
        scale=BASE,
        contrasts=(Contrast(better=BOTH, than="sinusoidal+shaw", measure="bleu", kind="at least", margin=EVEN),),
    ),
    Claim(
        key="clip-2-suffices",
        says="From k = 2 on, the clipping distance hardly matters",
        paper=SHAW,
        where="Sec. 4.3, Table 2",
        numbers="EN-DE: k = 2 25.8, 4 25.9, 16 25.8, 64 25.9, 256 25.8",
        scale=DEV,
        contrasts=tuple(
            Contrast(better=f"shaw:clip={k}", than=BOTH, measure="bleu", kind="alike", margin=1.0)
            for k in (2, 4, 64, 256)
        ),
    ),
    Claim(
        key="clip-0-collapses",
        says="Without relative positions (k = 0) translation collapses",
        paper=SHAW,
        where="Sec. 4.3, Table 2",
        numbers="EN-DE: k = 0 12.5, k = 1 25.5, k = 16 25.8",
        scale=DEV,
        contrasts=(Contrast(better=BOTH, than="shaw:clip=0", measure="bleu", margin=COLLAPSE),),
    ),
    Claim(
        key="values-not-needed",
        says="Relative positions in the keys alone suffice",
        paper=SHAW,
        where="Sec. 4.3, Table 3",
        numbers="EN-DE: keys and values 25.8, keys 25.8",
        scale=DEV,
        contrasts=(Contrast(better=KEYS, than=BOTH, measure="bleu", kind="at least", margin=EVEN),),
    ),
    Claim(
        key="keys-needed",
        says="Relative positions in the values alone are worse, and in neither a collapse",
        paper=SHAW,
        where="Sec. 4.3, Table 3",
        numbers="EN-DE: keys 25.8, values 25.3, neither 12.5",
        scale=DEV,
        contrasts=(
            Contrast(better=KEYS, than=VALUES, measure="bleu", margin=BLEU),
            Contrast(better=VALUES, than="none", measure="bleu", margin=COLLAPSE),
        ),
    ),
)
