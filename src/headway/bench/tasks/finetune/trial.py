"""One run of a sweep: fine-tune with one learning rate and one seed, keep the best checkpoint, score it.

A step is a function of the weights and of (seed, step), so a run that continues from a checkpoint ends with the same
weights, bit for bit on a CPU. The loop is not that of `training.loop`, which supports several processes, gradient
accumulation and sharded weights: here one process keeps all data on its device and the best weights in memory.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from headway.bench.data.transfer.encoded import Encoded, Resident, TrainingBatches, evaluation_batches
from headway.bench.recording import own_stream
from headway.bench.tasks.finetune.config import FinetuneConfig
from headway.bench.tasks.finetune.data import Evaluation, Scores, SweepData
from headway.bench.tasks.finetune.model import TransferLoss, load_model
from headway.bench.tasks.finetune.training_step import SharedModel
from headway.bench.tasks.training import checkpoint
from headway.bench.tasks.training.distributed import Processes
from headway.bench.tasks.training.journal import Journal, Meter
from headway.bench.tasks.training.loop import seed_of
from headway.bench.tasks.training.optimizer import linear
from headway.bench.tasks.training.run_folder import RunFolder, RunStopped
from headway.models.pretrained import quiet_transformers
from headway.storage import atomic_path, read_json, settings, write_json

EVALUATE_AT_MOST = 3500  # steps between evaluations; Chen et al. (2021b), Table 7, "checkpoint interval"
EVALUATION_TOKENS = 1 << 15  # tokens of a batch in evaluation
LOG = 50  # steps between lines of the log

Metrics = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of one run; also in its result.json.

    Args:
        score: score of the best weights on the first dev split; `metrics` has all their metrics on dev, by split.
        step: number of steps after which the weights were best, out of `steps`.
        history: [step, score] of each evaluation.
        highest: highest value that each metric on dev had in any evaluation, by split; weights that are best by one
            metric need not be best by another.
        transfer: metrics of the best weights by data set and language.
        seconds: seconds of training and evaluation.
    """

    rate: float
    seed: int
    score: float
    metrics: dict[str, Metrics]
    step: int
    steps: int
    history: Sequence[Sequence[float]]
    highest: dict[str, Metrics] = field(default_factory=dict)
    transfer: dict[str, dict[str, Metrics]] = field(default_factory=dict)
    parameters: int
    seconds: float


def finetune_once(
    config: FinetuneConfig,
    data: SweepData,
    tokenizer: Any,
    *,
    rate: float,
    seed: int,
    folder: RunFolder,
    share: Callable[[PreTrainedModel], SharedModel],
    show: bool,
    leads: Callable[[float], bool],
) -> RunResult:
    """Do one run, continue it, or read its result if it is finished.

    Args:
        share: function that copies the weights of a model into the model that the runs of this process share.
        leads: function that returns whether a score is the best of the sweep so far; the model of such a run is saved
            in the folder's model/.
    """
    described = {**settings(config), "grid": {"rate": rate, "seed": seed}}
    folder.open(described, resume=True)
    if not folder.finished:
        shared = share(load_model(config, tokenizer, seed))
        with own_stream(shared.processes.device):
            run = Run(config, shared, data, rate=rate, seed=seed, folder=folder)
            run.train(show=show)
            result = run.finish()
        if leads(result.score):
            _save(folder, shared.model, tokenizer)
        write_json(folder.result_file, asdict(result))
    if folder.checkpoints.exists():
        shutil.rmtree(folder.checkpoints)
    return RunResult(**read_json(folder.result_file))


def steps_of(config: FinetuneConfig, data: SweepData) -> int:
    """Return the number of steps of each run of a sweep."""
    return config.protocol.epochs * TrainingBatches(data.train.lengths, batch=config.protocol.batch, seed=0).per_epoch


class Run:
    """A run in progress. Creating it restores its last checkpoint."""

    def __init__(
        self, config: FinetuneConfig, shared: SharedModel, data: SweepData, *, rate: float, seed: int, folder: RunFolder
    ) -> None:
        self.protocol, self.data, self.folder, self.processes = config.protocol, data, folder, shared.processes
        self.name = f"{config.task}, rate {rate:g}, seed {seed}"
        self.rate, self.seed = rate, seed
        self.batches = TrainingBatches(data.train.lengths, batch=self.protocol.batch, seed=seed)
        self.steps = steps_of(config, data)
        self.every = self.protocol.evaluate or min(self.batches.per_epoch, EVALUATE_AT_MOST)
        saved = shared.resume(folder.checkpoints)
        self.loss, self.optimizer, self.step = shared.loss, shared.optimizer, shared.step
        self.start: int = saved["step"]
        self.seconds: float = saved.get("seconds", 0.0)
        self.history: list[tuple[int, float]] = [(step, score) for step, score in saved.get("history", [])]
        self.metrics: dict[str, Metrics] = saved.get("metrics", {})  # of the best weights
        self.highest: dict[str, Metrics] = saved.get("highest", {})
        self.best: dict[str, Tensor] | None = load_file(self._best_file()) if self.history else None
        self.meter = Meter(self.processes, **saved.get("meter", {}))

    @property
    def best_step(self) -> int:
        """Return the step after which the score was highest; of equal ones the first."""
        return max(self.history, key=lambda entry: entry[1])[0]

    def train(self, *, show: bool) -> None:
        """Take the remaining steps, with evaluations and checkpoints."""
        clock = time.perf_counter() - self.seconds
        with Journal(self.folder, steps=self.steps, start=self.start, show=show, tensorboard=False) as journal:
            self.loss.train()
            for step in range(self.start, self.steps):
                with self._explain_errors():
                    loss, norm = self.step(self.batches[step], rate=self._rate(step), seed=seed_of(self.seed, step))
                self.meter.add(step, loss, norm)
                done = step + 1
                journal.step(done)
                if done % LOG == 0 or done == self.steps:
                    journal.log({"step": done, "loss": self._mean_loss(), "learning_rate": self._rate(step)})
                if done % self.every == 0 or done == self.steps:
                    journal.log({"step": done, **self._evaluate(done)})
                self.seconds = time.perf_counter() - clock
                if done % self.protocol.checkpoint == 0 and done < self.steps:
                    journal.sync()
                    self._save(done)

    def finish(self) -> RunResult:
        """Score the best checkpoint on all other data, and leave its weights in the model."""
        assert self.best is not None
        started = time.perf_counter()
        self.loss.load_state_dict(self.best)
        transfer = {
            name: {language: self._metrics(each, self.best_step) for language, each in languages.items()}
            for name, languages in self.data.transfer.items()
        }
        return RunResult(
            rate=self.rate,
            seed=self.seed,
            score=max(score for _, score in self.history),
            metrics=self.metrics,
            step=self.best_step,
            steps=self.steps,
            history=self.history,
            highest=self.highest,
            transfer=transfer,
            parameters=sum(parameter.numel() for parameter in self.loss.parameters()),
            seconds=self.seconds + time.perf_counter() - started,
        )

    def scores(self, encoded: Encoded) -> Scores:
        return model_scores(self.loss, encoded, self.processes, bf16=bool(self.protocol.bf16))

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        """Turn an error in a step into its cause: too little memory, or weights that an earlier step broke."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise RunStopped(
                f"run '{self.name}' ran out of memory: {str(error).splitlines()[0]} Lower --batch, --length or --jobs."
            ) from error
        except ValueError as error:  # on a CPU, attention refuses a bias that is not finite
            if (broken := self.meter.broken_step()) is not None:
                raise self._diverged(broken + 1) from error
            raise

    def _rate(self, step: int) -> float:
        return linear(step, steps=self.steps, warmup=self.protocol.warmup, peak=self.rate)

    def _mean_loss(self) -> float:
        """Return the mean loss since the last call; the host waits for the device here."""
        reading = self.meter.read()
        self.meter.reset()
        if reading.broken_step is not None:
            raise self._diverged(reading.broken_step + 1)
        return reading.loss

    def _diverged(self, step: int) -> RunStopped:  # counted from 1
        return RunStopped(
            f"run '{self.name}' diverged: its loss, gradients or scores became NaN or infinite at step {step}. Leave "
            f"that learning rate out, which makes a new sweep; the finished runs of this one are kept."
        )

    def _metrics(self, each: Evaluation, step: int) -> Metrics:
        """Return the metrics of the weights after a step; raise if scores are not finite, even if the loss was."""
        try:
            scores = self.scores(each.encoded)
        except ValueError as error:  # on a CPU, attention refuses a bias that is not finite
            if all(bool(each.isfinite().all()) for each in self.loss.parameters()):
                raise
            raise self._diverged(step) from error
        if not are_finite(scores, each.encoded):
            raise self._diverged(step)
        return each.metrics(scores)

    def _evaluate(self, done: int) -> Metrics:
        if (broken := self.meter.broken_step()) is not None:
            raise self._diverged(broken + 1)
        metrics_by_split = {name: self._metrics(each, done) for name, each in self.data.dev.items()}
        score = next(iter(metrics_by_split.values()))["score"]
        if not self.history or score > max(before for _, before in self.history):
            self.best = {name: value.clone() for name, value in self.loss.state_dict().items()}  # on the device
            self.metrics = metrics_by_split
        self.history.append((done, score))
        for name, metrics in metrics_by_split.items():
            before = self.highest.setdefault(name, {})
            before.update({each: max(value, before.get(each, value)) for each, value in metrics.items()})
        flat = {
            f"{name} {metric}": value for name, metrics in metrics_by_split.items() for metric, value in metrics.items()
        }
        return {"score": score, **{name: value for name, value in flat.items() if not name.endswith(" score")}}

    def _save(self, done: int) -> None:
        """Save the best weights, then a checkpoint, which refers to them; then delete older ones."""
        state = {
            "seconds": self.seconds,
            "history": self.history,
            "metrics": self.metrics,
            "highest": self.highest,
            "meter": self.meter.saved(),
        }
        if self.best is not None and not self._best_file().exists():
            with atomic_path(self._best_file()) as temporary:
                save_file(self.best, temporary)
        moments = checkpoint.optimizer_tensors(self.loss, self.optimizer)
        checkpoint.save(self.folder.checkpoints, done, checkpoint.model_tensors(self.loss), moments, state)
        checkpoint.prune(self.folder.checkpoints, 1)
        for path in self.folder.checkpoints.glob("best-*.safetensors"):
            if not self.history or path != self._best_file():
                path.unlink()

    def _best_file(self) -> Any:
        return self.folder.checkpoints / f"best-{self.best_step:08d}.safetensors"


@torch.no_grad()
def model_scores(loss: TransferLoss, encoded: Encoded, processes: Processes, *, bf16: bool) -> Scores:
    """Return the model's scores of each sequence, without dropout; the host waits for the device once, at the end."""
    was_training = loss.training
    loss.eval()
    resident = Resident(encoded, processes.device)
    chosen, computed = [], []
    for some in evaluation_batches(encoded.lengths, tokens=EVALUATION_TOKENS):
        batch = resident.batch(resident.numbers(some), resident.width(some))
        with torch.autocast(processes.device.type, torch.bfloat16, enabled=bf16):
            computed.append(loss.scores(batch))
        chosen.append(some)
    loss.train(was_training)
    result: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(encoded)
    for some, scores in zip(chosen, computed, strict=True):
        for at, row in zip(some, scores.float().cpu().numpy(), strict=True):
            result[at] = row
    return result


def are_finite(scores: Scores, encoded: Encoded) -> bool:
    """Return whether all scores are finite, except in a question's padding, where they are minus infinity."""
    rows = zip(scores, encoded.lengths, strict=True)
    return all(np.isfinite(row[:length] if row.ndim == 2 else row).all() for row, length in rows)


def _save(folder: RunFolder, model: PreTrainedModel, tokenizer: Any) -> None:
    if folder.model.exists():  # left by an attempt that was killed before it wrote its result
        shutil.rmtree(folder.model)
    with atomic_path(folder.model) as temporary, quiet_transformers():
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
