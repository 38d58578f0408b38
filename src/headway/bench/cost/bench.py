"""One row at one length: a model that is built, checked and timed, in a process that has nothing else."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from headway.bench.cost.batch import Feed, Words
from headway.bench.cost.config import CostConfig
from headway.bench.cost.contestant import Contestant, enliven
from headway.bench.cost.flops import Flops, encoder_flops, head_flops
from headway.bench.cost.memory import Peak
from headway.bench.cost.parity import parity
from headway.bench.recording import Recordings, own_stream
from headway.models import preset

CHECKED = 2  # sequences that the gate looks at
LEARNED_BY = 40  # steps after which the loss must have fallen


@dataclass(frozen=True, kw_only=True)
class Case:
    """A row at one length, of a configuration with nothing left open."""

    config: CostConfig
    row: str
    model: str
    length: int
    threads: int  # of torch on a CPU, and of its compiler


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """What is known of a case before it is timed."""

    parameters: int
    parity: dict[str, float | None]
    peak_bytes: dict[str, int | None]  # by mode
    flops: dict[str, int]  # by mode


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """Seconds of a step, from its launch to its end; and until the host had launched it."""

    seconds: float
    launched: float


class Bench:
    """The model of a case, with a batch and an optimizer."""

    def __init__(self, case: Case) -> None:
        self.case, config = case, case.config
        self.config = config
        torch.set_num_threads(case.threads)
        torch.manual_seed(config.seed)
        self.gpu = torch.device(config.device).type == "cuda"
        if self.gpu and (index := torch.device(config.device).index) is not None:
            torch.cuda.set_device(index)
        self.peak = Peak(config.device)
        self.contestant = Contestant(case.row)
        self.compiles = bool(config.compile) and self.contestant.compiles
        self.replays = bool(config.graphs) and self.contestant.replays
        segments = self.contestant.segments(config.segments)
        built = self.contestant.build(case.model, length=case.length, dropout=config.dropout, segments=config.segments)
        self.model: Any = built.to(config.device)
        enliven(self.model, case.length)
        self.words = Words.drawn(
            config.batch_of(case.length),
            case.length,
            self.model.config.vocab_size,
            seed=config.seed,
            device=config.device,
        )
        self.seen, self.labels = self._fed(self.words, segments)
        self.checked = self._fed(self.words.first(CHECKED), segments)
        self.loss, self.hidden = self._compiled(Loss(self.model)), self._compiled(Hidden(self.model))
        self.optimizer: AdamW | None = None
        self.steps, self.first_loss = 0, math.inf  # of training

    def prepare(self, alone: AbstractContextManager[Any] | None = None) -> Prepared:
        """Compile, warm up, find the peaks of memory, and check.

        Args:
            alone: entered wherever the GPU is used while other rows get ready.
        """
        alone = nullcontext() if alone is None else alone
        peaks: dict[str, int | None] = {}
        for mode in ("inference", "training"):  # inference first, while there are no gradients and no optimizer
            if mode not in self.config.modes:
                continue
            step = self.step(mode)
            with self._first_step(alone):
                step()
                self._give_back()
            with alone:
                self.peak.reset()
                step()
                self._wait()
                self._give_back()
            self._count(mode, 2)
            peaks[mode] = self.peak.read()
        inference = (lambda: self.inference()[:CHECKED]) if "inference" in peaks else None
        with alone:
            errors = parity(self.model, *self.checked, inference, self._precision)
            self._give_back()
        flops = self._flops()
        return Prepared(
            parameters=sum(parameter.numel() for parameter in self.model.parameters()),
            parity=errors,
            peak_bytes=peaks,
            flops={mode: getattr(flops[mode], mode) for mode in self.config.modes},
        )

    def step(self, mode: str) -> Callable[[], Tensor]:
        return self.training if mode == "training" else self.inference

    def turn(self, mode: str, steps: int) -> Turn:
        """So many steps, after one or two that are not timed: they find memory and caches again, and are recorded."""
        with own_stream(torch.device(self.config.device)):
            recordings = Recordings(on=self.replays, optimizer=self.optimizer)
            step, last = self.step(mode), list[Tensor]()

            def work() -> None:
                last[:] = [step()]

            before = 2 if self.gpu else 1
            for _ in range(before):
                recordings(mode, work)
            self._wait()
            start = time.perf_counter()
            for _ in range(steps):
                recordings(mode, work)
            launched = time.perf_counter()
            self._wait()
            end = time.perf_counter()
            self._count(mode, before + steps)
            self._check(mode, last[0])
            del recordings
            last.clear()
        self._give_back()
        return Turn(seconds=(end - start) / steps, launched=(launched - start) / steps)

    def training(self) -> Tensor:
        """Forward, loss of the masked words, backward, AdamW. Returns the loss."""
        self.model.train()
        if self.optimizer is None:
            self.optimizer = AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
        with self._precision():
            loss: Tensor = self.loss(self.seen, self.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if math.isinf(self.first_loss):
            self.first_loss = loss.item()
        return loss.detach()

    @torch.no_grad()
    def inference(self) -> Tensor:
        """The encoder's forward pass. Returns its hidden states."""
        self.model.eval()
        with self._precision():
            hidden: Tensor = self.hidden(self.seen)
        return hidden

    def _count(self, mode: str, steps: int) -> None:
        """Steps that were taken; one that is replayed runs no line of `training`."""
        self.steps += steps if mode == "training" else 0

    def _check(self, mode: str, last: Tensor) -> None:
        """Numbers must be finite, and training must learn: no formula can say what compiled steps with dropout give."""
        if not torch.isfinite(last).all():
            raise FloatingPointError(f"{mode}: expected finite numbers, got others.")
        if mode == "training" and self.steps >= LEARNED_BY and last.item() >= self.first_loss:
            raise FloatingPointError(
                f"training: expected a loss below the first, {self.first_loss:.3f}, after {self.steps} steps on one "
                f"batch, got {last.item():.3f}."
            )

    def _fed(self, words: Words, segments: str) -> tuple[Feed, Feed]:
        labels = words.at_masked_places() if self.contestant.at_masked_places else words.at_all_places()
        return words.seen(segments=segments == "per-head"), labels

    def _precision(self) -> torch.autocast:
        return torch.autocast(torch.device(self.config.device).type, torch.bfloat16, enabled=bool(self.config.bf16))

    def _first_step(self, alone: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
        """Where the first step of a mode runs: on a GPU alone, but for the compiler's work."""
        if not self.gpu:
            return nullcontext()
        return _compiled_parts(alone) if self.compiles else alone

    def _compiled(self, module: nn.Module) -> Callable[..., Tensor]:
        if not self.compiles:
            return module
        import torch._inductor.config as inductor

        inductor.compile_threads = self.case.threads
        compiled: Callable[..., Tensor] = torch.compile(module, dynamic=False)
        return compiled

    def _flops(self) -> dict[str, Flops]:
        size = (self.words.input_ids.shape[0], self.case.length)
        theirs, words = self.contestant.theirs, self.words
        config = preset(self.case.model) if theirs else self.model.config  # BERT's arithmetic is that of "learned"
        encoder = encoder_flops(config, *size)
        places = (words.columns if self.contestant.at_masked_places else words.input_ids).numel()
        return {"inference": encoder, "training": encoder + head_flops(config, places)}

    def _wait(self) -> None:
        if self.gpu:
            torch.cuda.synchronize()

    def _give_back(self) -> None:
        """Memory that is not in use, so that the other rows find some."""
        if self.gpu:
            torch.cuda.empty_cache()


@contextmanager
def _compiled_parts(alone: AbstractContextManager[Any]) -> Iterator[None]:
    """What torch has compiled runs `alone`; its compiler may work beside others.

    When a part first runs, variants of its kernels are timed, and one is kept.
    """
    from torch._inductor.output_code import CompiledFxGraph

    run = CompiledFxGraph.__call__

    def run_alone(graph: CompiledFxGraph, inputs: Sequence[Any]) -> Any:
        with alone:
            result = run(graph, inputs)
            torch.cuda.synchronize()
        return result

    CompiledFxGraph.__call__ = run_alone  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        CompiledFxGraph.__call__ = run  # type: ignore[method-assign]


class Loss(nn.Module):
    """A model's loss alone: what leaves a compiled module has to be kept, and nobody reads the scores."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, seen: Feed, labels: Feed) -> Tensor:
        loss: Tensor = self.model(**seen, **labels).loss
        return loss


class Hidden(nn.Module):
    """A model's last hidden states, without the head."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder = model.base_model

    def forward(self, seen: Feed) -> Tensor:
        hidden: Tensor = self.encoder(**seen).last_hidden_state
        return hidden
