"""What a study is: encodings as rows, measures as columns, and the recipes that fill the cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from headway.bench.cost import CostConfig
from headway.bench.tasks import pretrain, translate
from headway.bench.tasks.finetune import FinetuneConfig
from headway.bench.tasks.finetune.trial import RunResult
from headway.bench.tasks.pretrain import EncoderChoice, Optimisation, PretrainConfig
from headway.bench.tasks.translate import TranslateConfig
from headway.encodings import EncodingChoice

SOURCES = (
    "pretrain",
    "equal-time",
    "minimal-pairs",
    "lengths",
    "further",
    "finetune",
    "translate",
    "analyse",
    "cost",
    "parameters",
    "mean",
    "part",
)
VOCABULARIES = {"English": 30_522, "multilingual": 120_000}  # Chen et al. (2021b), Table 6; see models.parameters
ANALYSED = {  # where the result of an analysis has the number of a name: its part, and the key there
    "table_r2": ("table", "r2"),
    "table_r2_without_first": ("table", "r2_without_first"),
    "table_r2_off_diagonal": ("table", "r2_off_diagonal"),
}
# Where a kind of encoding adds positions, as tables name it.
PLACES = {"input": "input", "queries and keys": "per-head", "scores": "per-head", "values": "per-head"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """An encoding with its choices.

    Args:
        encoding: NAME[:OPTION=VALUE,...], see `headway.encodings.EncodingChoice`. Its segments are those of pairs in
            fine-tuning, per-head by default; segments in pretraining and translation are those of the recipes.
        changes: other settings of the model, such as attention="linformer".
        position_rate: factor by which pretraining multiplies the learning rate of the encoding's parameters.
        published: a paper's figures by the names of columns, in the columns' units.
        recipe: name of the recipe for translation that trains the row, where the plan has several, named TASK/RECIPE.
        model: folder or Hub name of a pretrained model that the row uses instead of pretraining one; the folder may be
            a checkpoint of `headway pretrain`.
        step: step of the checkpoint that the row uses instead of the last one of its pretraining.
        version_of: name of the row of which this one is a later version, such as one that was trained for longer.
        pretrained_as: name of the row whose pretrained models this row uses. Its encoding has other options and the
            same parameters.
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
    pretrained_as: str = ""

    def __post_init__(self) -> None:
        choice = EncodingChoice.parse(self.encoding)
        object.__setattr__(self, "encoding", str(replace(choice, segments=choice.segments or "per-head")))
        if "cross" in self.changes:  # raise where names or values are wrong
            translate.TranslatorChoice(preset="tiny", encoding=str(self.position), changes=self.changes)
        else:
            EncoderChoice(preset="bert-base", encoding=self.encoding, changes=self.changes)

    @property
    def choice(self) -> EncodingChoice:
        """Return the encoding with all its options, and the segments of pairs."""
        return EncodingChoice.parse(self.encoding)

    @property
    def position(self) -> EncodingChoice:
        """Return the encoding of positions alone, without segments."""
        return self.choice.with_segments(None)

    @property
    def place(self) -> str:
        """Name where positions enter the model: nowhere, input, per-head, or both."""
        places = {PLACES[place] for kind in self.choice.kinds for place in kind.places}
        return " and ".join(sorted(places)) or "nowhere"


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One measure of every row.

    Args:
        source: kind of job whose result has the number; or "mean" of other columns; or "part", a column of another
            plan.
        task: task of fine-tuning or translation; for "mean", names of other columns separated by commas; for "part",
            the name of one of the plan's `parts`.
        value: place of the number in the job's result. Fine-tuning has score, SPLIT/METRIC, highest/SPLIT/METRIC (the
            highest over all evaluations of a run) and transfer/DATA/METRIC (the mean over languages); translation has
            names of numbers and TEST/METRIC; lengths has lengths; further has names of numbers, without a task those
            before the training; cost has MODE[/MODEL] (time over the baseline's) and
            MODE/MODEL/steps (steps a second) and MODE/MODEL/LENGTH (time at one of several lengths); pretraining also
            has below/LOSS (tokens until the held-out loss is below it); minimal-pairs has all and the phenomena; "part"
            has the other plan's columns; other jobs have names of numbers.
        measure: description of the number.
        scale: factor from the saved number to the shown one.
        higher: whether a higher number is better.
        chance: number that guessing gives, in the units shown.
        order: whether the answer depends on word order alone, so that a bag of words cannot do better than chance.
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
class RowClaim:
    """A claim that the median over the rows `better` is above that over the rows `than` by at least `margin`.

    Args:
        says: the claim in words.
        than: names of rows. Without any, `better` is compared with the column's chance, from which it must then differ
            by at most `margin`.
        paper: source of the claim.
    """

    says: str
    column: str
    better: tuple[str, ...]
    than: tuple[str, ...] = ()
    margin: float = 0.0
    paper: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RateGrid:
    """A first stage of pretraining that chooses the learning rates of each row by its held-out loss.

    Args:
        rates: learning rates.
        position_rates: factors of the learning rate for the parameters of encodings. Rows without such parameters are
            trained with the learning rates alone.
        steps: number of steps of each of these trainings, whose learning rate falls to zero within them.
        seed: seed of all of them.
        model: a smaller encoder that is trained in place of the plan's.
        share: factor from the learning rate that is chosen to that of the plan's encoder.
    """

    rates: tuple[float, ...]
    position_rates: tuple[float, ...]
    steps: int
    seed: int = 0
    model: EncoderChoice | None = None
    share: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share: expected a factor above 0 up to 1, got {self.share}.")
        for name, values in (("rates", self.rates), ("position_rates", self.position_rates)):
            if not values or list(values) != sorted(set(values)) or min(values) <= 0:
                raise ValueError(f"{name}: expected rising numbers above 0, got {values}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Longer:
    """A short further training of each pretrained model on longer texts, with as many tokens a step.

    Args:
        times: number of times as long as in pretraining.
        share: share of the pretraining's steps.
        rate: share of its peak learning rate; the rate falls to zero again.
    """

    times: int
    share: float
    rate: float

    def __post_init__(self) -> None:
        if self.times < 2 or not 0 < self.share <= 1 or not 0 < self.rate <= 1:
            raise ValueError(f"longer: expected times of at least 2 and shares above 0 up to 1, got {self}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A whole study.

    Args:
        name, size: identify the study to which an output folder belongs.
        paper: the paper whose table this is.
        pretrain, finetune, translate, cost: recipes that are run with the encoding of each row; kinds of jobs without
            a recipe are left out. Keys of `finetune` and `translate` are the columns' `task`; a key TASK/RECIPE of
            `translate` applies only to rows of that `recipe`.
        rates: grid of learning rates, of which each row is pretrained with its own best pair.
        seeds: seeds of pretraining and of translation, one job each.
        again: rows that are pretrained with one more seed, to show what seeds alone change. These models are not
            fine-tuned.
        split: make each fine-tuning run a job of its own, so that several devices can share them.
        after: tasks whose fine-tuning begins with the best model of another task (Phang et al. 2018), not with the
            pretrained one.
        original: a pretrained encoder of transformers, by folder or Hub name, in place of pretraining: each row is it,
            with its positions supplemented ("learned+tisa"), replaced ("tisa"), kept ("learned") or removed ("none").
            With `converted` it is first trained to predict masked words by the recipe `pretrain`, once for each seed.
        start: initialisation of the biases that are put into `original`: "equation" fits them to F_P by Eq. (2) of
            Wennberg and Henter (2021) as it is written, "fit" to F_P as measured on random words.
        baseline: the row that others are tested against.
        gains: add the rows Δ and Δ%: the largest gain over the baseline, and the share of its error that is gone.
        analyse: also analyse what the positions of each pretrained model learned.
        parts: plans whose jobs are done as well, each with all rows of this plan, for tables that quote other tables.
        lengths: text lengths at which the loss of each pretrained model is measured, as far as it has positions.
        longer: a further training on longer texts, after which the loss at these lengths is measured again, for
            columns with task="longer".
        converted: each row but the baseline is the baseline's pretrained model, whose positions are supplemented
            ("learned+tisa") or replaced ("tisa").
        further: trainings that go on from each row's model, on the text of its pretraining, by the columns' `task`.
        minimal_pairs: source of the minimal pairs that each pretrained model is scored on, see
            `headway.bench.data.transfer.minimal_pairs`; none unless given.
        pooled: compare rows with the baseline by intervals that hold together, from the deviation of seeds within rows,
            in place of the exact test, which needs many seeds for many rows.
        plateau: held-out loss above which a pretraining has not left the plateau; such rows do not count in the
            deviation of `pooled`.
        notes: what a reader of the table must know.
        choices: our decisions where the paper is silent or can be read in two ways, each with its reason.
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
    rates: RateGrid | None = None
    seeds: tuple[int, ...] = (0,)
    again: tuple[str, ...] = ()
    split: bool = False
    after: Mapping[str, str] = field(default_factory=dict)
    analyse: bool = False
    parts: Mapping[str, Plan] = field(default_factory=dict)
    gains: bool = False
    lengths: tuple[int, ...] = ()
    longer: Longer | None = None
    converted: bool = False
    further: Mapping[str, Optimisation] = field(default_factory=dict)
    minimal_pairs: str = ""
    pooled: bool = False
    plateau: float | None = None
    claims: tuple[RowClaim, ...] = ()
    paper: str = ""
    notes: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _check_names("rows", [row.name for row in self.rows])
        _check_names("columns", [column.name for column in self.columns])
        rows, columns = {row.name for row in self.rows}, {column.name for column in self.columns}
        _check_known("baseline", [self.baseline], rows)
        _check_known("again", self.again, rows)
        for row in self.rows:
            _check_known(f"published of {row.name}", row.published, columns)
            _check_known(f"version_of of {row.name}", [row.version_of] if row.version_of else [], rows)
            if row.pretrained_as:
                _check_known(f"pretrained_as of {row.name}", [row.pretrained_as], rows - {row.name})
                if self.pretrain is None or self.finetune or self.minimal_pairs or self.analyse:
                    raise ValueError(
                        f"pretrained_as: row {row.name} uses another row's models. Only the losses by length can be "
                        f"measured on such a row; take it out of this plan, which pretrains nothing or measures more."
                    )
            if row.step is not None:
                kept = self._checkpoints()
                _check_known(f"step of {row.name}", [str(row.step)], [str(step) for step in kept])
            if row.recipe:
                _check_known(f"recipe of {row.name}", [row.recipe], {name.partition("/")[2] for name in self.translate})
        for claim in self.claims:
            _check_known("claims", [*claim.better, *claim.than], rows)
            _check_known("claims", [claim.column], columns)
        for column in self.columns:
            if column.source == "mean":
                _check_known(f"task of {column.name}", column.task.split(","), columns)
            elif column.source in ("finetune", "translate"):
                _check_known(f"task of {column.name}", [column.task], getattr(self, column.source))
                if column.value == "bleu" and not self.translate[column.task].data.translated:
                    raise ValueError(
                        f"translated: column {column.name} shows BLEU, and the recipe translates no sentences. Set "
                        f"data.translated of the recipe {column.task}."
                    )
            elif column.source == "part":
                _check_known(f"task of {column.name}", [column.task], self.parts)
                part = self.parts[column.task]
                _check_known(f"value of {column.name}", [column.value], [each.name for each in part.columns])
                _check_known(f"rows of part {column.task}", rows, [row.name for row in part.rows])
            elif column.source == "lengths":
                _check_known(f"value of {column.name}", [column.value], [str(length) for length in self.lengths])
                if column.task:
                    _check_known(f"task of {column.name}", [column.task], ["longer"] if self.longer else [])
            elif column.source == "equal-time" and self.rates is not None and self.rates.model is not None:
                raise ValueError(
                    f"rates: column {column.name} compares two trainings of one model, and those of the grid are of "
                    f"another. Leave the column or the grid's model out."
                )
            elif column.source in ("pretrain", "cost") and getattr(self, column.source) is None:
                raise ValueError(
                    f"{column.source}: column {column.name} needs a recipe, and the plan has none. Give it "
                    f"{column.source}=..., or leave the column out."
                )
            self._check_value(column)
        if (self.rates or self.minimal_pairs or self.plateau) and self.pretrain is None:
            raise ValueError(
                "rates, minimal_pairs, plateau: these need a pretraining recipe, and the plan has none (pretrain=...)."
            )
        if self.rates and any(row.position_rate != 1.0 or row.model for row in self.rows):
            raise ValueError(
                "rates: expected rows that are pretrained and name no position_rate, which the grid chooses. "
                "Leave position_rate and model out of the rows."
            )
        if (self.converted or self.further) and (self.pretrain is None or self.finetune or self.lengths):
            raise ValueError(
                "converted, further: expected a plan that pretrains its baseline (pretrain=...) and measures only the "
                "loss after further training. Leave finetune and lengths out."
            )
        if self.longer and not self.lengths:
            raise ValueError(
                "longer: only losses by length are measured after it, and the plan has no lengths. Set them."
            )
        if self.lengths and self.pretrain is None:
            raise ValueError(
                "lengths: the loss at these lengths is measured on pretrained models, and the plan pretrains none. "
                "Give it a recipe (pretrain=...), or leave lengths out."
            )
        _check_known("start", [self.start], ("equation", "fit"))
        if self.gains and not all(column.higher for column in self.columns):
            names = ", ".join(column.name for column in self.columns if not column.higher)
            raise ValueError(f"gains: expected columns in which more is better, got {names}. Leave gains out.")
        _check_known("after", [*self.after, *self.after.values()], self.finetune)
        order = list(self.finetune)
        if (self.split and self.after) or any(
            order.index(other) > order.index(task) for task, other in self.after.items()
        ):
            raise ValueError(
                f"after: expected each task to come after the one it begins with, in a plan with split=False, got "
                f"{dict(self.after)}, tasks in the order {', '.join(order)}, and split={self.split}."
            )
        named = all(row.model for row in self.rows)
        if self.converted and self.original is not None and self.rates is not None:
            raise ValueError("rates: a given model is not pretrained, so that no rates are chosen. Leave rates out.")
        if self.finetune and not named and (self.pretrain is None) == (self.original is None):
            raise ValueError(
                f"pretrain, original: fine-tuning needs exactly one of them as its models, got "
                f"{'none' if self.pretrain is None else 'both'}."
            )

    def _check_value(self, column: Column) -> None:
        """Raise if no result of the column's jobs can have its value, which would else show only after all jobs."""
        what, (first, *rest) = f"value of {column.name}", column.value.split("/")
        if column.source == "pretrain" and first == "below":
            _check_loss(what, rest)
        elif column.source == "pretrain":
            _check_known(what, [column.value], _number_names(pretrain.Result))
        elif column.source == "equal-time":
            _check_known(what, [column.value], ("evaluation_loss",))
            if self.rates is None or self.cost is None:
                raise ValueError(
                    f"rates, cost: column {column.name} needs both: the loss at equal time follows from the losses "
                    f"of the grid of rates and the times of a step. Set them."
                )
        elif column.source == "further":
            _check_known(what, [column.value], ("evaluation_loss", "masked_accuracy"))
            _check_known(f"task of {column.name}", [column.task], ("", *self.further))
        elif column.source == "minimal-pairs" and not self.minimal_pairs:
            raise ValueError(f"minimal_pairs: column {column.name} needs a source of pairs. Set it in the plan.")
        elif column.source == "translate":
            if rest:
                _check_known(what, [first], self.translate[column.task].data.test)
            _check_known(what, rest or [first], _number_names(translate.Scores if rest else translate.Result))
        elif column.source == "parameters":
            _check_known(what, [column.value], VOCABULARIES)
        elif column.source == "analyse":
            _check_known(what, [column.value], ANALYSED)
            if not self.analyse:
                raise ValueError(f"analyse: column {column.name} needs analyses. Set analyse=True in the plan.")
        elif column.source == "cost" and self.cost is not None:
            _check_known(what, [first], self.cost.modes)
            _check_known(what, rest[:1], self.cost.models or rest)
            _check_known(what, rest[1:], ("steps", *map(str, self.cost.lengths)))
        elif column.source == "finetune":
            if not rest:
                _check_known(what, [first], _number_names(RunResult))
                return
            if len(rest) != (2 if first in ("transfer", "highest") else 1):
                raise ValueError(
                    f"{what}: expected score, SPLIT/METRIC, highest/SPLIT/METRIC or transfer/DATA/METRIC, got "
                    f"{column.value!r}."
                )
            config = self.finetune[column.task]
            task = config.task_spec
            if first == "transfer":
                transferred = {each.task.name: each.task for each in config.transferring}
                _check_known(what, [rest[0].partition("@")[0]], transferred)
                task = transferred[rest[0].partition("@")[0]]
            _check_known(what, rest[-1:], ("score", *task.metrics))

    def _checkpoints(self) -> range:
        """Return the steps of the checkpoints that pretraining keeps."""
        if self.pretrain is None:
            return range(0)
        every, last = self.pretrain.intervals.checkpoint, self.pretrain.optimisation.steps
        return range(every, last + 1, every)[-self.pretrain.intervals.keep :]

    def pretraining_seeds(self, row: Row) -> tuple[int, ...]:
        """Return the seeds with which a row is pretrained: `seeds`, and one more for the rows in `again`."""
        return (*self.seeds, max(self.seeds) + 1) if row.name in self.again else self.seeds

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)


def _number_names(result: type) -> list[str]:
    """Return the names of the numbers in a class of results."""
    return [each.name for each in fields(result) if str(each.type).partition(" ")[0] in ("int", "float")]


def _check_loss(what: str, given: list[str]) -> None:
    try:
        (text,) = given
        float(text)
    except ValueError:
        raise ValueError(f"{what}: expected below/LOSS, such as below/5.5, got below/{'/'.join(given)}.") from None


def _check_names(what: str, names: list[str]) -> None:
    if not names or len(set(names)) < len(names):
        raise ValueError(f"{what}: expected at least one, and each name once, got {', '.join(names) or 'none'}.")


def _check_known(what: str, names: Any, known: Any) -> None:
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"{what}: expected some of {', '.join(known) or '(none)'}, got {', '.join(unknown)}.")
