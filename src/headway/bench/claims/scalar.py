"""Claims of Chen et al. (2021a), "Demystifying the Better Performance of Position Encoding Variants"."""

from __future__ import annotations

from headway.bench.claims.claim import SCALAR, Claim, Contrast
from headway.bench.claims.diet import BASE, EVEN_GLUE, EVEN_LOSS, GLUE, LEARNED, LOSS, SHAW

ABS, REL = "abs-scalar", "rel-scalar"

CLAIMS = (
    Claim(
        key="abs-scalar",
        says="Even absolute position is better per head than at the input",
        paper=SCALAR,
        where="Sec. 4.4.2, Table 10",
        numbers="GLUE: ABS-SCALAR 85.0, input 84.8",
        scale=BASE,
        contrasts=(Contrast(better=ABS, than=LEARNED, measure="glue", margin=GLUE),),
        stand_in=(Contrast(better=ABS, than=LEARNED, measure="loss", margin=LOSS),),
    ),
    Claim(
        key="rel-scalar-shaw",
        says="Scalars per offset do as well as Shaw's vectors",
        paper=SCALAR,
        where="Sec. 4.1, Table 4",
        numbers="GLUE: REL-SCALAR 85.2, Shaw 85.2",
        scale=BASE,
        contrasts=(Contrast(better=REL, than=SHAW, measure="glue", kind="at least", margin=EVEN_GLUE),),
        stand_in=(Contrast(better=REL, than=SHAW, measure="loss", kind="at least", margin=EVEN_LOSS),),
    ),
)
