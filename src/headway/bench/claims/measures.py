"""The measures that claims are judged by: what is better, how large the noise is, which command measures it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headway.bench.claims.settings import Setting
from headway.bench.judge import STATED_NOISE


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """A kind of number.

    Args:
        words: its name in tables.
        higher: whether more is better.
        noise: how far two runs that differ only in their seed may lie apart; see `headway.bench.judge`.
        digits: number of digits after the point.
        relative: whether differences are in percent of the second side.
        tuned: whether seeds are seeds of fine-tuning; of other measures they are seeds of the whole run.
        commands: returns the commands that measure it for a setting; words in capitals are for the reader to fill in.
    """

    name: str
    words: str
    higher: bool
    noise: float
    digits: int
    commands: Callable[[Setting], tuple[str, ...]]
    relative: bool = False
    tuned: bool = False


def _pretrain(setting: Setting) -> tuple[str, ...]:
    out = f"results/pretraining_wiki/{setting.folder}"
    return (f"headway pretrain --recipe small --data DATA {setting.arguments()} --out {out}",)


def _finetune(kind: str) -> Callable[[Setting], tuple[str, ...]]:
    xnli = ("xnli", "--data mnli=GLUE --dev xnli=XNLI --transfer xnli=XNLI")
    squad = ("squad", "--data SQUAD --transfer xquad=XQUAD,mlqa=MLQA,tydiqa=TYDIQA")
    folder, tasks = {
        "glue": ("glue_wiki", (("TASK", "--data GLUE"),)),
        "xtreme": ("xtreme_multilingual", (xnli, squad)),
        "xnli": ("xtreme_multilingual", (xnli,)),
    }[kind]

    def commands(setting: Setting) -> tuple[str, ...]:
        segments = setting.encoding.segments
        name = setting.folder + ("" if segments is None else f"-{segments}-segments")
        start = "" if segments is None else f" --set start.segments={segments}"
        return tuple(
            f"headway finetune {task} --model RUNS/{setting.folder}/model {data}{start} "
            f"--out results/{folder}/{name}/{task}"
            for task, data in tasks
        )

    return commands


def _translate(setting: Setting) -> tuple[str, ...]:
    folder = f"results/translation/CORPUS/{setting.folder}"
    return (
        f"headway translate train --recipe small --data DATA {setting.arguments()} --out {folder}",
        f"headway translate decode TEST.en --model {folder}/model --out {folder}/test.hyp",
        f"headway translate score BASELINE/test.hyp {folder}/test.hyp --reference TEST.de --out {folder}/scores.json",
    )


def _analyze(setting: Setting) -> tuple[str, ...]:
    folder = setting.folder
    return (f"headway analyze RUNS/{folder}/model --text TEXT --out results/analysis/{folder}",)


def _lengths(setting: Setting) -> tuple[str, ...]:
    return ("headway study encodings --size gpu --data DATA --out results/studies/encodings",)


def _cost(setting: Setting) -> tuple[str, ...]:
    rows = dict.fromkeys(["learned", str(setting.encoding.with_segments(None))])
    return (f"headway cost --model bert-base --encodings {','.join(rows)} --out results/cost/NAME_DATE.json",)


def _count(setting: Setting) -> tuple[str, ...]:
    return ("headway list --parameters --json > results/parameters/bert-base.json",)


_ALL = (
    Measure(
        name="loss",
        words="evaluation loss of pretraining",
        higher=False,
        noise=STATED_NOISE["loss"],
        digits=3,
        commands=_pretrain,
    ),
    Measure(name="model parameters", words="parameters", higher=False, noise=0.0, digits=0, commands=_pretrain),
    *(
        Measure(
            name=name,
            words=words,
            higher=True,
            noise=STATED_NOISE["score"],
            digits=1,
            commands=_finetune(name),
            tuned=True,
        )
        for name, words in (
            ("glue", "GLUE score"),
            ("xtreme", "zero-shot XTREME score"),
            ("xnli", "zero-shot XNLI accuracy"),
        )
    ),
    Measure(name="bleu", words="BLEU", higher=True, noise=STATED_NOISE["bleu"], digits=2, commands=_translate),
    *(
        Measure(
            name=name, words=words, higher=False, noise=STATED_NOISE["time"], digits=2, commands=_cost, relative=True
        )
        for name, words in (("training time", "ms of a training step"), ("inference time", "ms of inference"))
    ),
    *(
        Measure(
            name=f"{language} parameters",
            words=f"millions of parameters, {language} vocabulary",
            higher=False,
            noise=0.0,
            digits=2,
            commands=_count,
        )
        for language in ("English", "multilingual")
    ),
    Measure(
        name="score rank",
        words="rank of a head's scores, first layer",
        higher=True,
        noise=2.0,
        digits=1,
        commands=_analyze,
    ),
    Measure(
        name="position rank",
        words="rank of a head's position scores, first layer (above 1e-3 of the greatest)",
        higher=True,
        noise=2.0,
        digits=1,
        commands=_analyze,
    ),
    Measure(
        name="cosine", words="mean cosine of input positions", higher=True, noise=0.05, digits=3, commands=_analyze
    ),
    *(
        Measure(name=name, words=words, higher=True, noise=0.05, digits=3, commands=_analyze)
        for name, words in (
            ("table r2 off the diagonal", "Toeplitz R² of E_P E_Pᵀ less position 0 and the main diagonal"),
            ("table r2, most steps", "Toeplitz R² of E_P E_Pᵀ less position 0 and the main diagonal, longest run"),
            ("table r2, fewest steps", "Toeplitz R² of E_P E_Pᵀ less position 0 and the main diagonal, shortest run"),
            ("head r2", "Toeplitz R² of a head's position scores"),
            ("head r2 without [CLS]", "Toeplitz R² of a head's position scores less position 0"),
        )
    ),
    *(
        Measure(
            name=f"loss at {times} x length",
            words=f"evaluation loss at {times} x the length of training",
            higher=False,
            noise=STATED_NOISE["loss"],
            digits=3,
            commands=_lengths,
        )
        for times in (1, 2, 4, 8)
    ),
)
MEASURES = {measure.name: measure for measure in _ALL}
