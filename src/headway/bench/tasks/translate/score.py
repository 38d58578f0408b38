"""How good translations are: BLEU and chrF of sacrebleu with their signatures, and how many are exact.

Paper:    Post (2018), "A Call for Clarity in Reporting BLEU Scores"; Popović (2015), "chrF"; Koehn (2004), "Statistical
          Significance Tests for Machine Translation Evaluation", the paired bootstrap
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """BLEU and chrF of a corpus, 0 to 100, with the signatures that say how they were worked out.

    Args:
        exact_match: share of translations that are a reference, word for word.
        length_ratio: of the translations' words to the references', as BLEU counts them.
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
    """A system beside the first one.

    Args:
        metric: BLEU or chrF, as sacrebleu writes it.
        mean, interval: over bootstrap samples; the true score lies within mean ± interval with 95 %.
        p_value: that a difference from the first system this large is chance; None for the first itself. 1 where there
            is no difference: sacrebleu counts samples with a larger one, and would say that there are none.
    """

    system: str
    metric: str
    score: float
    mean: float
    interval: float
    p_value: float | None


def score(translations: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
    """Scores of a corpus.

    Args:
        references: one or several sets, each with one reference for each translation.
    """
    bleu, chrf = _metrics()
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
    systems: Mapping[str, Sequence[str]], references: Sequence[Sequence[str]], *, samples: int = 1000, jobs: int = 1
) -> list[Comparison]:
    """Each system beside the first, with sacrebleu's paired bootstrap; its seed is 12345, or SACREBLEU_SEED.

    Args:
        jobs: processes, for several systems.
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
    bleu, chrf = _metrics()
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


def _metrics() -> tuple[Any, Any]:
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError as error:
        raise ImportError("score: expected the package sacrebleu, got none. pip install 'headway[metrics]'.") from error
    return BLEU(force=True), CHRF()  # force: no advice about text that looks tokenised


def _check_length(name: str, wanted: int, got: int) -> None:
    if not wanted:
        raise ValueError("translations: expected at least one, got none.")
    if wanted != got:
        raise ValueError(f"{name}: expected {wanted:,} lines, as many as there are translations, got {got:,}.")
