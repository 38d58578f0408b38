"""Claims of Chen et al. (2021b), "A Simple and Effective Positional Encoding for Transformers"."""

from __future__ import annotations

from headway.bench.claims.claim import DIET, Claim, Contrast, against
from headway.models.parameters import PAPER

BASE = "BERT-base, 500K steps of 4,096 sequences of 128, median of 5 runs"
MULTILINGUAL = "BERT-base, 100 languages, 125K steps of 4,096 sequences of 512, median of 5 runs"
BOTH = f"{BASE}; XTREME: {MULTILINGUAL}"
TPU = "TPU v2, over BERT with positions at the input"
GLUE, XTREME, BLEU = 0.2, 0.5, 0.2  # least differences that matter: half of what the papers call one, or less
EVEN_GLUE, EVEN_XTREME, EVEN_LOSS = 0.5, 0.5, 0.05  # differences up to which one is as good as the other
EVEN_TIME = 2.0  # percent
LENGTHS = (128, 512)  # tokens of a sequence, at which costs are compared
BY_LENGTH = "The paper does not say at which length it measured; each length is judged by itself."

LEARNED, SHAW, T5, TUPE = "learned", "shaw", "t5", "tupe-rel"
REL, REL_LAYER, REL_HEAD = (f"diet-rel:sharing={sharing}" for sharing in ("none", "layer", "head"))
ABS_64, ABS_128 = (f"diet-abs:rank={rank},sharing=layer" for rank in (64, 128))
ABS_64_APART, ABS_128_APART = (f"diet-abs:rank={rank},sharing=none" for rank in (64, 128))
PER_HEAD = (SHAW, T5, TUPE, REL, ABS_128)


def loss_margin(better: float, than: float) -> float:
    """Turn two of a paper's scores into a difference of losses: the share of the error that is gone, of 3 nats.

    By convention, an error in a task and a loss are both taken as what is left to gain (docs/league.md).
    """
    return round(3.0 * (better - than) / (100.0 - than), 3)


def on_both(better: str, than: str, kind: str = "above") -> tuple[Contrast, ...]:
    """Compare two encodings on GLUE and on XTREME, with the margins of these tasks."""
    margins = {"glue": GLUE, "xtreme": XTREME} if kind == "above" else {"glue": EVEN_GLUE, "xtreme": EVEN_XTREME}
    return tuple(
        Contrast(better=better, than=than, measure=measure, kind=kind, margin=margin)
        for measure, margin in margins.items()
    )


def linformer(measure: str, margin: float) -> Contrast:
    """Compare DIET-ABS with position at the input in models with Linformer's attention."""
    return Contrast(better="diet-abs", than=LEARNED, attention="linformer", measure=measure, margin=margin)


CLAIMS = (
    Claim(
        key="per-head-glue",
        says="Position per head beats position at the input, whichever way it is done",
        paper=DIET,
        where="Sec. 4.1, Table 2",
        numbers="GLUE: input 84.8; Shaw 85.2, T5 85.2, TUPE 85.2, DIET-REL 85.2, DIET-ABS 85.2",
        scale=BASE,
        contrasts=against(PER_HEAD, LEARNED, "glue", margin=GLUE),
        stand_in=against(PER_HEAD, LEARNED, "loss", margin=loss_margin(85.2, 84.8)),
    ),
    Claim(
        key="per-head-xtreme",
        says="Position per head beats position at the input across languages, absolute position too",
        paper=DIET,
        where="Sec. 4.2, Table 3",
        numbers="XTREME: input 55.3; Shaw 58.2, T5 58.6, TUPE 57.5, DIET-REL 58.0, DIET-ABS (128, share) 58.9",
        scale=MULTILINGUAL,
        contrasts=against(PER_HEAD, LEARNED, "xtreme", margin=XTREME),
    ),
    Claim(
        key="diet-abs-best-xtreme",
        says="DIET-ABS of rank 128, shared by layers, is the best on XTREME, better than relative encodings",
        paper=DIET,
        where="Sec. 4.2, Table 3",
        numbers="XTREME: DIET-ABS (128, share) 58.9; T5 58.6, Shaw 58.2, DIET-REL 58.0, TUPE 57.5, input 55.3",
        scale=MULTILINGUAL,
        contrasts=tuple(
            Contrast(better=ABS_128, than=other, measure="xtreme") for other in (T5, SHAW, REL, TUPE, LEARNED)
        ),
        note="The paper's lead over T5 is 0.3, less than what we call a difference that matters; any lead beyond the "
        "interval counts here.",
    ),
    Claim(
        key="diet-abs-on-par",
        says="Absolute position per head, shared by layers, is on par with relative encodings",
        paper=DIET,
        where="Sec. 4.1, Table 2",
        numbers="GLUE: DIET-ABS (128, share) 85.2; Shaw 85.2, T5 85.2, TUPE 85.2",
        scale=BASE,
        contrasts=tuple(
            Contrast(better=ABS_128, than=other, measure="glue", kind="at least", margin=EVEN_GLUE)
            for other in (SHAW, T5, TUPE)
        ),
        stand_in=tuple(
            Contrast(better=ABS_128, than=other, measure="loss", kind="at least", margin=EVEN_LOSS)
            for other in (SHAW, T5, TUPE)
        ),
    ),
    Claim(
        key="diet-cost",
        says="DIET costs nothing over position at the input",
        paper=DIET,
        where="Sec. 3.3, Table 1; REL-SCALAR in Chen et al. 2021a, Table 3",
        numbers="BERT-base, training / inference: DIET-ABS +0% / +0%, DIET-REL +0% / +0%; BERT-small: +0% / +1%, "
        "+0% / +0%",
        scale=TPU,
        contrasts=tuple(
            Contrast(
                better=each, than=LEARNED, measure=f"{mode} time", kind="at least", margin=EVEN_TIME, length=length
            )
            for mode in ("training", "inference")
            for length in LENGTHS
            for each in (REL, ABS_64)
        ),
        note=BY_LENGTH,
    ),
    Claim(
        key="shaw-cost",
        says="Shaw's relative keys and values cost most",
        paper=DIET,
        where="Sec. 3.3, Table 1",
        numbers="BERT-base, training / inference: Shaw +13% / +33%, TUPE +1% / +19%, DIET +0% / +0%; BERT-small: Shaw "
        "+24% / +65%, TUPE +4% / +27%",
        scale=TPU,
        contrasts=tuple(
            Contrast(better=each, than=SHAW, measure=f"{mode} time", margin=EVEN_TIME, length=length)
            for mode in ("training", "inference")
            for length in LENGTHS
            for each in (REL, ABS_64, "tupe-abs")
        ),
        note=f"{BY_LENGTH} TUPE is timed with absolute positions alone; the paper's row has relative ones, too.",
    ),
    Claim(
        key="rel-sharing-hurts",
        says="Sharing hurts relative scalars",
        paper=DIET,
        where="Sec. 4.4, App. D, Tables 5, 6, 9",
        numbers="GLUE: no sharing 85.2, layer-wise 85.0, head-wise 84.9; XTREME: 58.0, 57.3, 54.7",
        scale=BOTH,
        contrasts=tuple(each for other in (REL_LAYER, REL_HEAD) for each in on_both(REL, other)),
        stand_in=tuple(
            Contrast(better=REL, than=other, measure="loss", margin=loss_margin(85.2, score))
            for other, score in ((REL_LAYER, 85.0), (REL_HEAD, 84.9))
        ),
    ),
    Claim(
        key="head-sharing-worse",
        says="For relative scalars, sharing between heads is worse than between layers",
        paper=DIET,
        where="Sec. 4.4, Tables 5, 9",
        numbers="GLUE: layer-wise 85.0, head-wise 84.9; XTREME: 57.3, 54.7 (segments per head), 57.2, 55.4 (input)",
        scale=BOTH,
        contrasts=on_both(REL_LAYER, REL_HEAD),
        stand_in=(Contrast(better=REL_LAYER, than=REL_HEAD, measure="loss", margin=loss_margin(85.0, 84.9)),),
    ),
    Claim(
        key="sharing-helps-abs",
        says="Sharing between layers helps DIET-ABS",
        paper=DIET,
        where="Sec. 4.4, App. D, Tables 5, 6, 9",
        numbers="XTREME: rank 64 58.0 shared, 56.5 not; rank 128 58.9, 56.8. GLUE: rank 64 85.2, 85.0; rank 128 85.2, "
        "85.3",
        scale=BOTH,
        contrasts=(*on_both(ABS_64, ABS_64_APART), *on_both(ABS_128, ABS_128_APART)),
        stand_in=tuple(
            Contrast(better=shared, than=apart, measure="loss", margin=loss_margin(85.2, 85.0))
            for shared, apart in ((ABS_64, ABS_64_APART), (ABS_128, ABS_128_APART))
        ),
    ),
    Claim(
        key="rank-128",
        says="Rank 128 is at least as good as rank 64",
        paper=DIET,
        where="Sec. 4.4, Tables 5, 8, 9",
        numbers="XTREME: shared 58.9, 58.0; not shared 56.8, 56.5. GLUE: shared 85.2, 85.2; not shared 85.3, 85.0",
        scale=BOTH,
        contrasts=(*on_both(ABS_128, ABS_64, "at least"), *on_both(ABS_128_APART, ABS_64_APART, "at least")),
        stand_in=tuple(
            Contrast(better=higher, than=lower, measure="loss", kind="at least", margin=EVEN_LOSS)
            for higher, lower in ((ABS_128, ABS_64), (ABS_128_APART, ABS_64_APART))
        ),
    ),
    Claim(
        key="rank-saturates",
        says="Beyond rank 128, shared DIET-ABS gains nothing more",
        paper=DIET,
        where="Sec. 4.4, Table 5",
        numbers="XTREME, shared: rank 64 58.0, 128 58.9, 256 58.3, 512 57.5",
        scale=MULTILINGUAL,
        contrasts=tuple(
            Contrast(
                better=ABS_128,
                than=f"diet-abs:rank={rank},sharing=layer",
                measure="xtreme",
                kind="at least",
                margin=EVEN_XTREME,
            )
            for rank in (256, 512)
        ),
    ),
    Claim(
        key="segments-per-head",
        says="Segments per head are at least as good as segments at the input",
        paper=DIET,
        where="Secs. 4.1, 4.4, App. D, Tables 5, 8",
        numbers="GLUE: DIET-REL 85.2 per head, 84.9 input; DIET-ABS (64) 85.0, 85.0; XTREME: DIET-REL 58.0, 57.6; "
        "DIET-ABS (64, share) 58.0, 57.9",
        scale=BOTH,
        contrasts=tuple(
            contrast
            for each in (REL, ABS_64)
            for contrast in on_both(f"{each},segments=per-head", f"{each},segments=input", "at least")
        ),
        note="On the tasks of pairs, which alone have segments; in our results STS-B is the only one above chance.",
    ),
    Claim(
        key="linformer",
        says="DIET-ABS improves a Linformer over position at the input",
        paper=DIET,
        where="Sec. 4.1, Table 2",
        numbers="GLUE: 82.7 with DIET-ABS, 82.0 with position at the input (both projected to 32)",
        scale=BASE,
        contrasts=(linformer("glue", GLUE),),
        stand_in=(linformer("loss", loss_margin(82.7, 82.0)),),
    ),
    Claim(
        key="linformer-xtreme",
        says="DIET-ABS improves a Linformer over position at the input across languages, in long texts",
        paper=DIET,
        where="Sec. 4.2, Table 3",
        numbers="XTREME: 50.8 with DIET-ABS, 48.2 with position at the input (both projected to 256)",
        scale=MULTILINGUAL,
        contrasts=(linformer("xtreme", XTREME),),
    ),
    Claim(
        key="per-head-bleu",
        says="Position per head beats position at the input in translation",
        paper=DIET,
        where="Sec. 4.3, Table 4",
        numbers="BLEU EN-DE, DE-EN, EN-CS, CS-EN: input 39.00, 38.42, 18.55, 22.93; Shaw 40.10, 38.90, 18.74, 23.89; "
        "DIET-REL 39.47, 38.49, 18.68, 23.93",
        scale="6 layers, WMT 2018, 250,000 steps, newstest 2018",
        contrasts=against((SHAW, REL), "sinusoidal", "bleu", margin=BLEU),
    ),
    Claim(
        key="score-rank",
        says="Position at the input bounds the rank of scores by the head's width; DIET-ABS goes beyond it",
        paper=DIET,
        where="Sec. 2.3, Theorem 1, Figs. 2, 8",
        numbers="rank(A_a) ≤ d_h; rank(A_r) = d_p + d_h > d_h for some weights; figures: much lower rank at the input",
        scale="BERT-base, d_h = 64, one batch",
        contrasts=(
            Contrast(better=LEARNED, than=64.0, measure="score rank", kind="at least", margin=0.5, higher=False),
            Contrast(better="diet-abs:rank=64", than=LEARNED, measure="score rank", margin=1.0),
            Contrast(better="diet-abs:rank=64", than=LEARNED, measure="position rank", margin=2.0),
        ),
        note="Position scores (Fig. 8) count singular values above 1e-3 of the greatest.",
    ),
    Claim(
        key="shifting-pattern",
        says="DIET-ABS learns for the most part what depends on the offset alone",
        paper=DIET,
        where="Sec. 4.5, App. C, Figs. 4, 7",
        numbers="figures: clear shifting patterns",
        scale="BERT-base",
        contrasts=tuple(
            Contrast(better=shared, than=0.5, measure="head r2 without [CLS]") for shared in (ABS_64, ABS_128)
        ),
        note="Made testable by us: a Toeplitz matrix explains over half of the variance of the average head's scores.",
    ),
    Claim(
        key="cls-column",
        says="DIET-ABS learns a pattern of its own for [CLS], at index 0",
        paper=DIET,
        where="Sec. 4.5, Fig. 4",
        numbers="a figure: attention to index 0",
        scale="BERT-base",
        contrasts=tuple(
            Contrast(
                better=shared,
                than=shared,
                measure="head r2 without [CLS]",
                than_measure="head r2",
                margin=0.01,
            )
            for shared in (ABS_64, ABS_128)
        ),
        note="Made testable by us: heads' scores are nearer to Toeplitz without the row and column of index 0.",
    ),
    Claim(
        key="input-redundant",
        says="Beside DIET-ABS, positions at the input encode almost nothing: all are similar",
        paper=DIET,
        where="App. C, Fig. 5",
        numbers="a figure: all input position pairs are similar",
        scale="BERT-base",
        contrasts=(
            Contrast(
                better="learned+diet-abs:rank=64",
                than=LEARNED,
                measure="cosine",
                margin=0.1,
            ),
        ),
    ),
    Claim(
        key="parameters",
        says="DIET adds few parameters, and DIET-ABS few only when shared",
        paper=DIET,
        where="Sec. 4.4, Table 6",
        numbers="English: input 110.1M, Shaw 112.9M, DIET-REL 109.9M, share 109.7M, DIET-ABS (128) 128.6M, share "
        "111.3M; multilingual: 178.9M, 181.7M, 178.7M, 178.5M, 197.4M, 180.1M",
        scale="BERT-base, 512 positions",
        contrasts=tuple(
            Contrast(better=encoding, than=figure, measure=f"{language} parameters", kind="alike", margin=0.1)
            for encoding, *figures in PAPER.values()
            for language, figure in zip(("English", "multilingual"), figures, strict=True)
        ),
        note="Our counts against the paper's, row by row. The paper does not say where it clips Shaw's offsets; only "
        "distances near 1023 give its numbers.",
    ),
)
