"""One row of the table: its model, its batch, and the training and inference steps that are timed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from headway.bench.cost.config import CostConfig
from headway.bench.cost.contestant import Contestant, strengthen_weights
from headway.bench.cost.flops import Flops, encoder_flops, head_flops
from headway.bench.cost.parity import Inputs, parity
from headway.bench.recording import Recordings, own_stream
from headway.models import preset

CHECKED_SEQUENCES = 2  # sequences of which output and gradients are compared with the formula
MUST_HAVE_LEARNED = 40  # steps on one batch after which the loss must be lower than at the first

MASKED = 0.15  # Devlin et al. (2019), Sec. 3.1
MASK, FIRST_WORD = 103, 999  # in BERT's vocabulary
IGNORED = -100

STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row in one model at one length. The configuration is a resolved one."""

    config: CostConfig
    row: str
    model: str
    length: int
    threads: int  # of torch on a CPU, and of torch's compiler


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseFacts:
    """The properties of a case that need no timing; `peak_bytes` and `flops` are by mode."""

    parameters: int
    parity: dict[str, float | None]
    peak_bytes: dict[str, int | None]
    flops: dict[str, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """Mean seconds of a step in one round: until it was done, and until the host had launched it."""

    seconds: float
    launched: float


class TimedModel:
    """The model of a case with its batch and optimizer: checks it, then times its steps."""

    def __init__(self, case: Case) -> None:
        self.case, config = case, case.config
        self.config = config
        torch.set_num_threads(case.threads)
        torch.manual_seed(config.seed)
        self.gpu = torch.device(config.device).type == "cuda"
        if self.gpu and (index := torch.device(config.device).index) is not None:
            torch.cuda.set_device(index)
        self.peak_memory = PeakMemory(config.device)
        self.contestant = Contestant(case.row)
        self.compiles = bool(config.compile) and self.contestant.compiles
        self.replays = bool(config.graphs) and self.contestant.replays
        segments = self.contestant.segments(config.segments)
        built = self.contestant.build(case.model, length=case.length, dropout=config.dropout, segments=config.segments)
        self.model: Any = built.to(config.device)
        strengthen_weights(self.model, case.length)
        self.batch = MaskedBatch.random(
            config.batch_of(case.length),
            case.length,
            self.model.config.vocab_size,
            seed=config.seed,
            device=config.device,
        )
        self.inputs, self.labels = self._inputs_and_labels(self.batch, segments)
        self.checked = self._inputs_and_labels(self.batch.first(CHECKED_SEQUENCES), segments)
        self.loss, self.hidden = self._compiled(LossOnly(self.model)), self._compiled(HiddenStates(self.model))
        self.optimizer: AdamW | None = None
        self.steps, self.first_loss = 0, math.inf  # of training

    def prepare(self, gpu_lock: AbstractContextManager[Any] | None = None) -> CaseFacts:
        """Compile and warm up the model, measure its peak memory, compare it with the formula; return its facts.

        Args:
            gpu_lock: held whenever this process uses the GPU while other rows prepare.
        """
        gpu_lock = nullcontext() if gpu_lock is None else gpu_lock
        peaks: dict[str, int | None] = {}
        for mode in ("inference", "training"):  # inference first, while there are no gradients and no optimizer
            if mode not in self.config.modes:
                continue
            step = self.step_of(mode)
            with self._locked_first_step(gpu_lock):
                step()
                self._free_memory()
            with gpu_lock:
                self.peak_memory.reset()
                step()
                self._wait()
                self._free_memory()
            self._count(mode, 2)
            peaks[mode] = self.peak_memory.read()
        inference = (lambda: self.inference_step()[:CHECKED_SEQUENCES]) if "inference" in peaks else None
        with gpu_lock:
            errors = parity(self.model, *self.checked, inference, self._precision)
            self._free_memory()
        flops = self._flops()
        return CaseFacts(
            parameters=sum(parameter.numel() for parameter in self.model.parameters()),
            parity=errors,
            peak_bytes=peaks,
            flops={mode: getattr(flops[mode], mode) for mode in self.config.modes},
        )

    def step_of(self, mode: str) -> Callable[[], Tensor]:
        return self.training_step if mode == "training" else self.inference_step

    def time(self, mode: str, steps: int) -> StepTime:
        """Time a number of steps, after one or two that fill memory pools and caches and are recorded as a graph."""
        with own_stream(torch.device(self.config.device)):
            recordings = Recordings(on=self.replays, optimizer=self.optimizer)
            step, last = self.step_of(mode), list[Tensor]()

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
            self._check_result(mode, last[0])
            del recordings
            last.clear()
        self._free_memory()
        return StepTime(seconds=(end - start) / steps, launched=(launched - start) / steps)

    def training_step(self) -> Tensor:
        """Run forward pass, loss of the masked words, backward pass and AdamW; return the loss."""
        self.model.train()
        if self.optimizer is None:
            self.optimizer = AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
        with self._precision():
            loss: Tensor = self.loss(self.inputs, self.labels)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if math.isinf(self.first_loss):
            self.first_loss = loss.item()
        return loss.detach()

    @torch.no_grad()
    def inference_step(self) -> Tensor:
        """Run the encoder without its head; return the last hidden states."""
        self.model.eval()
        with self._precision():
            hidden: Tensor = self.hidden(self.inputs)
        return hidden

    def _count(self, mode: str, steps: int) -> None:
        """Count training steps, which `training_step` cannot do, because a replayed step runs no Python."""
        self.steps += steps if mode == "training" else 0

    def _check_result(self, mode: str, last: Tensor) -> None:
        """Raise unless numbers are finite and the loss falls.

        Nothing more can be checked, because compiled steps with dropout cannot be compared with a formula.
        """
        row = self.case.row
        if not torch.isfinite(last).all():
            value = "NaN" if last.isnan().any() else "infinite"
            if mode == "training":
                raise FloatingPointError(f"training: the loss of row {row!r} became {value} within {self.steps} steps.")
            raise FloatingPointError(f"inference: hidden states of row {row!r} became {value}.")
        if mode == "training" and self.steps >= MUST_HAVE_LEARNED and last.item() >= self.first_loss:
            raise FloatingPointError(
                f"training: the loss of row {row!r} did not fall: {self.first_loss:.3f} at the first step, "
                f"{last.item():.3f} after {self.steps} steps on the same batch."
            )

    def _inputs_and_labels(self, batch: MaskedBatch, segments: str) -> tuple[Inputs, Inputs]:
        labels = batch.masked_labels() if self.contestant.at_masked_places else batch.all_labels()
        return batch.inputs(segments=segments == "per-head"), labels

    def _precision(self) -> torch.autocast:
        return torch.autocast(torch.device(self.config.device).type, torch.bfloat16, enabled=bool(self.config.bf16))

    def _locked_first_step(self, gpu_lock: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
        """Hold the lock during the first step of a mode; while torch compiles, only where it uses the GPU."""
        if not self.gpu:
            return nullcontext()
        return locked_compiled_graphs(gpu_lock) if self.compiles else gpu_lock

    def _compiled(self, module: nn.Module) -> Callable[..., Tensor]:
        if not self.compiles:
            return module
        import torch._inductor.config as inductor

        inductor.compile_threads = self.case.threads
        compiled: Callable[..., Tensor] = torch.compile(module, dynamic=False)
        return compiled

    def _flops(self) -> dict[str, Flops]:
        """Count the operations of a step by mode."""
        size = (self.batch.input_ids.shape[0], self.case.length)
        theirs = self.contestant.theirs
        config = preset(self.case.model) if theirs else self.model.config  # BERT's arithmetic is that of "learned"
        encoder = encoder_flops(config, *size)
        positions = (self.batch.columns if self.contestant.at_masked_places else self.batch.input_ids).numel()
        return {"inference": encoder, "training": encoder + head_flops(config, positions)}

    def _wait(self) -> None:
        if self.gpu:
            torch.cuda.synchronize()

    def _free_memory(self) -> None:
        """Return cached memory to the GPU, which other rows use too."""
        if self.gpu:
            torch.cuda.empty_cache()


@contextmanager
def locked_compiled_graphs(gpu_lock: AbstractContextManager[Any]) -> Iterator[None]:
    """Hold the lock whenever a compiled graph runs, but not while torch compiles.

    When a graph first runs, variants of its kernels are timed on the GPU and one is kept.
    """
    from torch._inductor.output_code import CompiledFxGraph

    run = CompiledFxGraph.__call__

    def run_locked(graph: CompiledFxGraph, inputs: Sequence[Any]) -> Any:
        with gpu_lock:
            result = run(graph, inputs)
            torch.cuda.synchronize()
        return result

    CompiledFxGraph.__call__ = run_locked  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        CompiledFxGraph.__call__ = run  # type: ignore[method-assign]


class LossOnly(nn.Module):
    """A model that returns its loss alone: all outputs of a compiled module stay in memory, and no one reads scores."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Inputs, labels: Inputs) -> Tensor:
        loss: Tensor = self.model(**inputs, **labels).loss
        return loss


class HiddenStates(nn.Module):
    """A model without its head, which returns the last hidden states."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder = model.base_model

    def forward(self, inputs: Inputs) -> Tensor:
        hidden: Tensor = self.encoder(**inputs).last_hidden_state
        return hidden


@dataclass(frozen=True, kw_only=True)
class MaskedBatch:
    """Random words without padding; the same number is masked in each sequence and predicted."""

    input_ids: Tensor  # (B, L)
    columns: Tensor  # (B, M), the masked positions
    answers: Tensor  # (B, M), the words that stood there

    @classmethod
    def random(cls, batch: int, length: int, vocabulary: int, *, seed: int, device: str) -> Self:
        generator = torch.Generator().manual_seed(seed)
        words = torch.randint(FIRST_WORD, vocabulary, (batch, length), generator=generator)
        count = max(1, round(MASKED * length))
        columns = torch.rand(batch, length, generator=generator).argsort(1)[:, :count].sort(1).values
        answers = words.gather(1, columns)
        return cls(
            input_ids=words.scatter(1, columns, MASK).to(device),
            columns=columns.to(device),
            answers=answers.to(device),
        )

    def first(self, count: int) -> Self:
        """Return the first sequences."""
        return type(self)(input_ids=self.input_ids[:count], columns=self.columns[:count], answers=self.answers[:count])

    def inputs(self, *, segments: bool) -> Inputs:
        """Return the encoder's arguments: the words and, with `segments`, two segments of equal length."""
        if not segments:
            return {"input_ids": self.input_ids}
        second = torch.arange(self.input_ids.shape[1], device=self.input_ids.device) >= self.input_ids.shape[1] // 2
        return {"input_ids": self.input_ids, "token_type_ids": second.long().expand_as(self.input_ids).contiguous()}

    def masked_labels(self) -> Inputs:
        """Return labels for models that compute scores at the masked positions alone, as ours do."""
        rows = torch.arange(len(self.columns), device=self.columns.device)[:, None]
        positions = rows * self.input_ids.shape[1] + self.columns
        return {"masked_positions": positions.flatten(), "labels": self.answers.flatten()}

    def all_labels(self) -> Inputs:
        """Return labels for models that compute scores at every position and ignore those without a label."""
        return {"labels": torch.full_like(self.input_ids, IGNORED).scatter(1, self.columns, self.answers)}


class PeakMemory:
    """Peak memory of this process since `reset`, in bytes: what a step holds of model, optimizer and activations.

    On a GPU it is what torch allocates. On a CPU with Linux it is the growth of the process's resident memory since
    this object was made; on other systems it is unknown (None).
    """

    def __init__(self, device: str) -> None:
        self.gpu = torch.device(device).type == "cuda"
        self.known = self.gpu or (STATUS.exists() and CLEAR_REFS.exists())
        self.before = 0 if self.gpu or not self.known else resident_bytes("VmRSS")

    def reset(self) -> None:
        if self.gpu:
            torch.cuda.reset_peak_memory_stats()
        elif self.known:
            reset_resident_peak()

    def read(self) -> int | None:
        if self.gpu:
            torch.cuda.synchronize()
            return torch.cuda.max_memory_allocated()
        return resident_bytes("VmHWM") - self.before if self.known else None


def reset_resident_peak() -> None:
    """Reset VmHWM, the peak of resident memory that Linux keeps, to the present value."""
    CLEAR_REFS.write_text("5")


def resident_bytes(field: str) -> int:
    """Read a size of this process from Linux: VmRSS, the resident memory, or VmHWM, its peak."""
    lines = STATUS.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))
