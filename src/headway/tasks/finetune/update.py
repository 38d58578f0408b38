"""One update of the weights, all of it on the device; on a GPU it is recorded once for each width and then replayed.

A step of a small model is some hundred kernels, each shorter than its launch takes in Python. As a CUDA graph they are
launched at once, and processes that share a GPU hand it whole steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import PreTrainedModel

from headway.data.transfer.encoded import Resident
from headway.models import EncoderConfig
from headway.tasks.finetune.model import TransferLoss
from headway.tasks.training.loop import seed_dropout
from headway.tasks.training.optimizer import set_rate
from headway.tasks.training.runs import RunStopped


class Update:
    """Batch, loss, gradients and optimizer of a run.

    Args:
        batch: sequences of a step; always as many.
        clip: greatest norm of the gradient.
        record: replay steps as CUDA graphs. The first batch of a width goes the plain way, which compiles what needs
            compiling; the second is recorded.
    """

    def __init__(
        self,
        loss: TransferLoss,
        optimizer: Optimizer,
        train: Resident,
        *,
        batch: int,
        clip: float,
        bf16: bool,
        record: bool,
    ) -> None:
        self.loss, self.optimizer, self.train = loss, optimizer, train
        self.clip, self.bf16, self.record = clip, bf16, record
        device = train.device
        self.chosen = torch.zeros(batch, dtype=torch.int64, device=device)
        self.count = torch.full((), float(batch), device=device)
        self.value, self.norm = torch.zeros((), device=device), torch.zeros((), device=device)
        self.graphs: dict[int, torch.cuda.CUDAGraph | None] = {}  # by width; None was taken the plain way
        if record:
            self.pool = torch.cuda.graph_pool_handle()
            for group in optimizer.param_groups:
                group["lr"] = torch.zeros((), device=device)  # a number would be recorded with the step

    def __call__(
        self, chosen: NDArray[np.int64], *, rate: float, seed: int
    ) -> tuple[Tensor, Tensor]:  # loss and norm of the gradient before clipping; the next step writes over them
        self.chosen.copy_(self.train.numbers(chosen))
        self._set_rate(rate)
        seed_dropout(self.train.device, seed)
        width = self.train.width(chosen)
        if not self.record or width not in self.graphs:
            self.graphs[width] = None
            self._step(width)
            return self.value, self.norm
        graph = self.graphs[width]
        if graph is None:
            graph = self.graphs[width] = self._recorded(width)
        graph.replay()
        return self.value, self.norm

    def _step(self, width: int) -> None:
        """Nothing here waits for the device, or depends on anything but what lies there."""
        batch = self.train.batch(self.chosen, width)
        with torch.autocast(self.train.device.type, torch.bfloat16, enabled=self.bf16):
            loss = self.loss(batch, self.count)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.loss.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.value.copy_(loss.detach())
        self.norm.copy_(norm)

    def _recorded(self, width: int) -> torch.cuda.CUDAGraph:
        """The step of a width as a graph. Recording computes nothing."""
        graph = torch.cuda.CUDAGraph()
        try:
            with self._capturable(), torch.cuda.graph(graph, pool=self.pool, stream=torch.cuda.current_stream()):
                self._step(width)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise RunStopped(
                f"graphs: expected a step of width {width} that can be recorded, got: {str(error).splitlines()[0]} "
                f"Start again with --resume and --no-graphs."
            ) from error
        return graph

    @contextmanager
    def _capturable(self) -> Iterator[None]:
        """The optimizer refuses to be recorded without this flag, and warns of steps that are not recorded with it."""
        for group in self.optimizer.param_groups:
            group["capturable"] = True
        try:
            yield
        finally:
            for group in self.optimizer.param_groups:
                group["capturable"] = False

    def _set_rate(self, rate: float) -> None:
        if not self.record:
            set_rate(self.optimizer, rate)
            return
        for group in self.optimizer.param_groups:
            group["lr"].fill_(rate * group.get("times", 1.0))


def recordable(model: PreTrainedModel, *, length: int) -> bool:
    """Whether a step can be recorded: that of our encoders reads no value on the host, others may.

    Beyond the length that an encoder was made for, encodings may make their tables anew.
    """
    config = model.config
    return isinstance(config, EncoderConfig) and length <= config.max_position_embeddings


@contextmanager
def own_stream(device: torch.device) -> Iterator[None]:
    """Work of the block in a stream of its own on a GPU: the default one cannot be recorded."""
    if device.type != "cuda":
        yield
        return
    outside = torch.cuda.current_stream(device)
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(outside)
    with torch.cuda.stream(stream):
        yield
    outside.wait_stream(stream)
