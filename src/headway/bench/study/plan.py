"""What a study is: encodings as rows, measures as columns, and the recipes that fill the cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from headway.bench.cost import CostConfig
from headway.bench.tasks import pretrain, translate
from headway.bench.tasks.finetune import FinetuneConfig
from headway.bench.tasks.finetune.trial import RunResult
from headway.bench.tasks.pretrain import EncoderChoice, PretrainConfig
from headway.bench.tasks.translate import TranslateConfig
from headway.encodings import EncodingChoice

SOURCES = ("pretrain", "lengths", "finetune", "translate", "analyse", "cost", "parameters", "mean", "part")
VOCABULARIES = {"English": 30_522, "multilingual": 120_000}  # Chen et al. (2021b), Table 6; see models.parameters
ANALYSED = {  # numbers of an analysis, by name: the part of its result and the number there
    "table_r2": ("table", "r2"),
    "table_r2_without_first": ("table", "r2_without_first"),
}
PLACES = {"input": "input", "queries and keys": "per-head", "scores": "per-head", "values": "per-head"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """An encoding with its choices.

    Args:
        encoding: NAME[:OPTION=VALUE,...], see `headway.encodings.EncodingChoice`. Its segments are those that pairs get
            in fine-tuning, per-head unless it names others; pretraining and translation go by their recipes.
        changes: other settings of the model, such as attention="linformer".
        position_rate: what pretraining multiplies the learning rate of the encoding's parameters by.
        published: a paper's figures by the names of columns, in the columns' units.
        recipe: which of the plan's recipes for translation trains the row, where there are several: those that are
            named TASK/RECIPE.
        model: folder or Hub name of a pretrained model that the row is, in place of pretraining one; the folder may be
            a checkpoint of `headway pretrain`.
        step: the row is the checkpoint of its pretraining after so many steps, not the last one.
        version_of: name of the row of which this one is a later version, such as one that was trained for longer.
    """

    name: str
    encoding: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    position_rate: float = 1.0
    published: Mapping[str, float] = field(default_factory=dict)
    recipe: str = ""
    model: str = ""
    step: int | None = None
    version_of: str = ""

    def __post_init__(self) -> None:
        choice = EncodingChoice.parse(self.encoding)
        object.__setattr__(self, "encoding", str(replace(choice, segments=choice.segments or "per-head")))
        if "cross" in self.changes:  # raise where names or values are wrong
            translate.TranslatorChoice(preset="tiny", encoding=str(self.position), changes=self.changes)
        else:
            EncoderChoice(preset="bert-base", encoding=self.encoding, changes=self.changes)

    @property
    def choice(self) -> EncodingChoice:
        """The encoding with all its options, and the segments of pairs."""
        return EncodingChoice.parse(self.encoding)

    @property
    def position(self) -> EncodingChoice:
        """The encoding of positions alone, without segments."""
        return self.choice.with_segments(None)

    @property
    def place(self) -> str:
        """Where position goes: nowhere, input, per-head, or both."""
        places = {PLACES[place] for kind in self.choice.kinds for place in kind.places}
        return " and ".join(sorted(places)) or "nowhere"


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One measure of every row.

    Args:
        source: the kind of job that it comes from; mean, of other columns; or part, a column of another plan.
        task: which fine-tuning task or translation; of mean, names of other columns separated by commas; of part, the
            name of one of the plan's `parts`.
        value: where in the result: of fine-tuning score, SPLIT/METRIC, highest/SPLIT/METRIC (over all evaluations of a
            run) or transfer/DATA/METRIC (the mean over languages); of translations also TEST/METRIC; of lengths a
            length; of part the name of a column; of cost MODE[/MODEL[/steps]], time over the baseline's or steps a
            second; of other jobs the name of a number.
        measure: what it is, in words.
        scale: the shown number is this many times the saved one.
        higher: whether more is better.
        chance: what guessing gives, as shown.
        order: whether the answer is in the word order alone, so that a bag of words cannot do better than chance.
        relative: show the difference in percent from the first row of the same recipe, seed by seed.
    """

    name: str
    source: str
    task: str = ""
    value: str = "score"
    measure: str = ""
    scale: float = 100.0
    digits: int = 1
    higher: bool = True
    chance: float | None = None
    order: bool = False
    relative: bool = False

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ValueError(f"source: expected one of {', '.join(SOURCES)}, got {self.source!r}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A sentence that the numbers bear out or do not: the median row of `better` is above that of `than` by `margin`.

    Args:
        than: names of rows; none compares with the column's chance, from which `better` must then differ by `margin`
            at most.
        paper: who says so.
    """

    says: str
    column: str
    better: tuple[str, ...]
    than: tuple[str, ...] = ()
    margin: float = 0.0
    paper: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A whole study.

    Args:
        name, size: say which study an output folder is of.
        paper: whose table this is.
        pretrain, finetune, translate, cost: recipes, for which each row is filled in; those that are not given are not
            done. `finetune` and `translate` go by the columns' `task`; TASK/RECIPE of `translate` trains the rows of
            that `recipe` only.
        seeds: of pretraining and of translation, one job each.
        again: rows that are pretrained with one seed more, which shows what seeds alone change; all else is done with
            the models of `seeds`.
        split: fine-tuning runs are jobs of their own, so that several devices share them.
        after: tasks whose fine-tuning begins with the best model of another task (Phang et al. 2018), not with the
            pretrained one.
        original: a pretrained encoder of transformers, by folder or Hub name, in place of pretraining: each row is it,
            with its positions supplemented ("learned+tisa"), replaced ("tisa"), kept ("learned") or taken ("none").
        start: how biases begin that are put into `original`: equation, fitted to F_P by Eq. (2) of Wennberg and Henter
            (2021) as it is written, or fit, fitted to F_P as measured on words drawn at random.
        baseline: the row that others are tested against.
        gains: add the rows Δ and Δ%: the largest gain over the baseline, and the share of its error that is gone.
        analyse: also read what the positions of each pretrained model learned.
        parts: plans whose jobs are done as well, each with all rows of this plan: tables that quote other tables.
        lengths: of text, at which the loss of each pretrained model is measured, as far as it has positions.
        notes: what a reader must know.
        choices: decisions of ours where the paper is silent or can be read in two ways, each with its reason.
    """

    name: str
    size: str
    title: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    baseline: str
    pretrain: PretrainConfig | None = None
    original: str | None = None
    start: str = "fit"
    finetune: Mapping[str, FinetuneConfig] = field(default_factory=dict)
    translate: Mapping[str, TranslateConfig] = field(default_factory=dict)
    cost: CostConfig | None = None
    seeds: tuple[int, ...] = (0,)
    again: tuple[str, ...] = ()
    split: bool = False
    after: Mapping[str, str] = field(default_factory=dict)
    analyse: bool = False
    parts: Mapping[str, Plan] = field(default_factory=dict)
    gains: bool = False
    lengths: tuple[int, ...] = ()
    claims: tuple[Claim, ...] = ()
    paper: str = ""
    notes: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _distinct("rows", [row.name for row in self.rows])
        _distinct("columns", [column.name for column in self.columns])
        rows, columns = {row.name for row in self.rows}, {column.name for column in self.columns}
        _known("baseline", [self.baseline], rows)
        _known("again", self.again, rows)
        for row in self.rows:
            _known(f"published of {row.name}", row.published, columns)
            _known(f"version_of of {row.name}", [row.version_of] if row.version_of else [], rows)
            if row.step is not None:
                kept = self._checkpoints()
                _known(f"step of {row.name}", [str(row.step)], [str(step) for step in kept])
            if row.recipe:
                _known(f"recipe of {row.name}", [row.recipe], {name.partition("/")[2] for name in self.translate})
        for claim in self.claims:
            _known("claims", [*claim.better, *claim.than], rows)
            _known("claims", [claim.column], columns)
        for column in self.columns:
            if column.source == "mean":
                _known(f"task of {column.name}", column.task.split(","), columns)
            elif column.source in ("finetune", "translate"):
                _known(f"task of {column.name}", [column.task], getattr(self, column.source))
                if column.value == "bleu" and not self.translate[column.task].data.translated:
                    raise ValueError(f"translated: expected sentences to score, for column {column.name}, got 0.")
            elif column.source == "part":
                _known(f"task of {column.name}", [column.task], self.parts)
                part = self.parts[column.task]
                _known(f"value of {column.name}", [column.value], [each.name for each in part.columns])
                _known(f"rows of part {column.task}", rows, [row.name for row in part.rows])
            elif column.source == "lengths":
                _known(f"value of {column.name}", [column.value], [str(length) for length in self.lengths])
            elif column.source in ("pretrain", "cost") and getattr(self, column.source) is None:
                raise ValueError(f"{column.source}: expected a recipe, for column {column.name}, got none.")
            self._check_value(column)
        if self.lengths and self.pretrain is None:
            raise ValueError("lengths: expected a recipe to pretrain, whose models they are measured on, got none.")
        _known("start", [self.start], ("equation", "fit"))
        if self.gains and not all(column.higher for column in self.columns):
            raise ValueError("gains: expected columns of which more is better, got another one.")
        _known("after", [*self.after, *self.after.values()], self.finetune)
        order = list(self.finetune)
        if (self.split and self.after) or any(
            order.index(other) > order.index(task) for task, other in self.after.items()
        ):
            raise ValueError("after: expected tasks that stand before, in a plan that does not split runs, got others.")
        named = all(row.model for row in self.rows)
        if self.finetune and not named and (self.pretrain is None) == (self.original is None):
            raise ValueError(
                "pretrain, original: expected one of them, because there is fine-tuning, got none or both."
            )

    def _check_value(self, column: Column) -> None:
        """Raise where no result of the column's jobs has its value: else that is seen when all of them are done."""
        what, (first, *rest) = f"value of {column.name}", column.value.split("/")
        if column.source == "pretrain":
            _known(what, [column.value], _numbers(pretrain.Result))
        elif column.source == "translate":
            if rest:
                _known(what, [first], self.translate[column.task].data.test)
            _known(what, rest or [first], _numbers(translate.Scores if rest else translate.Result))
        elif column.source == "parameters":
            _known(what, [column.value], VOCABULARIES)
        elif column.source == "analyse":
            _known(what, [column.value], ANALYSED)
            if not self.analyse:
                raise ValueError(f"analyse: expected True, for column {column.name}, got False.")
        elif column.source == "cost" and self.cost is not None:
            _known(what, [first], self.cost.modes)
            _known(what, rest[:1], self.cost.models or rest)
            _known(what, rest[1:], ("steps",))
        elif column.source == "finetune":
            if not rest:
                _known(what, [first], _numbers(RunResult))
                return
            if len(rest) != (2 if first in ("transfer", "highest") else 1):
                raise ValueError(
                    f"{what}: expected score, SPLIT/METRIC, highest/SPLIT/METRIC or transfer/DATA/METRIC, got "
                    f"{column.value!r}."
                )
            config = self.finetune[column.task]
            asked = config.task_spec
            if first == "transfer":
                transferred = {each.task.name: each.task for each in config.transferring}
                _known(what, [rest[0].partition("@")[0]], transferred)
                asked = transferred[rest[0].partition("@")[0]]
            _known(what, rest[-1:], ("score", *asked.metrics))

    def _checkpoints(self) -> range:
        """Steps of the checkpoints that pretraining keeps."""
        if self.pretrain is None:
            return range(0)
        every, last = self.pretrain.intervals.checkpoint, self.pretrain.optimisation.steps
        return range(every, last + 1, every)[-self.pretrain.intervals.keep :]

    def pretrained(self, row: Row) -> tuple[int, ...]:
        """Seeds that the row is pretrained with."""
        return (*self.seeds, max(self.seeds) + 1) if row.name in self.again else self.seeds

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)


def _numbers(result: type) -> list[str]:
    """Names of the numbers in a result."""
    return [each.name for each in fields(result) if str(each.type).partition(" ")[0] in ("int", "float")]


def _distinct(what: str, names: list[str]) -> None:
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{what}: expected at least one, and each name once, got {', '.join(names) or 'none'}.")


def _known(what: str, names: Any, known: Any) -> None:
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"{what}: expected some of {', '.join(known) or '(none)'}, got {', '.join(unknown)}.")
