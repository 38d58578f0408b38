"""BLEU and chrF of translations by sacrebleu, with the signatures that let others reproduce them.

Paper:    Post (2018), "A Call for Clarity in Reporting BLEU Scores"; Popović (2015), "chrF"; Koehn (2004), "Statistical
          Significance Tests for Machine Translation Evaluation", the paired bootstrap
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """BLEU and chrF of a corpus, 0 to 100, each with sacrebleu's signature of how it was computed.

    Args:
        exact_match: share of translations that equal a reference word for word.
        length_ratio: number of words in the translations over that in the references, as BLEU counts them.
    """

    sentences: int
    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    exact_match: float
    length_ratio: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A system compared with the first one.

    Args:
        metric: BLEU or chrF2, as sacrebleu writes it.
        mean, interval: mean over bootstrap samples and half the width of its 95 % confidence interval.
        p_value: probability of so large a difference from the first system by chance; None for the first itself. It is
            1 where the scores are equal, for which sacrebleu would report a value near 0.
    """

    system: str
    metric: str
    score: float
    mean: float
    interval: float
    p_value: float | None


def score(translations: Sequence[str], references: Sequence[Sequence[str]], *, lowercase: bool = False) -> Scores:
    """Score a corpus.

    Args:
        references: one or several sets, each with one reference for each translation.
        lowercase: ignore case, as "uncased" BLEU does; the signatures then have case:lc.
    """
    bleu, chrf = _metrics(lowercase)
    for number, reference in enumerate(references):
        _check_length(f"references[{number}]", len(translations), len(reference))
    lists = [list(reference) for reference in references]
    found = bleu.corpus_score(list(translations), lists)
    found_chrf = chrf.corpus_score(list(translations), lists)
    exact = sum(
        any(text.split() == other.split() for other in others)
        for text, *others in zip(translations, *lists, strict=True)
    )
    return Scores(
        sentences=len(translations),
        bleu=found.score,
        bleu_signature=str(bleu.get_signature()),
        chrf=found_chrf.score,
        chrf_signature=str(chrf.get_signature()),
        exact_match=exact / len(translations),
        length_ratio=found.sys_len / max(1, found.ref_len),
    )


def compare(
    systems: Mapping[str, Sequence[str]],
    references: Sequence[Sequence[str]],
    *,
    samples: int = 1000,
    jobs: int = 1,
    lowercase: bool = False,
) -> list[Comparison]:
    """Compare each system with the first by sacrebleu's paired bootstrap; its seed is 12345, or SACREBLEU_SEED.

    Args:
        samples: number of bootstrap samples.
        jobs: number of processes.
        lowercase: ignore case.
    """
    from sacrebleu.significance import PairedTest

    if len(systems) < 2:
        raise ValueError(f"systems: expected at least two to compare, got {len(systems)}.")
    for name, value in (("samples", samples), ("jobs", jobs)):
        if value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}.")
    for name, texts in systems.items():
        for number, reference in enumerate(references):
            _check_length(f"references[{number}] for {name}", len(texts), len(reference))
    bleu, chrf = _metrics(lowercase)
    test = PairedTest(
        [(name, list(texts)) for name, texts in systems.items()],
        {"BLEU": bleu, "chrF2": chrf},
        references=[list(reference) for reference in references],
        test_type="bs",
        n_samples=samples,
        n_jobs=jobs,
    )
    found: dict[str, Any] = dict(test()[1])
    names = found.pop("System")
    return [
        Comparison(
            system=name,
            metric=metric,
            score=float(each.score),
            mean=float(each.mean),
            interval=float(each.ci),
            p_value=None if each.p_value is None else 1.0 if each.score == results[0].score else float(each.p_value),
        )
        for metric, results in found.items()
        for name, each in zip(names, results, strict=True)
    ]


def _metrics(lowercase: bool) -> tuple[Any, Any]:
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError as error:
        raise ImportError("score: expected the package sacrebleu, got none. pip install 'headway[metrics]'.") from error
    return BLEU(lowercase=lowercase, force=True), CHRF(lowercase=lowercase)  # force: no advice on tokenised text


def _check_length(name: str, wanted: int, got: int) -> None:
    if not wanted:
        raise ValueError("translations: expected at least one, got none.")
    if wanted != got:
        raise ValueError(
            f"{name}: expected {wanted:,} lines, as many as there are translations, got {got:,}. Give the text that "
            f"was translated, a sentence a line."
        )
