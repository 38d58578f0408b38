"""The measures that claims are judged by: what is better, how large the noise is, which command measures it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headway.bench.claims.settings import Choice


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """A kind of number.

    Args:
        words: its name for people.
        higher: whether more is better.
        noise: how far two runs that differ only in their seed may lie apart; used where there are fewer than three
            pairs for an interval. We stated it before there were results; if committed seeds differ by more, that
            counts.
        digits: number of digits after the point.
        relative: whether differences are in percent of the second side.
        tuned: whether seeds are seeds of fine-tuning; of other measures they are seeds of the whole run.
        command: returns the command that measures it for a choice.
    """

    name: str
    words: str
    higher: bool
    noise: float
    digits: int
    command: Callable[[Choice], str]
    relative: bool = False
    tuned: bool = False


def _pretrain(choice: Choice) -> str:
    out = f"results/pretraining_wiki/{choice.folder}"
    return f"headway pretrain --recipe small --data DATA {choice.arguments()} --out {out}"


def _finetune(kind: str) -> Callable[[Choice], str]:
    task, corpus, more = (
        ("TASK", "wiki", "--data glue") if kind == "glue" else ("xnli", "multilingual", "--transfer xnli=xnli")
    )

    def command(choice: Choice) -> str:
        segments = f" --segments {choice.segments}" if choice.segments is not None else ""
        tail = f"-{choice.segments}-segments" if choice.segments is not None else ""
        name = choice.folder
        return (
            f"headway finetune {task} --model RUNS/{name}/model {more}{segments} "
            f"--out results/{kind}_{corpus}/{name}{tail}/{task}"
        )

    return command


def _translate(choice: Choice) -> str:
    return (
        f"headway translate train --recipe small {choice.arguments('--encoding-option')} "
        f"--out results/translation/CORPUS/{choice.folder}, decode and score beside its baseline"
    )


def _analyze(choice: Choice) -> str:
    return f"headway analyze RUNS/{choice.folder}/model --text TEXT --out results/analysis/{choice.folder}"


def _lengths(choice: Choice) -> str:
    return f"the loss of results/pretraining_wiki/{choice.folder} at lengths beyond training, in results/lengths_wiki"


def _cost(choice: Choice) -> str:
    row = ":".join([choice.encoding, *(f"{name}={value}" for name, value in choice.options.items())])
    row += f":sharing={choice.sharing}" if choice.sharing is not None else ""
    rows = ",".join(dict.fromkeys(["learned", row]))
    return f"headway cost --model bert-base --encodings {rows} --out results/cost/NAME_DATE.json"


def _count(choice: Choice) -> str:
    return "headway list --parameters --json > results/parameters/bert-base.json"


_ALL = (
    Measure(name="loss", words="evaluation loss of pretraining", higher=False, noise=0.05, digits=3, command=_pretrain),
    Measure(name="model parameters", words="parameters", higher=False, noise=0.0, digits=0, command=_pretrain),
    *(
        Measure(name=name, words=words, higher=True, noise=1.0, digits=1, command=_finetune(name), tuned=True)
        for name, words in (("glue", "GLUE score"), ("xtreme", "zero-shot XTREME score"))
    ),
    Measure(name="bleu", words="BLEU", higher=True, noise=0.5, digits=2, command=_translate),
    Measure(
        name="training time",
        words="ms of a training step",
        higher=False,
        noise=2.0,
        digits=2,
        command=_cost,
        relative=True,
    ),
    Measure(
        name="inference time", words="ms of inference", higher=False, noise=2.0, digits=2, command=_cost, relative=True
    ),
    Measure(name="parameters", words="millions of parameters", higher=False, noise=0.0, digits=2, command=_count),
    Measure(name="published parameters", words="the paper's", higher=False, noise=0.0, digits=2, command=_count),
    Measure(
        name="score rank",
        words="rank of a head's scores, first layer",
        higher=True,
        noise=2.0,
        digits=1,
        command=_analyze,
    ),
    Measure(
        name="position rank",
        words="rank of a head's position scores, first layer (above 1e-3 of the greatest)",
        higher=True,
        noise=2.0,
        digits=1,
        command=_analyze,
    ),
    Measure(name="cosine", words="mean cosine of input positions", higher=True, noise=0.05, digits=3, command=_analyze),
    *(
        Measure(name=name, words=words, higher=True, noise=0.05, digits=3, command=_analyze)
        for name, words in (
            ("table r2", "Toeplitz R² of E_P E_Pᵀ"),
            ("table r2 without [CLS]", "Toeplitz R² of E_P E_Pᵀ less position 0"),
            ("table r2, most steps", "Toeplitz R² of E_P E_Pᵀ, longest run"),
            ("table r2, fewest steps", "Toeplitz R² of E_P E_Pᵀ, shortest run"),
            ("head r2", "Toeplitz R² of a head's position scores"),
            ("head r2 without [CLS]", "Toeplitz R² of a head's position scores less position 0"),
        )
    ),
    *(
        Measure(
            name=f"loss at {times} x length",
            words=f"evaluation loss at {times} x the length of training",
            higher=False,
            noise=0.05,
            digits=3,
            command=_lengths,
        )
        for times in (1, 2, 4, 8)
    ),
)
MEASURES = {measure.name: measure for measure in _ALL}
