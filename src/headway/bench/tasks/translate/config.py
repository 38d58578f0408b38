"""The configuration of a translation run: model, parallel text, training, decoding and scoring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn
from torch.optim import Adam, Optimizer

from headway.bench.data.reading import source_kind
from headway.bench.data.translation.batches import MULTIPLE
from headway.bench.data.translation.cleaning import Rules
from headway.bench.data.translation.vocabulary import KINDS, VOCAB_SIZE
from headway.bench.tasks.training.optimizer import fusible, inverse_square_root, parameter_groups
from headway.bench.tasks.training.run_folder import flat
from headway.bench.tasks.training.settings import Intervals, ModelChoice, Steps, above_zero, at_least
from headway.models.translation import TRANSLATION_PRESETS, Decoding, TranslationConfig, translation_preset
from headway.storage import OMIT_DEFAULT, config_hash, settings

# A resumed run may have other values of these settings: none of them changes what is learned.
FREE = ("intervals.log", "intervals.keep")
SAVED = ("average", "best", "last")


@dataclass(frozen=True, kw_only=True, slots=True)
class TranslatorChoice(ModelChoice):
    """An encoder-decoder to train."""

    encoding: str = "sinusoidal"

    def config(self, *, length: int = 1, **rest: Any) -> TranslationConfig:
        """Make the model's configuration, with room for `length` positions."""
        return translation_preset(self.preset, **self._settings(TRANSLATION_PRESETS, length, rest))


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelData:
    """Parallel text: what to train on, what to choose by (dev), what to score (test), and how to tokenise it.

    Args:
        source: training text: a text file whose lines `target` translates, one file of sentence TAB translation, a
            .jsonl file, hub:NAME[:CONFIG[:SPLIT]], or builtin. Several joined by "+" are one corpus.
        target: text file with a translation of each line of `source`, if that is a text file without translations.
        dev_source: text to evaluate on during training, in one of the forms of `source`. Unless given, it is the dev
            split of the source; of files that is a share `held_out` of their sentences.
        dev_target: text file with a translation of each line of `dev_source`, likewise.
        languages: direction of jsonl and Hub rows, such as en-de.
        held_out: share of the sentences of files that are kept for evaluation.
        on_error: raise at rows that cannot be read, or skip and count them; in test sets they always raise.
        rules: which pairs to train on. Dev leaves out only pairs that are empty or too long, and only from its loss;
            `strict` does not apply to it.
        tokenizer: folder of a tokenizer; by default one is trained on the training pairs.
        kind: kind of tokenizer to train, see `train_vocabulary`; by default word for the built-in language and bpe for
            other text.
        vocab_size: vocabulary size of the tokenizer to train.
        data: folder data/ of an earlier run, in place of all settings above except `languages`, which test sets need.
        translated: number of dev pairs to translate and score in each evaluation.
        test: test sets by name, which the saved model translates once and which are scored: two files with a comma
            between them, SOURCE,TARGET, or one of the other forms of `source`.
    """

    source: str = "builtin"
    target: str | None = None
    dev_source: str | None = None
    dev_target: str | None = None
    languages: str | None = None
    held_out: float = 0.01
    on_error: str = "raise"
    rules: Rules = field(default_factory=Rules)
    tokenizer: str | None = None
    kind: str | None = None
    vocab_size: int = VOCAB_SIZE
    data: str | None = None
    translated: int = 0
    test: Mapping[str, str] = field(default_factory=dict, metadata=OMIT_DEFAULT)

    def __post_init__(self) -> None:
        if self.kind is not None and self.kind not in KINDS:
            raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {self.kind!r}.")
        if self.on_error not in ("raise", "skip"):
            raise ValueError(f"on_error: expected raise or skip, got {self.on_error!r}.")
        if not 0 < self.held_out < 0.5:
            raise ValueError(f"held_out: expected a share above 0 and below 0.5, got {self.held_out}.")
        if self.dev_target is not None and self.dev_source is None:
            raise ValueError(f"dev_source: expected one beside dev_target={self.dev_target!r}, got none.")
        at_least("translated", self.translated, 0)
        if "dev" in self.test:
            raise ValueError("test: dev is the name of the text to evaluate on in training. Give the test set another.")

    @property
    def trained_kind(self) -> str:
        """Return the kind of tokenizer to train."""
        return self.kind or ("word" if source_kind(self.source) == "builtin" else "bpe")


@dataclass(frozen=True, kw_only=True, slots=True)
class Optimisation(Steps):
    """Adam with warm-up and inverse square root decay.

    Paper:    Vaswani et al. (2017), Sec. 5.3; Shaw et al. (2018), Sec. 4.1
    Departs:  the papers do not mention gradient clipping, so it is off by default; so is torch.compile, because batches
              differ in shape

    Args:
        tokens: maximum number of source tokens, and of target tokens, in a batch, including padding.
        step_tokens: approximate number of target tokens in a step, which accumulates as many batches as that takes.
        warmup: number of steps in which the learning rate rises.
        learning_rate: peak learning rate; the default is (width * warmup)^-0.5, Vaswani et al. (2017), Eq. (3).
        betas: decay rates of Adam's averages.
        epsilon: number that Adam adds to the divisor.
        position_rate: factor of the learning rate for the parameters of encodings.
    """

    clip: float | None = None
    compile: bool | None = False
    tokens: int = 4096
    step_tokens: int = 25_000
    warmup: int = 4000
    learning_rate: float | None = None
    betas: tuple[float, float] = (0.9, 0.98)
    epsilon: float = 1e-9
    position_rate: float = 1.0

    def __post_init__(self) -> None:
        Steps.__post_init__(self)  # slots make a new class, which super() would not find
        at_least("tokens", self.tokens, MULTIPLE)
        at_least("step_tokens", self.step_tokens, 1)
        at_least("warmup", self.warmup, 1)
        if self.learning_rate is not None:
            above_zero("learning_rate", self.learning_rate)
        above_zero("position_rate", self.position_rate)

    def rate(self, step: int) -> float:
        assert self.learning_rate is not None  # filled in by TranslateConfig.resolved
        return inverse_square_root(step, warmup=self.warmup, peak=self.learning_rate)

    def optimizer(self, model: nn.Module) -> Optimizer:
        every = parameter_groups(model, 0.0, self.position_rate)
        return Adam(every, lr=0.0, betas=self.betas, eps=self.epsilon, fused=fusible(model))

    def less_memory_hint(self) -> str:
        return f"Use smaller batches: --tokens {self.tokens // 2} begins a new run."


@dataclass(frozen=True, kw_only=True, slots=True)
class TranslateConfig:
    """A translation run.

    Args:
        save: weights of the saved model: the average of the last `average` checkpoints; best, the checkpoint with the
            lowest loss on dev (among checkpoints at whose step there is an evaluation); or the last ones.
        average: number of checkpoints to average.
        seed: seed of weights, batches and dropout.
        decoding: how dev and test sets are translated.
        lowercase: score in lower case, as "uncased" BLEU does.
    """

    model: TranslatorChoice
    data: ParallelData
    optimisation: Optimisation
    intervals: Intervals = field(default_factory=Intervals)
    save: str = "average"
    average: int = 20
    seed: int = 0
    decoding: Decoding = field(default=Decoding(), metadata=OMIT_DEFAULT)
    lowercase: bool = field(default=False, metadata=OMIT_DEFAULT)

    def __post_init__(self) -> None:
        at_least("seed", self.seed, 0)
        at_least("average", self.average, 1)
        if self.save not in SAVED:
            raise ValueError(f"save: expected one of {', '.join(SAVED)}, got {self.save!r}.")
        if self.save == "best" and self.intervals.checkpoint % self.intervals.evaluate:
            raise ValueError(
                f"intervals: to save the best checkpoint, every checkpoint needs an evaluation at its step; got an "
                f"evaluation every {self.intervals.evaluate} steps and a checkpoint every {self.intervals.checkpoint}. "
                f"Pass --set intervals.evaluate={self.intervals.checkpoint}."
            )
        self.model.config(length=self.data.rules.max_tokens)

    def resolved(self, device: str) -> TranslateConfig:
        """Fill in the settings that depend on the kind of device and on the model's width."""
        plan = self.optimisation.resolved(device)
        if plan.learning_rate is None:
            peak = (self.model.config().hidden_size * plan.warmup) ** -0.5
            plan = replace(plan, learning_rate=peak)
        return replace(self, optimisation=plan)

    @property
    def default_folder(self) -> str:
        """Return the run's folder unless another is named; a hash in its name stands for all settings but `FREE`."""
        matters = {name: value for name, value in flat(settings(self)).items() if name not in FREE}
        return f"runs/translate-{self.model.preset}-{self.model.choice.name}-{config_hash(matters)}"
